"""`prompt_logprobs`, and `best_of`, which gives the answers with the largest sums: over HTTP, on a real tiny model."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead_common.tokens.tokenizing import PromptTokenizer


def post(served: Any, path: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "tiny", "max_tokens": 3, "temperature": 0, **fields}
    reply = httpx.post(f"{served.url}/v1/{path}", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_log_probabilities_of_the_prompt_are_those_of_transformers(
    path: str, served: Any, checkpoint: Path, reference: Any, tokenizer: PromptTokenizer
) -> None:
    fields: dict[str, Any] = {"prompt": "The quick brown fox", "n": 2}
    if path != "completions":
        fields = {"messages": [{"role": "user", "content": "The quick brown fox"}]}
    found = post(served, path, **fields, prompt_logprobs=3, return_token_ids=True)
    holders = found["choices"] if path == "completions" else [found]
    ids = holders[0]["prompt_token_ids"]
    expected = reference.logits(checkpoint, ids).log_softmax(-1)
    for holder in holders:
        first, *others = holder["prompt_logprobs"]
        assert first is None
        assert len(others) == len(ids) - 1
        for row, (token_id, entry) in enumerate(zip(ids[1:], others, strict=True)):
            top = expected[row].topk(3).indices.tolist()
            assert set(entry) == {str(each) for each in (token_id, *top)}
            for each, values in entry.items():
                assert values["logprob"] == pytest.approx(float(expected[row, int(each)]), abs=1e-3)
                assert values["rank"] == 1 + int((expected[row] > expected[row, int(each)]).sum())
            shown = tokenizer.decode([token_id], skip_special_tokens=False)
            assert entry[str(token_id)]["decoded_token"] == shown
    assert all(choice.get("logprobs") is None for choice in found["choices"])


def test_prompt_logprobs_echo_and_logprobs_have_numbers_of_their_own(served: Any) -> None:
    fields: dict[str, Any] = {"prompt": "The quick", "echo": True, "logprobs": 1}
    plain, more, fewer = (
        post(served, "completions", **fields, **given)["choices"][0]
        for given in ({}, {"prompt_logprobs": 4}, {"prompt_logprobs": 0})
    )
    for scored, sizes in ((more, {4, 5}), (fewer, {1})):
        assert {len(entry) for entry in scored["prompt_logprobs"][1:]} <= sizes
    assert plain["logprobs"]["top_logprobs"] == more["logprobs"]["top_logprobs"] == fewer["logprobs"]["top_logprobs"]
    silent = post(served, "completions", prompt="The quick", prompt_logprobs=2)["choices"][0]
    assert silent["logprobs"] is None
    assert silent["text"] and not silent["text"].startswith("The quick")


def test_the_best_of_many_answers_are_given_best_first(served: Any) -> None:
    fields: dict[str, Any] = {"prompt": ["The quick", "one two"], "temperature": 1, "seed": 5, "max_tokens": 6}
    made = post(served, "completions", **fields, n=6, logprobs=0)
    best = post(served, "completions", **fields, n=2, best_of=6, logprobs=0)
    totals = [sum(choice["logprobs"]["token_logprobs"]) for choice in made["choices"]]
    for prompt in range(2):
        order = sorted(range(6 * prompt, 6 * prompt + 6), key=lambda index: -totals[index])[:2]
        given = best["choices"][2 * prompt : 2 * prompt + 2]
        assert [choice["text"] for choice in given] == [made["choices"][index]["text"] for index in order]
    assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]
    assert best["usage"] == {**made["usage"], "prompt_tokens_details": best["usage"]["prompt_tokens_details"]}
    [silent] = post(served, "completions", prompt="The quick", best_of=3, echo=True, temperature=1)["choices"]
    assert silent["logprobs"] is None
    assert silent["text"].startswith("The quick")
