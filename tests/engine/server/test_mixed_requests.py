"""Requests of all kinds at once, over HTTP, in a cache that is too small for them: each gets what it gets alone."""

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

TOOL = {"type": "function", "function": {"name": "tide", "parameters": {
    "type": "object", "properties": {"port": {"enum": ["Oslo", "Brest"]}, "high": {"type": "boolean"}},
    "required": ["port", "high"], "additionalProperties": False,
}}}  # fmt: skip
FEATURES: list[dict[str, Any]] = [
    {"tools": [TOOL], "tool_choice": "required"},
    {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "array", "maxItems": 4}}}},
    {"guided_regex": "(fox|dog)( fox| dog){3,9}", "min_tokens": 6},
    {"stop": ["o", "qu"], "include_stop_str_in_output": True},
    {"n": 3},
    {"presence_penalty": 1.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    {"dry_multiplier": 1.0, "bad_words": ["fox", "the"]},
    {"logit_bias": {"65": 5.0, "66": 4.0}, "allowed_token_ids": [*range(60, 120)]},
    {"temperature": 1.2, "top_p": 0.9, "top_k": 40, "seed": 7, "xtc_probability": 0.3, "top_n_sigma": 3.0},
    {"prompt_logprobs": 1},
]
"""A line for each; requests have some of them together."""
MEMORY = 402 * 512
"""Of one sequence of the longest context, which has 512 bytes for each token."""
APART = ({"tools", "response_format", "guided_regex", "allowed_token_ids"}, {"tools", "min_tokens"})
"""Of these a request has one at most."""


def random_body(draw: random.Random) -> dict[str, Any]:
    text = "The quick brown fox jumps over the lazy dog. " * draw.randint(1, 4)
    body: dict[str, Any] = {
        "model": "tiny", "temperature": 0, "max_tokens": draw.choice([5, 20, 60]),
        "messages": [{"role": "user", "content": text[: draw.randint(5, len(text))]}],
    }  # fmt: skip
    for feature in draw.sample(FEATURES, draw.randint(0, 4)):
        if all(len(apart & {*body, *feature}) <= 1 for apart in APART):
            body |= feature
    body["min_tokens"] = min(body.get("min_tokens", 0), body["max_tokens"])
    return body


def answered(url: str, body: dict[str, Any]) -> Any:
    reply = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
    assert reply.status_code == 200, (body, reply.text)
    choices = reply.json()["choices"]
    for choice in choices:
        for called in choice["message"].get("tool_calls", ()):
            del called["id"]
    return json.dumps(choices)


@pytest.mark.parametrize(
    "block_size", [1, pytest.param(2, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)]
)
def test_requests_of_all_kinds_get_beside_others_what_they_get_alone(
    block_size: int, start_engine: Any, checkpoint: Path
) -> None:
    engine = start_engine(
        "--model", str(checkpoint), "--served-name", "tiny", "--dtype", "float32", "--block-size", str(block_size),
        "--max-model-len", "400", "--kv-cache-memory", str(MEMORY), "--max-num-batched-tokens", "24", "--max-num-seqs",
        "12", "--tool-call-parser", "hermes",
    )  # fmt: skip
    engine.wait_ready()
    draw = random.Random(block_size)
    bodies = [random_body(draw) for _ in range(24)]
    alone = [answered(engine.url, body) for body in bodies]
    with ThreadPoolExecutor(24) as threads:
        beside = [*threads.map(lambda body: answered(engine.url, body), bodies)]
    assert beside == alone
    assert engine.metric("fairlead_engine_num_preemptions_total") > 0
