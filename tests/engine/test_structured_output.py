"""Answers that keep to a grammar, on real models: whatever is drawn is allowed, and nobody else notices."""

import json
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers

from fairlead_engine import LLM
from fairlead_engine.api.schemas import CompletionRequest
from fairlead_engine.api.structured_output import grammar, wish_of
from fairlead_engine.core import grammars
from fairlead_engine.errors import RequestError
from fairlead_engine.types import FinishReason, Grammar, SamplingParams
from fairlead_engine_testing import make_request
from fairlead_engine_testing.byte_level import byte_level
from fairlead_engine_testing.checkpoints import write_random_checkpoint
from fairlead_engine_testing.json_schemas import UNSUPPORTED, random_schema
from fairlead_engine_testing.tiny_families.dense import llama_fields


def sentencepiece() -> tokenizers.Tokenizer:
    """As Llama 2 and Mistral have: spaces are ▁, and what is no piece falls back to bytes."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *'▁abcdefgh0123456789{}[]":,.-',
        "▁a",
        "12",
    ]
    merges = [("▁", "a"), ("1", "2")]
    tokenizer = tokenizers.Tokenizer(
        models.BPE({piece: index for index, piece in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def write_model(folder: Path, tokenizer: tokenizers.Tokenizer, eos: str = "</s>") -> Path:
    """Random weights for more ids than the tokenizer has, as many models have them."""
    size = tokenizer.get_vocab_size() + 45
    fields = llama_fields(vocab_size=size, eos_token_id=tokenizer.token_to_id(eos), max_position_embeddings=1024)
    write_random_checkpoint(folder, fields)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    merges = [("{", '"'), ('"', ":"), ("a", "b"), ("1", "2"), ("Ã", "¶"), ("t", "r"), ("tr", "u"), ("tru", "e")]
    return write_model(tmp_path_factory.mktemp("byte-level"), byte_level(["<s>", "</s>"], merges=merges))


@pytest.fixture
def load(folder: Path) -> Callable[..., LLM]:
    """An engine of that model."""
    settings = {"dtype": "float32", "num_threads": 1, "max_model_len": 512, "block_size": 4, "max_num_seqs": 8}
    return lambda **changes: LLM(str(folder), **{**settings, "kv_cache_memory": 2**22, **changes})


def kept_to(**fields: Any) -> Grammar:
    """The grammar of a request's fields."""
    wish = wish_of(msgspec.convert({"model": "m", "prompt": "", **fields}, CompletionRequest))
    assert wish is not None
    return grammar(wish)


def json_of(schema: dict[str, Any]) -> Grammar:
    return kept_to(guided_json=schema)


ALLOWED: dict[str, tuple[Callable[[], Grammar], Callable[[str], object]]] = {
    "regex": (lambda: kept_to(guided_regex=r"[a-f]{2,4}\d+!"), lambda text: re.fullmatch(r"[a-f]{2,4}\d+!", text)),
    "choice": (lambda: kept_to(guided_choice=["yes", 'n"o', "日本"]), lambda text: text in ("yes", 'n"o', "日本")),
    "lark": (
        lambda: kept_to(guided_grammar='start: "(" inner ")"\ninner: /[ab]/ | start'),
        lambda text: re.fullmatch(r"(\(+)[ab](\)+)", text) and text.count("(") == text.count(")"),
    ),
    "gbnf": (lambda: kept_to(guided_grammar='root ::= "a" [0-9] "z"'), lambda text: re.fullmatch(r"a[0-9]z", text)),
    "json": (
        lambda: json_of({"type": "object", "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}},
                         "required": ["a"], "additionalProperties": False}),
        lambda text: set(json.loads(text)) == {"a"},
    ),
    "multiple": (lambda: kept_to(guided_regex="(Ö|ö)+Ü"), lambda text: re.fullmatch("(Ö|ö)+Ü", text)),
}  # fmt: skip


@pytest.mark.parametrize("kind", ALLOWED)
def test_every_answer_keeps_to_its_grammar(kind: str, load: Callable[..., LLM]) -> None:
    make, is_allowed = ALLOWED[kind]
    llm, wanted = load(), make()
    samplings = [SamplingParams(temperature=0.0, max_tokens=200, grammar=wanted)]
    for seed in range(12):
        samplings.append(
            SamplingParams(temperature=1.5, top_p=0.9, seed=seed, max_tokens=200, grammar=wanted, logprobs=1)
        )
    for completion in llm.generate(["what?"] * len(samplings), samplings):
        if completion.finish_reason is FinishReason.STOP:
            assert is_allowed(completion.text), completion.text
        else:
            assert completion.finish_reason is FinishReason.LENGTH
    assert llm.engine.load.num_masks > 0


