"""Marks of tests that run on a CUDA device, or in its place in Triton's interpreter."""

import pytest
import torch

HAS_CUDA = torch.cuda.is_available()
NEEDS_CUDA = (pytest.mark.gpu, pytest.mark.skipif(not HAS_CUDA, reason="there is no CUDA device"))
INTERPRETED = pytest.mark.skipif(HAS_CUDA, reason="Triton compiles for CUDA where there is one")
on_each_device = pytest.mark.parametrize(
    "device", [pytest.param("cpu", marks=INTERPRETED), pytest.param("cuda", marks=NEEDS_CUDA)]
)
