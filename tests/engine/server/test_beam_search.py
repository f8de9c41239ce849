"""Beam search: transformers' answers and scores, by the rules alone and over HTTP by the official client."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from fairlead_engine.api.beam_search import Beams
from fairlead_engine.types import TokenLogprobs

PROMPT = [5, 60, 7, 80, 9, 100]


@pytest.fixture(scope="module")
def theirs(checkpoint: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


def expected(theirs: Any, prompt: list[int], width: int, most: int, ends: list[int] | None, **rules: Any) -> Any:
    """Their answers, best first, and scores."""
    with torch.no_grad():
        found = theirs.generate(
            torch.tensor([prompt]), num_beams=width, num_return_sequences=width, do_sample=False, max_new_tokens=most,
            eos_token_id=ends, pad_token_id=0, return_dict_in_generate=True, output_scores=True, **rules,
        )  # fmt: skip
    answers = []
    for row in found.sequences.tolist():
        answer = row[len(prompt) :]
        end = next((place for place, token in enumerate(answer) if token in (ends or ())), len(answer) - 1)
        answers.append(answer[: end + 1])
    return answers, found.sequences_scores.tolist()


def search(theirs: Any, prompt: list[int], beams: Beams) -> tuple[list[list[int]], list[float]]:
    """By the rules, on their log-probabilities."""
    while not beams.is_over:
        behind = []
        for beam in beams.running:
            with torch.no_grad():
                logprobs = theirs(torch.tensor([prompt + beam.token_ids])).logits[0, -1].log_softmax(-1)
            values, token_ids = logprobs.topk(beams.num_likeliest)
            top = list(zip(token_ids.tolist(), values.tolist(), strict=True))
            behind.append(TokenLogprobs(*top[0], top))
        beams.advance(behind)
    return [beam.token_ids for _, beam in beams.best], [score for score, _ in beams.best]


@pytest.mark.parametrize("early_stopping", [False, True, "never"])
@pytest.mark.parametrize(
    ("seed", "num_ends", "length_penalty"),
    [(0, 30, 1.0), (1, 30, 0.0), (2, 10, 2.0), (3, 30, -1.0), (4, 0, 1.0), (5, 1, 1.0)],
)
def test_the_rules_are_those_of_transformers(
    theirs: Any, seed: int, num_ends: int, length_penalty: float, early_stopping: Any
) -> None:
    """With so many ends that answers come early, late and not at all."""
    draw = random.Random(seed)
    width, most = draw.choice([2, 3, 5]), draw.choice([1, 4, 9])
    prompt = [draw.randrange(300) for _ in range(4)]
    ends = draw.sample(range(300), num_ends) or None
    rules = {"length_penalty": length_penalty, "early_stopping": early_stopping}
    answers, scores = expected(theirs, prompt, width, most, ends, **rules)
    found, ours = search(theirs, prompt, Beams(width, most, end_token_ids=ends or (), **rules))
    assert found == answers
    assert ours == pytest.approx(scores, abs=1e-4)


@pytest.fixture(scope="module")
def exact(checkpoint: Path, start_engine_in: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """In float32, in a cache that has room for few beams at a time."""
    starter = start_engine_in(tmp_path_factory.mktemp("exact"))
    try:
        engine = starter(
            "--model", str(checkpoint), "--served-name", "tiny", "--dtype", "float32", "--block-size", "2",
            "--max-model-len", "60", "--kv-cache-memory", str(512 * 64), "--max-num-batched-tokens", "40",
            "--max-num-seqs", "3",
        )  # fmt: skip
        engine.wait_ready()
        yield engine
    finally:
        starter.kill()


def ask(exact: Any, **fields: Any) -> Any:
    client = openai.OpenAI(api_key="none", base_url=exact.url + "/v1", max_retries=0)
    extra = {name: fields.pop(name) for name in list(fields) if name not in ("n", "max_tokens", "logprobs", "best_of")}
    prompt = extra.pop("prompt", PROMPT)
    body = {"use_beam_search": True, "return_token_ids": True, **extra}
    return client.completions.create(model="tiny", prompt=prompt, temperature=0, extra_body=body, **fields)


@pytest.mark.slow
@pytest.mark.parametrize("rules", [{}, {"length_penalty": 0.0, "early_stopping": True}, {"early_stopping": "never"}])
def test_the_official_client_gets_the_answers_of_transformers(exact: Any, theirs: Any, rules: dict[str, Any]) -> None:
    free = httpx_metric(exact, "fairlead_engine_kv_blocks_free")
    stops = [17, 44, 210]
    answers, scores = expected(theirs, PROMPT, 4, 12, [*stops, 316], **rules)
    reply = ask(exact, n=4, max_tokens=12, logprobs=1, stop_token_ids=stops, **rules)
    assert [choice.token_ids for choice in reply.choices] == answers
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    power = rules.get("length_penalty", 1.0)
    sums = [sum(choice.logprobs.token_logprobs) / len(choice.token_ids) ** power for choice in reply.choices]
    assert sums == pytest.approx(scores, abs=1e-3)
    assert {choice.finish_reason for choice in reply.choices} <= {"length", "stop"}
    assert reply.usage.completion_tokens == sum(map(len, answers))
    assert httpx_metric(exact, "fairlead_engine_kv_blocks_free") == free


def test_best_of_is_the_width_and_each_prompt_has_a_search_of_its_own(exact: Any, theirs: Any) -> None:
    other = [200, 3, 3]
    reply = ask(exact, prompt=[PROMPT, other], n=1, best_of=3, max_tokens=8, ignore_eos=True)
    wanted = [expected(theirs, prompt, 3, 8, None)[0][0] for prompt in (PROMPT, other)]
    assert [choice.token_ids for choice in reply.choices] == wanted


def test_a_chat_is_searched_and_told_of(exact: Any) -> None:
    client = openai.OpenAI(api_key="none", base_url=exact.url + "/v1", max_retries=0)
    reply = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "ahoy"}], n=2, max_tokens=6, logprobs=True, top_logprobs=2,
        extra_body={"use_beam_search": True},
    )  # fmt: skip
    sums = [sum(token.logprob for token in choice.logprobs.content) for choice in reply.choices]
    assert sums == sorted(sums, reverse=True)
    assert {len(token.top_logprobs) for choice in reply.choices for token in choice.logprobs.content} == {2}


def test_log_probabilities_are_told_to_who_asks_for_them(exact: Any) -> None:
    body = {"model": "tiny", "max_tokens": 4, "n": 2, "use_beam_search": True}
    chat = {**body, "messages": [{"role": "user", "content": "ahoy"}]}
    for path, request in (("chat/completions", chat), ("completions", {**body, "prompt": "ahoy"})):
        reply = httpx.post(f"{exact.url}/v1/{path}", json=request, timeout=30).json()
        assert [choice["logprobs"] for choice in reply["choices"]] == [None, None]


def httpx_metric(engine: Any, name: str) -> float:
    return float(engine.metric(name))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream": True}, "stream"), ({"guided_choice": ["a"]}, "guided_choice"), ({"stop": "a"}, "stop"),
        ({"presence_penalty": 1}, "presence_penalty"), ({"logit_bias": {"5": 1}}, "logit_bias"), ({"n": 20}, "n"),
        ({"max_tokens": 0}, "max_tokens"), ({"early_stopping": "soon"}, "early_stopping"),
        ({"use_beam_search": False, "length_penalty": 0.5}, "length_penalty"),
        ({"early_stopping": 1}, "early_stopping"),
        ({"length_penalty": 11}, "length_penalty"), ({"echo": True, "logprobs": 1}, "echo"),
        ({"echo": True}, "echo"), ({"prompt_logprobs": 0}, "prompt_logprobs"), ({"min_tokens": 2}, "min_tokens"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_by_name(exact: Any, fields: dict[str, Any], param: str) -> None:
    body = {"model": "tiny", "prompt": "ahoy", "max_tokens": 4, "n": 2, "use_beam_search": True, **fields}
    reply = httpx.post(exact.url + "/v1/completions", json=body, timeout=30)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


def test_what_asks_for_nothing_goes_together(exact: Any) -> None:
    body = {
        "model": "tiny", "prompt": "ahoy", "max_tokens": 4, "n": 2, "use_beam_search": True, "presence_penalty": 0,
        "repetition_penalty": 1.0, "stop": [], "stream": False, "logit_bias": {}, "response_format": {"type": "text"},
        "echo": False, "min_p": 0.1,
    }  # fmt: skip
    assert httpx.post(exact.url + "/v1/completions", json=body, timeout=30).status_code == 200