def test_a_sentencepiece_model_keeps_to_it_too(tmp_path: Path) -> None:
    llm = LLM(str(write_model(tmp_path, sentencepiece())), dtype="float32", num_threads=1, kv_cache_memory=2**20)
    schema = {"type": "object", "properties": {"ä": {"type": "string", "maxLength": 3}}, "required": ["ä"]}
    sampling = [
        SamplingParams(seed=seed, max_tokens=150, grammar=json_of({**schema, "additionalProperties": False}))
        for seed in range(8)
    ]
    ended = [each for each in llm.generate(["a"] * 8, sampling) if each.finish_reason is FinishReason.STOP]
    assert ended
    for completion in ended:
        jsonschema.validate(json.loads(completion.text), schema)


def test_log_probabilities_are_those_of_the_raw_logits(load: Callable[..., LLM]) -> None:
    llm = load()
    free = llm.generate(["ab"], SamplingParams(temperature=0.0, max_tokens=1, logprobs=20))[0]
    bound = llm.generate(
        ["ab"], SamplingParams(temperature=0.0, max_tokens=1, logprobs=20, grammar=kept_to(guided_choice=["q"]))
    )[0]
    assert bound.text == "q"
    assert bound.logprobs[0].top == pytest.approx(free.logprobs[0].top)
    assert bound.logprobs[0].logprob < 0.0


def test_who_ignores_the_end_goes_on_freely(load: Callable[..., LLM]) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, grammar=kept_to(guided_choice=["yes"]))
    [completion] = load().generate(["x"], params)
    assert completion.text.startswith("yes")
    assert (completion.finish_reason, len(completion.token_ids)) == (FinishReason.LENGTH, 30)


def test_a_minimum_length_holds_as_far_as_the_grammar_goes_on(load: Callable[..., LLM]) -> None:
    ends = {1: 100.0}
    params = [
        SamplingParams(temperature=0.0, max_tokens=50, min_tokens=9, logit_bias=ends, grammar=kept_to(**kept))
        for kept in ({"guided_regex": "[a-z]*"}, {"guided_regex": "[a-z]{5}"}, {"guided_choice": ["yes"]})
    ]
    for is_async in (False, True):
        found = load(async_scheduling=is_async).generate(["x"] * 3, params)
        assert [len(each.text) for each in found] == [9, 5, 3]
        assert {each.finish_reason for each in found} == {FinishReason.STOP}
        assert found[2].text == "yes"


@pytest.mark.parametrize("is_over", [True, False], ids=["there", "awaited"])
def test_steps_that_overlap_choose_the_same_tokens(is_over: bool, load: Callable[..., LLM]) -> None:
    """`awaited`: as on a device that is still at the step before when the next one is launched."""
    wanted = [None, *(make() for make, _ in ALLOWED.values())]
    samplings = [
        SamplingParams(temperature=temperature, seed=3, max_tokens=40, grammar=each)
        for each in wanted
        for temperature in (0.0, 1.2)
    ]
    alone = [load().generate([f"p{index}"], each)[0].token_ids for index, each in enumerate(samplings)]
    for is_async in (False, True):
        llm = load(async_scheduling=is_async, max_num_seqs=6, kv_cache_memory=2**18 + 2**14)
        if not is_over:
            llm.engine.runner.is_over = lambda launched: False
        together = llm.generate([f"p{index}" for index in range(len(samplings))], samplings)
        assert [each.token_ids for each in together] == alone
        llm.engine.check()


