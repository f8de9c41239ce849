"""What layers compute with, one operation per file: fused operations here, attention in `attention/`.

All are functions of tensors and know no requests. Each is written in plain torch and runs on any device; a kernel for
one device has the same signature and is compared with it.
"""
