"""`truncate_prompt_tokens`: which tokens are kept, compared with what transformers' tokenizers keep."""

from array import array

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_common.openai.prompts import AnswerLimit, CompletionPrompt, EmbeddingPrompt, PromptError, RerankPrompt
from fairlead_common.openai.truncation import Truncation, frame_of, truncation_of
from fairlead_common.tokens.tokenizing import PromptTokenizer

NO_LIMIT = AnswerLimit.of(None)
WORDS = {"[CLS]": 0, "[SEP]": 1, "[UNK]": 2, "a": 3, "b": 4, "c": 5}


def bert_like(single: str) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(WORDS, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = [("[CLS]", 0), ("[SEP]", 1)]
    backend.post_processor = tokenizers.processors.TemplateProcessing(single=single, special_tokens=special)
    return backend


def completion(**fields: object) -> CompletionPrompt:
    return CompletionPrompt(prompt="a", **fields)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(["[CLS] $A [SEP]", "[CLS] $A", "$A [SEP]", "$A"]),
    st.lists(st.sampled_from(["a", "b", "c", "[SEP]"]), min_size=1, max_size=12),
    st.integers(3, 14),
    st.sampled_from(["left", "right"]),
)
def test_of_a_text_the_tokens_are_kept_that_its_tokenizer_would_keep(single, words, most, side) -> None:
    backend, text = bert_like(single), " ".join(words)
    tokenizer = PromptTokenizer(backend.to_str())
    whole = tokenizer.encode(text)
    backend.enable_truncation(most, direction=side)
    fields = EmbeddingPrompt(input=text, truncate_prompt_tokens=most, truncation_side=side)
    truncation = truncation_of(fields, 100, NO_LIMIT)
    assert truncation is not None
    assert truncation.cut(whole, frame_of(fields, True, tokenizer)) == backend.encode(text).ids


@given(
    st.lists(st.integers(0, 99), max_size=20), st.integers(1, 25), st.booleans(), st.integers(0, 3), st.integers(0, 3)
)
def test_never_more_are_kept_and_cutting_again_changes_nothing(ids, most, keeps_end, before, behind) -> None:
    truncation = Truncation(most, keeps_end)
    kept = truncation.cut(ids, (before, behind))
    assert len(kept) == min(len(ids), most)
    assert truncation.cut(kept) == kept
    assert truncation.cut(array("I", ids), (before, behind)).tolist() == kept
    if len(ids) > most and before + behind < most:
        assert kept[:before] == ids[:before]
        assert kept[most - behind :] == ids[len(ids) - behind :]
    assert truncation.cut(ids) == (ids[-most:] if keeps_end else ids[:most])


def test_minus_one_leaves_room_for_the_answer() -> None:
    for limit, most in ((NO_LIMIT, 99), (AnswerLimit.of(30), 70), (AnswerLimit.of(30)._replace(has_room=False), 99)):
        assert truncation_of(completion(truncate_prompt_tokens=-1), 100, limit) == Truncation(most, True)
    assert truncation_of(completion(truncate_prompt_tokens=-1), 100, AnswerLimit.of(500)) == Truncation(1, True)
    assert truncation_of(completion(truncate_prompt_tokens=7, truncation_side="right"), 100, NO_LIMIT) == (7, False)
    assert truncation_of(completion(), 100, NO_LIMIT) is None
    assert truncation_of(RerankPrompt(query="a", documents=["b"]), 100, NO_LIMIT) is None
    with pytest.raises(PromptError, match="at least 1, or -1"):
        truncation_of(completion(truncate_prompt_tokens=0), 100, NO_LIMIT)


def test_ids_of_a_client_have_no_frame() -> None:
    tokenizer = PromptTokenizer(bert_like("[CLS] $A [SEP]").to_str())
    assert tokenizer.frame == (1, 1)
    assert frame_of(completion(), False, tokenizer) == (0, 0)
    assert frame_of(completion(add_special_tokens=False), True, tokenizer) == (0, 0)
