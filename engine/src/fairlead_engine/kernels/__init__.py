"""What layers compute with, one operation per file: fused operations here, attention in `attention/`.

All are functions of tensors and know no requests. Each is written in plain torch and runs on any device; a kernel for
CUDA lies beside it, has the same signature, takes over there (`dispatch.py`) and is compared with it.
"""
