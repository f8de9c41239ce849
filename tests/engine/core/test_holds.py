"""What several requests begin with is sent once and hashed once, and they are as those that bring it themselves."""

from typing import Any

import msgspec
import pytest

from fairlead_engine.core import block_manager
from fairlead_engine.core.engine import Engine
from fairlead_engine.types import EngineRequest, FinishReason, HeldPrompt
from fairlead_engine_testing import FakeModelConfig, FakeRunner, make_request
from fairlead_engine_testing.fake_engine import fake_config

BEGIN = [1 + index % 7 for index in range(37)]


def answer(engine: Engine, request: EngineRequest) -> list[int]:
    assert engine.add(request) is None
    tokens = []
    while engine.has_work():
        for output in engine.step():
            tokens += output.new_token_ids
        engine.check()
    return tokens


@pytest.mark.parametrize("rest", [[], [2, 3], [4, 5, 6, 1, 2, 3, 4, 5]])
def test_who_names_a_hold_gets_the_answer_of_who_brings_its_prompt(rest: list[int]) -> None:
    engine = Engine(fake_config(max_model_len=64), FakeRunner(FakeModelConfig(), block_size=4))
    wanted = answer(engine, make_request("whole", BEGIN + rest, max_tokens=9))
    engine.hold("search", HeldPrompt(prompt_token_ids=BEGIN))
    for number in range(3):
        request = msgspec.structs.replace(make_request(f"r{number}", rest, max_tokens=9), hold="search")
        assert answer(engine, request) == wanted
    engine.abort("search")
    refused = engine.add(msgspec.structs.replace(make_request("late", rest), hold="search"))
    assert refused is not None and refused.finish_reason is FinishReason.ERROR and "not held" in str(refused.message)


def test_what_is_held_is_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []

    def hash_blocks(tokens: list[int], *args: Any, **kwargs: Any) -> list[bytes]:
        hashed.append(len(tokens))
        return plain(tokens, *args, **kwargs)

    plain = block_manager.hash_blocks
    monkeypatch.setattr(block_manager, "hash_blocks", hash_blocks)
    engine = Engine(fake_config(max_model_len=64), FakeRunner(FakeModelConfig(), block_size=4))
    engine.hold("search", HeldPrompt(prompt_token_ids=BEGIN))
    for number in range(5):
        request = make_request(f"r{number}", [number + 1] * 5, max_tokens=1)
        answer(engine, msgspec.structs.replace(request, hold="search"))
    assert sum(hashed) <= len(BEGIN) + 5 * 8
