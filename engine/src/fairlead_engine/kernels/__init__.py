"""Operations of layers, one per file: fused operations here, attention in `attention/`.

All are functions of tensors and know no requests. Each is written in plain torch for any device; a CUDA kernel with the
same signature lies beside it, replaces it there (`dispatch.py`) and is compared with it.
"""
