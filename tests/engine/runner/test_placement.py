"""Device and number format follow the settings, the checkpoint and what the processor can do."""

import pytest
import torch

from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.runner import placement
from fairlead_engine.runner.placement import choose_device, choose_dtype, set_num_threads

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("wanted", "stored", "native", "expected"),
    [
        ("auto", "float32", True, torch.float32),
        ("auto", "bfloat16", True, torch.bfloat16),
        ("auto", "bfloat16", False, torch.float32),
        ("auto", "float16", True, torch.bfloat16),
        ("auto", "float16", False, torch.float32),
        ("float32", "bfloat16", True, torch.float32),
        ("bfloat16", "float32", False, torch.bfloat16),
        ("float16", "float16", True, torch.bfloat16),
        ("float16", "float32", False, torch.float32),
    ],
)
def test_a_cpu_runs_half_precision_only_where_it_is_fast(wanted, stored, native, expected, monkeypatch):
    monkeypatch.setattr(placement, "cpu_multiplies_bfloat16", lambda: native)
    assert choose_dtype(wanted, stored, CPU) is expected


@pytest.mark.parametrize(
    ("wanted", "expected"), [("auto", torch.float16), ("bfloat16", torch.bfloat16), ("float16", torch.float16)]
)
def test_cuda_runs_what_it_is_told(wanted, expected):
    assert choose_dtype(wanted, "float16", CUDA) is expected


def test_the_capability_check_answers_on_any_machine():
    assert placement.cpu_multiplies_bfloat16() in (True, False)


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == choose_device("cpu") == CPU
    with pytest.raises(ModelLoadError, match="CUDA") as raised:
        choose_device("cuda")
    assert raised.value.reason == ModelLoadReason.DEVICE_UNAVAILABLE


def test_a_containers_cpu_quota_lowers_the_threads(monkeypatch, tmp_path):
    limit = tmp_path / "cpu.max"
    monkeypatch.setattr(placement, "_CGROUP_CPU_LIMIT", limit)
    before = torch.get_num_threads()
    try:
        set_num_threads(2)
        assert torch.get_num_threads() == 2
        limit.write_text("max 100000\n")
        set_num_threads(None)
        assert torch.get_num_threads() <= 2
        limit.write_text("50000 100000\n")
        set_num_threads(None)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
