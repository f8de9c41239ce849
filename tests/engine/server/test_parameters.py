"""What clients send beside the prompt and how it shows in the answer, over HTTP, from a real model."""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import openai
import pytest

from fairlead_common.tokens.tokenizing import PromptTokenizer

PROMPT = "The quick brown fox jumps over the lazy dog."


@pytest.fixture
def api(served: Any) -> Iterator[openai.OpenAI]:
    """The official client of an engine."""
    with openai.OpenAI(api_key="none", base_url=served.url + "/v1", max_retries=0) as client:
        yield client


def complete(api: openai.OpenAI, **fields: Any) -> Any:
    return api.completions.create(**{"model": "tiny", "prompt": PROMPT, "temperature": 0.0, "max_tokens": 4, **fields})


def chat(api: openai.OpenAI, **fields: Any) -> Any:
    messages = [{"role": "user", "content": "ahoy"}]
    return api.chat.completions.create(
        **{"model": "tiny", "messages": messages, "temperature": 0.0, "max_tokens": 4, **fields}
    )


# -- Scoring prompts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [0, 1])
def test_log_likelihoods_are_those_of_the_reference(
    api: openai.OpenAI, checkpoint: Path, reference: Any, tokenizer: PromptTokenizer, max_tokens: int
) -> None:
    """As lm-eval asks and reads: several prompts as ids, echoed with one alternative; cached by now, in part."""
    texts = [PROMPT, "one two three", PROMPT + " A fairlead guides each line."]
    prompts = [tokenizer.encode(text) for text in texts]
    complete(api, prompt=prompts[2], max_tokens=1)
    reply = complete(api, prompt=prompts, echo=True, logprobs=1, max_tokens=max_tokens, seed=1234)
    assert [choice.index for choice in reply.choices] == [0, 1, 2]
    for choice, text, prompt in zip(reply.choices, texts, prompts, strict=True):
        shape = choice.logprobs
        wanted = reference.logits(checkpoint, prompt).log_softmax(-1)
        num_tokens = len(prompt) + max_tokens
        assert shape.tokens[: len(prompt)] == [tokenizer.decode([each]) for each in prompt]
        assert len(shape.tokens) == len(shape.token_logprobs) == len(shape.top_logprobs) == num_tokens
        assert shape.token_logprobs[0] is shape.top_logprobs[0] is None
        for position, token_id in enumerate(prompt[1:], start=1):
            row = wanted[position - 1]
            assert shape.token_logprobs[position] == pytest.approx(float(row[token_id]), abs=1e-3)
            best = max(shape.top_logprobs[position].values())
            assert best == pytest.approx(float(row.max()), abs=1e-3)
            assert (best == shape.token_logprobs[position]) == (int(row.argmax()) == token_id)
        assert choice.text.startswith(text)
        assert all(
            choice.text.startswith(token, offset)
            for token, offset in zip(shape.tokens, shape.text_offset, strict=True)
            if "\N{REPLACEMENT CHARACTER}" not in token
        )
        assert choice.finish_reason == "length"
        assert (choice.text == text) == (max_tokens == 0)
    assert reply.usage.completion_tokens == 3 * max_tokens
    assert reply.usage.prompt_tokens == sum(map(len, prompts))


@pytest.mark.parametrize("prompt", [PROMPT, "🚢 déjà vu", [65]])
@pytest.mark.parametrize("max_tokens", [0, 3])
def test_a_streams_chunks_make_up_the_whole_answer(api: openai.OpenAI, prompt: Any, max_tokens: int) -> None:
    fields = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": max_tokens}
    whole = complete(api, **fields).choices[0]
    chunks = [chunk.choices[0] for chunk in complete(api, stream=True, **fields)]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [getattr(chunk.logprobs, name) for chunk in chunks if chunk.logprobs]
        joined = [each for part in parts for each in part]
        assert joined == getattr(whole.logprobs, name) or name.endswith("logprobs")
        assert len(joined) == len(whole.logprobs.tokens)
    assert chunks[-1].finish_reason == whole.finish_reason == "length"


