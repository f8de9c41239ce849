"""Models of authors who mean harm: they are served as far as they can be, and a condition says what is left out."""

import random
from pathlib import Path

import pytest
from soak.neighbours import DINGHY

from fairlead_engine_testing import hostile_authors


@pytest.mark.cluster_suffices
def test_a_tokenizer_that_takes_too_much_is_left_to_its_engine_and_a_condition_says_so(
    fleet, deployed, name: str, tmp_path: Path
) -> None:
    if fleet.home == "kubernetes":
        pytest.skip("the model is written to this machine (file://), which a node does not see")
    folder = tmp_path / "model"
    hostile_authors.write(hostile_authors.expanding_normalizer, random.Random(0), DINGHY, folder)
    deployed(name, f"file://{folder}")
    fleet.wait_ready(name)

    def refuses() -> bool:
        messages = [{"role": "user", "content": "a" * 4000}]
        status, error, _ = fleet.refusal("/v1/chat/completions", {"model": name, "messages": messages})
        assert status == 400
        assert error["error"]["param"] == "messages"
        return fleet.condition(name, "Degraded").get("reason") == "TokenizerNotRun"

    fleet.wait("the condition", refuses)
    answer = fleet.post("/v1/completions", {"model": name, "prompt": "hello", "max_tokens": 2})
    assert answer["choices"][0]["finish_reason"] == "length"
