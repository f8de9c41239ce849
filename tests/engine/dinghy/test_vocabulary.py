"""The dinghy's tokenizer and chat template, as bundled."""

from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fairlead_engine.demo
from fairlead_common.openai.chat import ChatTemplateError
from fairlead_common.tokens.tokenizing import PromptTokenizer
from lessons.conversation import Split
from lessons.syllabus import draw_all
from training.vocabulary import BOS, CHAT_TEMPLATE, END, SPECIAL_TOKENS, train_tokenizer, vocabulary_texts

FOLDER = Path(fairlead_engine.demo.__file__).parent / "dinghy"


@pytest.fixture(scope="module")
def tokenizer() -> PromptTokenizer:
    return PromptTokenizer.from_folder(FOLDER)


@given(text=st.text())
@settings(deadline=None, max_examples=50)
def test_any_text_survives_the_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


def test_small_numbers_and_spaces_are_tokens_of_their_own(tokenizer):
    encoding = tokenizer.backend.encode("12 + 7", add_special_tokens=False)
    assert [token.replace("Ġ", " ") for token in encoding.tokens] == ["12", " ", "+ ", "7"]


def test_a_word_is_the_same_tokens_wherever_it_stands(tokenizer):
    word = tokenizer.encode("zorami", add_special_tokens=False)
    inside = tokenizer.encode('say "zorami" zorami', add_special_tokens=False)
    found = [start for start in range(len(inside)) if inside[start : start + len(word)] == word]
    assert len(found) == 2


def test_a_plain_prompt_begins_with_the_beginning_token(tokenizer):
    assert tokenizer.encode("hello")[0] == tokenizer.token_id(BOS)


def test_a_chat_begins_with_it_once(tokenizer):
    ids = tokenizer.encode_chat([{"role": "user", "content": "hello"}])
    assert ids[0] == tokenizer.token_id(BOS)
    assert ids.count(tokenizer.token_id(BOS)) == 1


def test_a_longer_chat_continues_the_shorter_ones_tokens(tokenizer):
    first = [{"role": "user", "content": "Hello"}]
    answered = [*first, {"role": "assistant", "content": "Ahoy!"}, {"role": "user", "content": "Who are you?"}]
    prompt = tokenizer.encode_chat(first)
    assert tokenizer.encode_chat(answered)[: len(prompt)] == prompt


def test_a_tool_call_reads_the_same_as_text_and_as_openais_object(tokenizer):
    text = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    function = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    question = {"role": "user", "content": "Weather in Paris?"}
    as_text = [question, {"role": "assistant", "content": text}]
    call = {"id": "1", "type": "function", "function": function}
    as_object = [question, {"role": "assistant", "content": None, "tool_calls": [call]}]
    assert tokenizer.render_chat(as_text) == tokenizer.render_chat(as_object)


def test_decoding_keeps_the_marks_of_a_tool_call(tokenizer):
    text = '<tool_call>{"name": "get_time"}</tool_call>'
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_an_unknown_role_is_refused_by_name(tokenizer):
    with pytest.raises(ChatTemplateError, match="captain"):
        tokenizer.render_chat([{"role": "captain", "content": "Aye"}])


def test_the_bundled_template_is_the_trainers(tokenizer):
    assert tokenizer.chat_template.source == CHAT_TEMPLATE


def test_training_the_tokenizer_twice_gives_the_same_one():
    texts = list(vocabulary_texts(islice(draw_all(Split.TRAIN, 0), 2000)))
    first, second = train_tokenizer(texts), train_tokenizer(texts)
    assert first.tokenizer_json == second.tokenizer_json
    assert [first.token_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))


def test_transformers_reads_the_same_tokenizer(tokenizer):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(FOLDER)
    messages = [{"role": "user", "content": "What is 17 + 25? Say zorami, please."}]
    rendered = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == tokenizer.render_chat(messages)
    assert theirs(rendered, add_special_tokens=False)["input_ids"] == tokenizer.encode_chat(messages)
    assert theirs.eos_token == END
