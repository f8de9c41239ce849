"""Grammars that are made beside the server: within a time, short ones first, and kept within bytes."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from fairlead_engine.api.answers.answer_formats import TEXT_ONLY
from fairlead_engine.api.grammar_compiler import GrammarCompiler, KeptGrammars
from fairlead_engine.api.grammar_job import GrammarJob
from fairlead_engine.api.schemas import JsonSchemaFormat, ResponseFormat, StructuredOutputs
from fairlead_engine.api.structured_output import wish_of
from fairlead_engine.errors import RequestError
from fairlead_engine.host.workers import prompt_root
from fairlead_engine.types import Grammar

LONG = {"type": "object", "required": [f"n{index}" for index in range(200_000)]}
"""Takes a minute."""


def endless(times: int = 90) -> str:
    """A pattern that takes a second to compile."""
    return "^" + "(" * 6 + "a" + "{90})" * 5 + f"{{{times}}})$"


class Fields:
    """Of a request that wants a schema or a pattern kept to."""

    guided_json = guided_regex = guided_choice = guided_grammar = None

    def __init__(self, schema: dict[str, Any] | None = None, *, strict: bool = True, regex: str | None = None) -> None:
        wanted = JsonSchemaFormat(name="n", schema=schema, strict=strict)
        self.response_format = None if schema is None else ResponseFormat("json_schema", json_schema=wanted)
        self.structured_outputs = None if regex is None else StructuredOutputs(regex=regex)


def job(schema: dict[str, Any] | None = None, **more: Any) -> GrammarJob:
    return GrammarJob(wish_of(Fields(schema, **more)), None, TEXT_ONLY, (), False, 400).bare()


@pytest.fixture
async def make() -> AsyncIterator[Callable[[float], GrammarCompiler]]:
    root, made = prompt_root(), list[GrammarCompiler]()

    def make(timeout_seconds: float) -> GrammarCompiler:
        made.append(GrammarCompiler(root, timeout_seconds))
        return made[-1]

    yield make
    for each in made:
        each.close()
    root.close()


@pytest.fixture
async def compiler(make: Callable[[float], GrammarCompiler]) -> GrammarCompiler:
    return make(1.0)


async def test_what_schemas_say_to_people_tells_no_grammars_apart(compiler: GrammarCompiler) -> None:
    def described(text: str) -> dict[str, Any]:
        inner = {"const": 1, "title": text, "examples": [text], "readOnly": True}
        return {"type": "object", "description": text, "properties": {"a": inner, "title": {"default": text}}}

    first = await compiler.grammar(job(described("x")))
    assert await compiler.grammar(job(described("y" * 2_000_000))) is first
    assert compiler.kept.num_bytes < 2_000
    other = await compiler.grammar(job({"type": "object", "properties": {"title": {}, "a": {"const": 1}}}))
    assert other != first, "properties come in the schema's order"


def test_no_more_bytes_are_kept_than_may_be() -> None:
    kept = KeptGrammars(10_000)
    for index in range(50):
        kept.put(bytes([index]), Grammar("x" * 2_000))
        kept.put(bytes([index]), Grammar("y" * 2_000))
        assert kept.get(bytes([0])) is not None or index > 3
    assert kept.num_bytes <= 10_000
    assert kept.get(bytes([49])) is not None
    assert kept.get(bytes([40])) is None
    kept.put(b"large", Grammar("x" * 20_000))
    assert kept.get(b"large") is None
    assert kept.num_bytes == 0


async def test_what_takes_too_long_is_refused_by_the_limits_name(compiler: GrammarCompiler) -> None:
    with pytest.raises(RequestError, match="within 1 s, which is this server's grammar-timeout") as refused:
        await compiler.grammar(job(LONG))
    assert refused.value.field == "response_format.json_schema.schema"
    assert await compiler.grammar(job(regex="a")) is not None


async def test_what_is_not_strict_and_takes_too_long_is_relaxed(compiler: GrammarCompiler) -> None:
    found = await compiler.grammar(job(LONG, strict=False))
    assert found is not None
    assert "n199999" not in found.text
    assert '"type":"object"' in found.text.replace(" ", "")


async def test_short_grammars_go_before_long_ones(make: Callable[[float], GrammarCompiler]) -> None:
    compiler = make(60.0)
    long = [asyncio.create_task(compiler.grammar(job(regex=endless(90 + index)))) for index in range(3)]
    await asyncio.sleep(0.05)
    for index in range(5):
        assert await compiler.grammar(job(regex=f"[a-c]{{{index}}}z")) is not None
    assert not all(each.done() for each in long)
    for each in long:
        each.cancel()
    await asyncio.wait(long)
    assert await compiler.grammar(job({"enum": ["x" * 200 + str(index) for index in range(2_000)]})) is not None


async def test_a_process_that_dies_is_followed_by_another(compiler: GrammarCompiler) -> None:
    assert await compiler.grammar(job(regex="a")) is not None
    assert compiler._workers is not None
    os.kill(compiler._workers._quick.pid, signal.SIGKILL)  # type: ignore[union-attr]
    assert await compiler.grammar(job(regex="b")) is not None


async def test_a_process_that_crashes_is_not_told_as_slow(make: Callable[[float], GrammarCompiler]) -> None:
    compiler = make(600.0)
    asked = asyncio.create_task(compiler.grammar(job(LONG)))
    while compiler._workers is None or not compiler._workers._alone:
        await asyncio.sleep(0.01)
    os.kill(next(iter(compiler._workers._alone)).pid, signal.SIGSEGV)
    with pytest.raises(RequestError, match=r"did not survive it .*died") as refused:
        await asked
    assert "grammar-timeout" not in str(refused.value)
    assert await compiler.grammar(job(regex="a")) is not None


async def test_one_clients_slow_grammars_take_little_more_than_a_slice_each_of_anothers_time(
    make: Callable[[float], GrammarCompiler],
) -> None:
    """However many come at once, and however short their text is."""
    compiler = make(60.0)
    assert await compiler.grammar(job(regex="x")) is not None
    slow = [asyncio.create_task(compiler.grammar(job(regex=endless(90 + index)))) for index in range(10)]
    asked = asyncio.create_task(compiler.grammar(job(regex="[a-c]{3}")))
    await asyncio.wait([*slow, asked], return_when=asyncio.FIRST_COMPLETED)
    assert asked.done() and not any(each.done() for each in slow)
    for each in slow:
        each.cancel()
    await asyncio.wait(slow)


async def test_a_grammar_gets_no_more_memory_than_it_may_take(make: Callable[[float], GrammarCompiler]) -> None:
    compiler = make(600.0)
    enums = {f"n{a}": {"enum": [f"{a}{b}" for b in range(50)]} for a in range(20_000)}  # takes half a gigabyte
    with pytest.raises(RequestError, match=r"did not survive it \(.*(memory|died)"):
        await compiler.grammar(job({"type": "object", "properties": enums}))
    assert await compiler.grammar(job(regex="a")) is not None


async def test_over_http_a_grammar_that_takes_too_long_is_the_requests_fault(start_app: Any) -> None:
    app = start_app(grammar_timeout=0.5)
    schema = {"type": "object", "required": LONG["required"][:60_000]}
    error = (await app.chat(guided_json=schema)).json()["error"]
    assert (error["param"], error["type"]) == ("guided_json", "invalid_request_error")
    assert "grammar-timeout" in error["message"]
    assert (await app.chat(guided_regex="a")).status_code == 200
