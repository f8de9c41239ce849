"""Text and log-probabilities of vocabularies in SentencePiece's manner: exactly what transformers decodes."""

import json
from functools import cache
from itertools import chain
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers

from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine.api.token_text import Vocabulary
from fairlead_engine.types import EngineRequest, FinishReason, SequenceOutput, TokenLogprobs
from fairlead_engine_testing import ScriptedEngine

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_WORDS = ["the", "fox", "runs", "é", "s", "a", ".", "SPACE", "SPACESPACE", "SPACEfox", "SPACEruns", "SPACE9", "SPACEé"]
WORDS = [word.replace("SPACE", SPACE) for word in _WORDS]
SPECIAL = ["<s>", "</s>", "[INST]"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
VOCABULARY = [*SPECIAL, *BYTES, *WORDS]
ID = {token: token_id for token_id, token in enumerate(VOCABULARY)}


def llama2() -> PromptTokenizer:
    """As Llama 2's: spaces as blocks, bytes where there is no token, the first space of a text dropped."""
    tokenizer = tokenizers.Tokenizer(models.BPE(ID, [], unk_token="</s>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(SPECIAL)
    return PromptTokenizer(tokenizer.to_str())


def metaspace() -> PromptTokenizer:
    """As T5's and the first Mistral's conversions."""
    tokenizer = tokenizers.Tokenizer(models.Unigram([(token, -1.0) for token in VOCABULARY], 1, False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(SPECIAL)
    return PromptTokenizer(tokenizer.to_str())


TOKENIZERS = {"llama2": llama2(), "metaspace": metaspace()}
by_name = pytest.mark.parametrize("name", TOKENIZERS)
ids = st.lists(
    st.sampled_from([ID[word] for word in WORDS]) | st.sampled_from([ID[word] for word in SPECIAL]), max_size=8
)
characters = st.sampled_from("é日🚢").map(lambda text: [ID[f"<0x{byte:02X}>"] for byte in text.encode()])
outputs = st.lists(ids | characters, min_size=1, max_size=8).map(lambda parts: [*chain(*parts)])


@cache
def reference(name: str) -> Any:
    """The same tokenizer as transformers has it."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=TOKENIZERS[name].backend,
        bos_token="<s>",
        eos_token="</s>",
        clean_up_tokenization_spaces=False,
    )


@by_name
@settings(deadline=None, max_examples=50)
@given(prompt=ids, output=outputs, skip=st.booleans())
def test_the_text_is_that_of_the_whole_without_the_prompts(
    name: str, prompt: list[int], output: list[int], skip: bool
) -> None:
    tokenizer = TOKENIZERS[name]
    decode = reference(name).decode
    before, whole = (decode(each, skip_special_tokens=skip) for each in (prompt, prompt + output))
    assert whole.startswith(before)
    stream = Vocabulary(tokenizer).stream(after=prompt, skip_special_tokens=skip)
    assert "".join(map(stream.push, output)) + stream.finish() == whole[len(before) :]


@by_name
def test_a_tokens_own_text_keeps_its_space_and_its_byte(name: str) -> None:
    vocabulary = Vocabulary(TOKENIZERS[name])
    assert vocabulary.token_text(ID[f"{SPACE}fox"]) == " fox"
    assert vocabulary.token_text(ID[SPACE]) == " "
    assert vocabulary.token_text(ID["fox"]) == "fox"
    assert vocabulary.token_text(ID["</s>"]) == "</s>"
    assert vocabulary.token_bytes(ID["é"]) == "é".encode()
    assert vocabulary.token_bytes(len(VOCABULARY) + 9) == b""


@by_name
def test_tokens_without_text_do_not_pile_up(name: str) -> None:
    """Each is decoded with what is pending: were that all of them, a long answer would cost its length squared."""
    stream = Vocabulary(TOKENIZERS[name]).stream(skip_special_tokens=True)
    longest = 0
    for _ in range(200):
        assert stream.push(ID["[INST]"]) == ""
        longest = max(longest, len(stream._pending))
    assert longest <= 17
    assert stream.push(ID["fox"]) + stream.finish() == "fox"


def test_a_byte_token_stands_for_its_byte() -> None:
    vocabulary = Vocabulary(TOKENIZERS["llama2"])
    assert b"".join(vocabulary.token_bytes(ID[f"<0x{byte:02X}>"]) for byte in "🚢".encode()) == "🚢".encode()


def _choices(reply: Any, stream: bool) -> list[dict[str, Any]]:
    if not stream:
        return [reply.json()["choices"][0]]
    return [json.loads(line[6:])["choices"][0] for line in reply.text.splitlines() if line.startswith("data: {")]


async def test_echo_makes_the_text_of_a_prompt_once_for_all_its_choices(
    start_app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, lengths, decode = start_app(), [], PromptTokenizer.decode

    def spy(self: PromptTokenizer, token_ids: Any, **options: Any) -> str:
        lengths.append(len(token_ids))
        return decode(self, token_ids, **options)

    monkeypatch.setattr(PromptTokenizer, "decode", spy)
    reply = (await app.complete(prompt=[[65] * 200, [66] * 201], n=8, echo=True, max_tokens=1)).json()
    assert len({choice["text"] for choice in reply["choices"]}) == 2
    assert (lengths.count(200), lengths.count(201)) == (1, 1)


SHIP = [ID[f"<0x{byte:02X}>"] for byte in "🚢".encode()]
ECHOED = {
    "whole in the answer": ([ID["the"], *SHIP[:2]], [*SHIP[2:], ID["fox"]]),
    "one byte of it": ([ID["the"], *SHIP[:1]], [*SHIP[1:], ID[f"{SPACE}fox"]]),
    "behind another character": ([ID["the"], ID["é"], ID["<0xC3>"], ID["<0xA9>"], *SHIP[:3]], [*SHIP[3:], ID["fox"]]),
    "nothing but its beginning": (SHIP[:3], SHIP[3:]),
    "never whole": ([ID["the"], *SHIP[:2]], [ID["fox"], ID["s"]]),
    "not begun": ([ID["<s>"], ID[f"{SPACE}fox"]], [*SHIP, ID["fox"]]),
    "with markup in it": ([ID["the"], *SHIP[:2], ID["[INST]"]], [*SHIP[2:], ID["fox"]]),
}


@pytest.mark.parametrize("case", ECHOED)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_echoed_prompt_may_end_inside_a_character(start_app: Any, case: str, stream: bool) -> None:
    prompt, answer = ECHOED[case]

    def entry(token_id: int) -> TokenLogprobs:
        return TokenLogprobs(token_id, -0.5, [(token_id, -0.5)])

    def script(request: EngineRequest) -> list[SequenceOutput]:
        made = [
            SequenceOutput(request_id=request.request_id, new_token_ids=[token_id], logprobs=[entry(token_id)])
            for token_id in answer
        ]
        made[0].prompt_logprobs = [entry(token_id) for token_id in prompt[1:]]
        made[-1].finish_reason = FinishReason.LENGTH
        return made

    app = start_app(ScriptedEngine(script), tokenizer=TOKENIZERS["llama2"])
    choices = _choices(await app.complete(prompt=prompt, logprobs=1, echo=True, stream=stream), stream)
    text = "".join(choice["text"] for choice in choices)
    decode = reference("llama2").decode
    assert text == decode(prompt + answer, skip_special_tokens=True)
    told = [choice["logprobs"] for choice in choices if choice["logprobs"]]
    offsets = [offset for each in told for offset in each["text_offset"]]
    assert len(offsets) == len(prompt + answer) == sum(len(each["tokens"]) for each in told)
    whole = ""
    for number, offset in enumerate(offsets):
        before = decode((prompt + answer)[:number], skip_special_tokens=True).rstrip("\N{REPLACEMENT CHARACTER}")
        whole = max(whole, before, key=len)  # behind a broken byte the ones before it are shown as broken, too
        assert text[:offset] == whole, (number, offset)


@by_name
@settings(deadline=None, max_examples=50)
@given(tokens=outputs, cut=st.integers(0, 40))
@example(tokens=[198, 172] * 5 + [243, 162, 157, 165] * 2, cut=17)  # so far back that a character is cut there, too
def test_a_text_cut_anywhere_joins_to_that_of_the_whole(name: str, tokens: list[int], cut: int) -> None:
    vocabulary, prompt, answer = Vocabulary(TOKENIZERS[name]), tokens[:cut], tokens[cut:]
    stream = vocabulary.stream(after=prompt)
    text = vocabulary.text_before(prompt, skip_special_tokens=True)
    joined = text + "".join(map(stream.push, answer)) + stream.finish()
    assert joined == reference(name).decode(tokens, skip_special_tokens=True)


@pytest.mark.parametrize("name", [each for each in TOKENIZERS if each != "metaspace"])
@pytest.mark.parametrize("text", ["fox", " fox", "é", "A", ""])
@pytest.mark.parametrize("begun", [b"\xe2", b"\xf0\x9f", b"\xc3"])
def test_a_prompt_that_ends_within_a_character_leaves_nothing_of_it_in_the_answer(
    name: str, begun: bytes, text: str
) -> None:
    vocabulary = Vocabulary(TOKENIZERS[name])
    words = {"fox": ["fox"], " fox": [f"{SPACE}fox"], "é": ["<0xC3>", "<0xA9>"], "A": ["<0x41>"], "": []}[text]
    prompt = [ID["fox"], *(ID[f"<0x{byte:02X}>"] for byte in begun)]
    stream = vocabulary.stream(after=prompt, tells_begun=False)
    assert "".join(stream.push(ID[word]) for word in words) + stream.finish() == text
    stream = vocabulary.stream(after=[ID["fox"], ID["<0xC3>"]], tells_begun=False)
    assert stream.push(ID["<0xA9>"]) + stream.finish() == "é", "it goes on"
