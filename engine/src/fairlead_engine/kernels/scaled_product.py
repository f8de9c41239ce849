"""The result of a product of integers: its sums times the scales of both sides."""

import torch
from torch import Tensor

from fairlead_engine.kernels.dispatch import with_kernel


@with_kernel("fairlead_engine.kernels.scaled_product_kernel")
def scaled_product(
    sums: Tensor, row_scales: Tensor, column_scales: Tensor, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """sums int32 [at least rows, columns] times row_scales float32 [rows, 1] and column_scales float32 [columns], plus
    bias [columns]: [rows, columns] in `dtype`."""
    product = (sums[: len(row_scales)] * column_scales).mul_(row_scales)
    return (product if bias is None else product.add_(bias)).to(dtype)
