"""Text from token ids and stop strings: exact whatever the pieces, and never half a character."""

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine.api.detokenizer import Detokenizer, StopStrings, TextDelta
from fairlead_engine.api.token_text import Vocabulary
from fairlead_engine.types import FinishReason, SamplingParams, SequenceOutput, TokenLogprobs

VOCAB_SIZE = 320
texts = st.text(alphabet=st.sampled_from("ab c.日本👩‍👧🚢é\n"), max_size=30) | st.text(max_size=30)
stop_sets = st.lists(st.text(alphabet=st.sampled_from("ab c.日👧"), min_size=1, max_size=4), max_size=4)
any_ids = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40)


def outputs(token_ids: list[int], sizes: list[int], **last: object) -> list[SequenceOutput]:
    """The ids in outputs of these sizes, the rest in the last one, which finishes the sequence."""
    parts, rest = [], list(token_ids)
    for size in sizes:
        parts.append(rest[:size])
        rest = rest[size:]
    parts.append(rest)
    made = [SequenceOutput(request_id="r", new_token_ids=part) for part in parts]
    made[-1].finish_reason = FinishReason.LENGTH
    for name, value in last.items():
        setattr(made[-1], name, value)
    return made


def run(vocabulary: Vocabulary, sampling: SamplingParams, parts: list[SequenceOutput]) -> list[TextDelta]:
    """The deltas up to the one that ends the sequence."""
    detokenizer = Detokenizer(vocabulary, sampling)
    deltas = []
    for part in parts:
        deltas.append(detokenizer.push(part))
        if deltas[-1].finish_reason is not None:
            break
    return deltas