def test_large_grammars_are_not_kept_and_do_not_pile_up(
    load: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled, each takes many times its text: clients with ever other ones must not fill the memory."""
    monkeypatch.setattr(grammars, "_MOST_COMPILED_CHARACTERS", 100)
    monkeypatch.setattr(grammars, "_MOST_USED_CHARACTERS", 150)
    engine = load().engine

    def add(name: str, word: str, times: int = 60) -> FinishReason | None:
        refused = engine.add(make_request(name, max_tokens=3, grammar=Grammar(f'start: "{word * times}"')))
        return None if refused is None else refused.finish_reason

    assert add("alone", "a", 400) is None, "one alone is served, however large"
    assert add("beside", "b") is FinishReason.REJECTED
    engine.abort("alone")
    assert [add("one", "a"), add("two", "b"), add("same", "a")] == [None, None, None]
    assert add("three", "c") is FinishReason.REJECTED
    assert len(engine.grammars._compiled) == 1
    while engine.has_work():
        engine.step()
    assert add("three", "c") is None
    engine.check()


def test_what_takes_much_memory_is_not_kept(load: Callable[..., LLM], monkeypatch: pytest.MonkeyPatch) -> None:
    llm = load()
    sampling = [SamplingParams(max_tokens=2, grammar=kept_to(guided_regex=f"{letter}{{99}}")) for letter in "abc"]
    for each in sampling:
        llm.generate(["x"], each)
    kept = llm.engine.grammars
    assert len(kept._compiled) == len(kept._sizes) == 3
    monkeypatch.setattr(grammars, "_MOST_COMPILED_BYTES", 100)
    kept._sizes = dict.fromkeys(kept._sizes, 60)
    llm.generate(["x"], sampling[2])
    assert len(kept._compiled) == 1
    llm.generate(["x"], sampling[0])
    assert set(kept._sizes) <= set(kept._compiled)


def test_of_a_grammar_that_fails_its_reason_alone_is_kept(load: Callable[..., LLM]) -> None:
    llm, text = load(), 'start: <|tool|> "x"'
    for _ in range(2):
        [found] = llm.generate(["x"], SamplingParams(max_tokens=2, grammar=Grammar(text, "guided_grammar")))
        assert "<|tool|>" in (found.message or "")
    error = llm.engine.grammars._compiled[text].exception()
    while error is not None and error.__traceback__ is not None:
        assert "matcher" not in error.__traceback__.tb_frame.f_locals
        error.__traceback__ = error.__traceback__.tb_next


def test_a_grammar_that_takes_long_to_compile_keeps_nobody_else_waiting(load: Callable[..., LLM]) -> None:
    engine, may_go_on = load(max_num_seqs=1).engine, threading.Event()
    compile_it = engine.grammars._compile

    def compile_late(text: str) -> Any:
        may_go_on.wait()
        return compile_it(text)

    engine.grammars._compile = compile_late  # type: ignore[method-assign]
    yes = kept_to(guided_choice=["yes"])
    for name in ("bound", "left"):
        assert engine.add(make_request(name, max_tokens=9, grammar=yes)) is None
    assert engine.add(make_request("free", max_tokens=4)) is None
    ended: list[str] = []
    while "free" not in ended:
        ended += [output.request_id for output in engine.step() if output.finish_reason is not None]
    engine.step()
    engine.abort("left")
    assert ended == ["free"]
    assert engine.has_work()
    may_go_on.set()
    while engine.has_work():
        ended += [output.request_id for output in engine.step() if output.finish_reason is not None]
    assert ended == ["free", "bound"]
    engine.check()
    assert not engine.grammars._answers


def test_short_grammars_overtake_those_that_take_long_to_compile(load: Callable[..., LLM]) -> None:
    engine, may_go_on = load().engine, threading.Event()
    compile_it, slow = engine.grammars._compile, msgspec.structs.replace(kept_to(guided_choice=["no"]), is_slow=True)

    def compile_late(text: str) -> Any:
        if text == slow.text:
            may_go_on.wait()
        return compile_it(text)

    engine.grammars._compile = compile_late  # type: ignore[method-assign]
    assert engine.add(make_request("slow", max_tokens=9, grammar=slow)) is None
    assert engine.add(make_request("short", max_tokens=9, grammar=kept_to(guided_choice=["yes"]))) is None
    ended: list[str] = []
    while "short" not in ended:
        ended += [output.request_id for output in engine.step() if output.finish_reason is not None]
    assert ended == ["short"]
    may_go_on.set()
    while engine.has_work():
        ended += [output.request_id for output in engine.step() if output.finish_reason is not None]
    assert ended == ["short", "slow"]


@pytest.mark.parametrize(
    "first", [0, pytest.param(40, marks=pytest.mark.compute), pytest.param(160, marks=pytest.mark.compute)]
)
def test_answers_are_valid_by_schemas_of_every_shape(first: int, load: Callable[..., LLM]) -> None:
    """Drawn hot from random weights, where nothing but the grammar makes them so."""
    llm, schemas = load(max_num_seqs=16, max_model_len=1024), []
    for seed in range(first, first + (40 if first == 0 else 120)):
        schemas.append(random_schema(random.Random(seed)))
    samplings = [
        SamplingParams(temperature=draw.choice([0.0, 0.7, 1.5]), seed=seed, max_tokens=700, grammar=json_of(schema))
        for seed, schema in enumerate(schemas)
        for draw in [random.Random(seed)]
    ]
    num_ended = 0
    for schema, completion in zip(schemas, llm.generate(["{"] * len(schemas), samplings), strict=True):
        assert completion.finish_reason in (FinishReason.STOP, FinishReason.LENGTH), (schema, completion)
        if completion.finish_reason is FinishReason.STOP:
            num_ended += 1
            jsonschema.Draft202012Validator(schema).validate(json.loads(completion.text))
    assert num_ended > 0.8 * len(schemas)


@pytest.mark.parametrize("keyword", UNSUPPORTED)
@pytest.mark.parametrize("place", ["", ".properties.if", ".items[1].anyOf"])
def test_a_schema_that_cannot_be_kept_to_is_refused_by_its_keyword(keyword: str, place: str) -> None:
    schema = UNSUPPORTED[keyword]
    match place:
        case ".properties.if":
            schema = {"type": "object", "properties": {"if": schema, "not": {"type": "integer"}}}
        case ".items[1].anyOf":
            schema = {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "array", "items": schema}]}}
            place = ".items.anyOf[1].items"
    with pytest.raises(RequestError) as refused:
        wanted = {"name": "n", "schema": schema, "strict": True}
        kept_to(response_format={"type": "json_schema", "json_schema": wanted})
    assert refused.value.field == "response_format.json_schema.schema"
    assert f"{refused.value.field}{place}.{keyword} cannot" in refused.value.message
