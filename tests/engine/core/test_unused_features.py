"""A step pays nothing for what nobody asks for: no code of an unused feature runs in it, and its load tells nothing."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from fairlead_engine.core import adapter_places, grammars, injections, kept_blocks, thinking
from fairlead_engine.core.engine import Engine
from fairlead_engine.runner import image_vectors
from fairlead_engine.speculative import drafting
from fairlead_engine_testing import FakeModelConfig, FakeRunner, make_request
from fairlead_engine_testing.fake_engine import fake_config

_MODULES = (adapter_places, grammars, injections, kept_blocks, thinking, image_vectors, drafting)
OF_FEATURES = {Path(each.__file__).name for each in _MODULES}
OF_STEPS = {"_masks", "_begin_masks", "_digests"}
"""Functions of modules that steps do run."""


@contextmanager
def calls() -> Iterator[set[tuple[str, str]]]:
    """The Python functions that are called, by the file they are in; but for who asks whether there is anybody."""
    found = set[tuple[str, str]]()

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name != "__bool__":
            found.add((Path(frame.f_code.co_filename).name, frame.f_code.co_name))

    before: Callable[..., Any] | None = sys.getprofile()
    sys.setprofile(called)
    try:
        yield found
    finally:
        sys.setprofile(before)


def test_steps_run_no_code_of_features_that_nobody_uses() -> None:
    engine = Engine(fake_config(), FakeRunner(FakeModelConfig(), block_size=4))
    for number in range(4):
        request = make_request(f"r{number}", prompt=[number + 1] * 9, max_tokens=12)
        assert engine.add(request) is None
    with calls() as found:
        while engine.has_work():
            engine.step()
            assert engine.load
    assert {("engine.py", "step"), ("step_results.py", "_write_decodes"), ("block_manager.py", "publish")} <= found
    found -= {("grammars.py", "is_ready")}  # asked once, when it begins
    assert not [each for each in found if each[0] in OF_FEATURES or each[1] in OF_STEPS]


def test_a_load_says_nothing_of_features_that_nobody_uses() -> None:
    engine = Engine(fake_config(), FakeRunner(FakeModelConfig(), block_size=4))
    told = msgspec.json.encode(engine.load).decode()
    assert "adapter" not in told and "draft" not in told and "mask" not in told
    assert msgspec.json.decode(told, type=type(engine.load)) == engine.load
