"""Operations of layers, one per file: fused operations here, attention in `attention/`.

All are functions of tensors and know no requests. Each is written in plain torch and runs on any device; a kernel for
CUDA lies beside it with the same signature, replaces it there (`dispatch.py`) and is compared with it.
"""
