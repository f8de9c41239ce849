"""`fairlead-engine serve --speculative-method mtp`: answers over HTTP are those without; metrics tell of guesses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.letters import write_letters
from fairlead_engine_testing.tiny_families.experts import glm4_moe_fields

SIZES = ("--max-model-len", "128", "--kv-cache-memory", "4Mi", "--block-size", "4")


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    fields = glm4_moe_fields(vocab_size=61, num_nextn_predict_layers=1)
    return write_letters(write_random_checkpoint(tmp_path_factory.mktemp("glm"), fields))


def answers(engine: Any) -> list[str]:
    """Whole and in streams; the favoured word makes some guesses right."""
    found = []
    for number in range(4):
        body: dict[str, Any] = {
            "model": "tiny", "prompt": [5 + number, 9, 11, 30], "max_tokens": 30, "temperature": 0,
            "logit_bias": {"7": 2.0 + number}, "ignore_eos": True,
        }  # fmt: skip
        response = httpx.post(engine.url + "/v1/completions", json=body, timeout=60)
        assert response.status_code == 200, response.text
        found.append(response.json()["choices"][0]["text"])
        with httpx.stream("POST", engine.url + "/v1/completions", json=body | {"stream": True}, timeout=60) as stream:
            events = [line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: {")]
        found.append("".join(json.loads(event)["choices"][0]["text"] for event in events))
        assert found[-1] == found[-2]
    return found


def test_answers_over_http_are_those_without_guesses(glm: Path, serve_folder: Callable[..., Any]) -> None:
    plain = serve_folder(glm, *SIZES)
    guessing = serve_folder(glm, *SIZES, "--speculative-method", "mtp", "--num-speculative-tokens", "3")
    assert answers(guessing) == answers(plain)
    drafted, accepted = (
        guessing.metric(f"fairlead_engine_spec_decode_num_{name}_tokens_total") for name in ("draft", "accepted")
    )
    assert 0 < accepted < drafted


def test_a_model_without_the_layer_is_not_served(start_engine: Any, checkpoint: Path) -> None:
    engine = start_engine("--model", str(checkpoint), "--speculative-method", "mtp")
    assert engine.wait_exit() == 1
    assert "num_nextn_predict_layers" in engine.log.read_text()
