"""Downloads in tests: no test here takes the power away."""

import os
from collections.abc import Iterator

import pytest

from fairlead_engine_testing.loopback_hub import LoopbackHub, loopback_hub


@pytest.fixture(autouse=True)
def without_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def hub_of_module() -> Iterator[LoopbackHub]:
    with loopback_hub(LoopbackHub()) as hub:
        yield hub


@pytest.fixture
def hub(hub_of_module: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> LoopbackHub:
    """A hub that is asked in place of Hugging Face's; what it holds stays for the tests of one module."""
    monkeypatch.setenv("HF_ENDPOINT", hub_of_module.endpoint)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return hub_of_module