def cut(text: str, stops: list[str]) -> str:
    """The text up to the stop string that is complete first, of two that end together the longer one."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    return text[: min(ends)[1]] if ends else text


@pytest.fixture(scope="module")
def vocabulary(tokenizer: PromptTokenizer) -> Vocabulary:
    return Vocabulary(tokenizer)


@pytest.fixture(scope="module")
def window_vocabulary(tokenizer: PromptTokenizer) -> Vocabulary:
    """The same tokens behind a decoder whose alphabet is not known here, as SentencePiece models have."""
    content = json.loads(tokenizer.tokenizer_json)
    content["decoder"] = {"type": "Sequence", "decoders": [content["decoder"]]}
    return Vocabulary(PromptTokenizer(json.dumps(content)))


@settings(deadline=None, max_examples=80)
@given(text=texts, sizes=st.lists(st.integers(0, 4), max_size=10), stops=stop_sets)
def test_pieces_make_up_the_whole_text_cut_at_the_first_stop_string(
    vocabulary: Vocabulary, tokenizer: PromptTokenizer, text: str, sizes: list[int], stops: list[str]
) -> None:
    token_ids = tokenizer.encode(text)
    deltas = run(vocabulary, SamplingParams(stop=tuple(stops)), outputs(token_ids, sizes))
    assert "".join(delta.text for delta in deltas) == cut(text, stops)
    has_stopped = any(stop in text for stop in stops)
    assert deltas[-1].finish_reason == (FinishReason.STOP if has_stopped else FinishReason.LENGTH)


@settings(deadline=None, max_examples=80)
@given(token_ids=any_ids, sizes=st.lists(st.integers(0, 4), max_size=10))
def test_pieces_of_any_bytes_make_up_the_tokenizers_own_decoding(
    vocabulary: Vocabulary, tokenizer: PromptTokenizer, token_ids: list[int], sizes: list[int]
) -> None:
    deltas = run(vocabulary, SamplingParams(), outputs(token_ids, sizes))
    assert "".join(delta.text for delta in deltas) == tokenizer.decode(token_ids)


@settings(deadline=None, max_examples=50)
@given(text=texts, sizes=st.lists(st.integers(0, 4), max_size=10))
def test_a_decoder_of_another_kind_gives_the_same_text(
    window_vocabulary: Vocabulary, tokenizer: PromptTokenizer, text: str, sizes: list[int]
) -> None:
    deltas = run(window_vocabulary, SamplingParams(), outputs(tokenizer.encode(text), sizes))
    assert "".join(delta.text for delta in deltas) == text


def test_a_character_that_never_became_whole_shows_as_a_replacement_at_the_end(
    vocabulary: Vocabulary, window_vocabulary: Vocabulary, tokenizer: PromptTokenizer
) -> None:
    ship = tokenizer.encode("🚢")
    assert len(ship) > 1
    for each in (vocabulary, window_vocabulary):
        deltas = run(each, SamplingParams(), outputs(ship[:-1], [1] * (len(ship) - 1)))
        assert [delta.text for delta in deltas[:-1]] == [""] * (len(ship) - 1)
        assert deltas[-1].text == "\N{REPLACEMENT CHARACTER}"


def test_endless_broken_characters_are_not_held_for_ever(
    window_vocabulary: Vocabulary, tokenizer: PromptTokenizer
) -> None:
    first_byte = tokenizer.encode("🚢")[0]
    stream = window_vocabulary.stream()
    assert any(stream.push(first_byte) for _ in range(40))


@settings(deadline=None, max_examples=50)
@given(text=texts, stops=stop_sets, cuts=st.lists(st.integers(0, 30), max_size=6))
def test_stop_strings_do_not_depend_on_where_the_text_was_cut(text: str, stops: list[str], cuts: list[int]) -> None:
    checker = StopStrings(stops)
    marks = [0, *sorted(min(mark, len(text)) for mark in cuts), len(text)]
    shown = "".join(checker.push(text[start:end]) for start, end in itertools.pairwise(marks))
    assert shown + checker.finish() == cut(text, stops)


def test_only_what_could_become_a_stop_string_is_held_back() -> None:
    checker = StopStrings(["END.", "xyz"])
    assert checker.push("abcE") == "abc"
    assert checker.push("Nx") == "EN"
    assert checker.push("a") == "xa"
    assert checker.finish() == ""


def test_include_stop_leaves_the_stop_string_in_the_text(vocabulary: Vocabulary, tokenizer: PromptTokenizer) -> None:
    sampling = SamplingParams(stop=("fox",), include_stop=True)
    deltas = run(vocabulary, sampling, outputs(tokenizer.encode("a fox runs"), [1, 1, 1]))
    assert "".join(delta.text for delta in deltas) == "a fox"
    assert deltas[-1].stop_reason == "fox"


def test_text_of_the_first_min_tokens_cannot_stop_the_output(
    vocabulary: Vocabulary, tokenizer: PromptTokenizer
) -> None:
    once, twice = tokenizer.encode("fox"), tokenizer.encode("fox fox ")
    sampling = SamplingParams(stop=("fox",), min_tokens=len(once))
    deltas = run(vocabulary, sampling, outputs(twice, [1] * len(twice)))
    assert "".join(delta.text for delta in deltas) == "fox "
    assert deltas[-1].finish_reason is FinishReason.STOP


def test_a_stop_token_is_not_part_of_the_text_unless_asked_for(
    vocabulary: Vocabulary, tokenizer: PromptTokenizer
) -> None:
    token_ids = tokenizer.encode("ab")
    last = token_ids[-1]
    ending = {"finish_reason": FinishReason.STOP, "stop_token_id": last}
    hidden = run(vocabulary, SamplingParams(stop_token_ids=(last,)), outputs(token_ids, [1], **ending))
    shown = run(
        vocabulary, SamplingParams(stop_token_ids=(last,), include_stop=True), outputs(token_ids, [1], **ending)
    )
    assert "".join(delta.text for delta in hidden) == tokenizer.decode(token_ids[:-1])
    assert "".join(delta.text for delta in shown) == "ab"
    assert hidden[-1].stop_reason == last


def test_tokens_after_a_stop_string_are_neither_counted_nor_reported(
    vocabulary: Vocabulary, tokenizer: PromptTokenizer
) -> None:
    token_ids = tokenizer.encode("a.") + tokenizer.encode(" fox") * 3
    output = SequenceOutput(
        request_id="r",
        new_token_ids=token_ids,
        logprobs=[TokenLogprobs(token_id, -1.0, []) for token_id in token_ids],
    )
    detokenizer = Detokenizer(vocabulary, SamplingParams(stop=(".",)))
    delta = detokenizer.push(output)
    assert delta.text == "a"
    assert detokenizer.num_tokens == len(delta.token_ids) == len(delta.logprobs) == len(tokenizer.encode("a."))


def test_special_tokens_are_hidden_unless_asked_for(vocabulary: Vocabulary, tokenizer: PromptTokenizer) -> None:
    end = tokenizer.token_id("<|end|>")
    assert end is not None
    assert vocabulary.stream().push(end) == ""
    assert vocabulary.stream(skip_special_tokens=False).push(end) == "<|end|>"


def test_bytes_of_tokens_are_exact_even_where_they_are_no_text(
    vocabulary: Vocabulary, tokenizer: PromptTokenizer
) -> None:
    raw = b"".join(vocabulary.token_bytes(token_id) for token_id in tokenizer.encode("🚢 é"))
    assert raw == "🚢 é".encode()
    assert vocabulary.token_bytes(VOCAB_SIZE + 7) == b""


def test_a_character_that_begins_in_the_prompt_is_told_whole_behind_it(vocabulary: Vocabulary) -> None:
    """A prompt may be sent as ids, and end anywhere."""
    text = "one é🚢 two"
    of_byte = {vocabulary.token_bytes(each): each for each in range(VOCAB_SIZE - 4)}
    ids = [of_byte[bytes([byte])] for byte in text.encode()]
    for cut_at in range(len(ids) + 1):
        stream = vocabulary.stream(after=ids[:cut_at])
        before = vocabulary.text_before(ids[:cut_at], skip_special_tokens=True)
        after = "".join(map(stream.push, ids[cut_at:])) + stream.finish()
        assert (before + after, before) == (text, text[: len(before)])


BROKEN = [b"\xe6", b"\xf0\x9f", b"one \xf0\x9f\x9a", b"\xc3"]


@pytest.mark.parametrize("begun", BROKEN)
@pytest.mark.parametrize("text", ["a b", "é", "🚢", "日本", ""])
def test_a_prompt_that_ends_within_a_character_leaves_nothing_of_it_in_the_answer(
    vocabulary: Vocabulary, begun: bytes, text: str
) -> None:
    of_byte = {vocabulary.token_bytes(each): each for each in range(VOCAB_SIZE - 4)}
    prompt, answer = ([of_byte[bytes([byte])] for byte in each] for each in (begun, text.encode()))
    reader = Detokenizer(vocabulary, SamplingParams(), prompt)
    assert "".join(reader.push(each).text for each in outputs(answer, [1, 1])) == text
    echoed = Detokenizer(vocabulary, SamplingParams(), prompt, follows_prompt=True)
    before = vocabulary.text_before(prompt, skip_special_tokens=True)
    joined = before + "".join(echoed.push(each).text for each in outputs(answer, [1, 1]))
    assert joined == (begun + text.encode()).decode(errors="replace"), "with the prompt's text it is part of that"


def test_a_character_that_goes_on_in_the_answer_is_told_whole(vocabulary: Vocabulary) -> None:
    of_byte = {vocabulary.token_bytes(each): each for each in range(VOCAB_SIZE - 4)}
    ids = [of_byte[bytes([byte])] for byte in "🚢!".encode()]
    for cut_at in range(1, 4):
        reader = Detokenizer(vocabulary, SamplingParams(), ids[:cut_at])
        assert "".join(reader.push(each).text for each in outputs(ids[cut_at:], [])) == "🚢!"