def test_no_token_at_all_computes_the_prompt_and_leaves_it_in_the_cache(api: openai.OpenAI, served: Any) -> None:
    prompt = list(range(20, 60))
    for generate in (complete, chat):
        reply = generate(api, max_tokens=0, **({"prompt": prompt} if generate is complete else {}))
        assert reply.usage.completion_tokens == 0
        assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].message.content == ""
    assert complete(api, prompt=prompt, max_tokens=1).usage.prompt_tokens_details.cached_tokens == 32
    assert list(complete(api, prompt=prompt, max_tokens=0, stream=True))[-1].choices[0].finish_reason == "length"


# -- Who comes first, and what is chosen -------------------------------------------------------------------------------


# -- What answers tell -------------------------------------------------------------------------------------------------


def test_answers_have_the_ids_of_their_tokens(api: openai.OpenAI, tokenizer: PromptTokenizer) -> None:
    asked = {"return_token_ids": True}
    whole, said = complete(api, extra_body=asked).choices[0], chat(api, extra_body=asked)
    assert whole.prompt_token_ids == tokenizer.encode(PROMPT)
    assert said.prompt_token_ids == tokenizer.encode_chat([{"role": "user", "content": "ahoy"}])
    assert tokenizer.decode(whole.token_ids) == whole.text
    assert tokenizer.decode(said.choices[0].token_ids) == said.choices[0].message.content
    chunks = [chunk.choices[0] for chunk in complete(api, extra_body=asked, stream=True)]
    assert chunks[0].prompt_token_ids == whole.prompt_token_ids
    assert [each for chunk in chunks for each in getattr(chunk, "token_ids", None) or []] == whole.token_ids
    stream = list(chat(api, extra_body=asked, stream=True))
    assert stream[0].prompt_token_ids == said.prompt_token_ids
    streamed = [each for chunk in stream for each in getattr(chunk.choices[0], "token_ids", None) or []]
    assert streamed == said.choices[0].token_ids
    assert complete(api, extra_body=asked, max_tokens=0).choices[0].token_ids == []
    assert "token_ids" not in complete(api).choices[0].to_dict()


def test_tokens_of_log_probabilities_may_be_ids(api: openai.OpenAI) -> None:
    asked = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    whole = complete(api, logprobs=2, extra_body=asked).choices[0]
    names = [f"token_id:{each}" for each in whole.token_ids]
    assert whole.logprobs.tokens == names
    assert all(name in top for name, top in zip(names, whole.logprobs.top_logprobs, strict=True))
    said = chat(api, logprobs=True, top_logprobs=1, extra_body=asked).choices[0]
    assert [entry.token for entry in said.logprobs.content] == [f"token_id:{each}" for each in said.token_ids]
    assert said.logprobs.content[0].top_logprobs[0].token == said.logprobs.content[0].token


@pytest.mark.parametrize("include_usage", [True, False])
def test_every_chunk_may_tell_the_usage_so_far(api: openai.OpenAI, include_usage: bool) -> None:
    options = {"include_usage": include_usage, "continuous_usage_stats": True}
    for generate in (complete, chat):
        asked = {"stream_options": options, "extra_body": {"return_token_ids": True, "ignore_eos": True}}
        chunks = list(generate(api, stream=True, max_tokens=40, **asked))
        num_new = [sum(len(getattr(each, "token_ids", None) or ()) for each in chunk.choices) for chunk in chunks]
        assert [chunk.usage.completion_tokens for chunk in chunks] == list(accumulate(num_new))
        assert sum(num_new) == 40
        assert all(chunk.usage.prompt_tokens == chunks[0].usage.prompt_tokens > 0 for chunk in chunks)
        assert (chunks[-1].choices == []) == include_usage


def test_an_answer_continues_the_final_message(api: openai.OpenAI, tokenizer: PromptTokenizer) -> None:
    messages = [{"role": "user", "content": "count"}, {"role": "assistant", "content": "one two"}]
    asked = {"continue_final_message": True, "add_generation_prompt": False, "return_token_ids": True}
    said = chat(api, messages=messages, extra_body=asked)
    shown = tokenizer.decode(said.prompt_token_ids, skip_special_tokens=False)
    assert shown == "<|user|>count<|end|><|assistant|>one two"
    same = complete(api, prompt=said.prompt_token_ids)
    assert said.choices[0].message.content == same.choices[0].text
