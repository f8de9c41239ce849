"""Tokenising for the HTTP process: a model's tokenizer and chat template run in processes of their own.

Both come with models and are programs: a process that exceeds its limits is ended, and only the request behind the job
is refused. Unlike a gateway, an engine never gives its tokenizer up. Quick jobs do not wait for slow ones.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from fairlead_common.openai.prompts import ChatPrompt, EncodedPrompt, PromptFields
from fairlead_common.workers.branch import WorkerError, WorkerExceeded, WorkerInterrupted
from fairlead_common.workers.limits import WorkerLimits
from fairlead_common.workers.pool import GivenUp, Workers
from fairlead_common.workers.root import WorkerRoot
from fairlead_engine.api import prompt_program
from fairlead_engine.api.prompt_program import Files, Ids, ModelShape, packed, unpacked
from fairlead_engine.errors import ModelLoadError, ModelLoadReason, NotReady, RequestError, start_error
from fairlead_engine.host.workers import PROMPT_PROGRAM, Loadable, tried
from fairlead_engine.types import SamplingParams

QUICK_BYTES = 24 * 1024
"""Largest job for the quick process: some ten milliseconds."""
_LIMITS = WorkerLimits(load_seconds=20.0, most_bytes=8 * 2**20)
_TRIES = 50
"""Tries to load a process that the system ends repeatedly."""

Result = TypeVar("Result")
Encode = Callable[[str], list[int]]


class Asked(Loadable, Protocol):
    """`Workers`, or a stand-in for them."""

    async def load(self) -> bytes: ...
    async def ask(self, job: bytes) -> bytes: ...
    async def ask_beside(self, job: bytes) -> bytes: ...
    def close(self) -> None: ...


MakeAsked = Callable[[bytes, int], Asked]
"""Called with the program's payload and the number of bytes of its files."""


class PromptWorkers:
    """Prompt workers of one HTTP process. Close them when done."""

    def __init__(self, name: str, root: WorkerRoot, make: MakeAsked | None = None) -> None:
        """`name`: of the model. `root`: of the processes. `make`: makes the executor of jobs; None = processes."""
        self._name = name
        self._root = root
        self._make = make or self._processes
        self._asked: Asked | None = None
        self._shape = ModelShape(0)

    def _processes(self, payload: bytes, num_bytes: int) -> Asked:
        name = f"the tokenizer or chat template of {self._name}"
        program, plain = f"{PROMPT_PROGRAM}:make", f"{PROMPT_PROGRAM}:make_plain"
        return Workers(
            self._root, name, program, payload, _LIMITS, plain_program=plain, num_bytes=num_bytes, gives_up=False
        )

    async def load(self, path: Path, template: str | None = None) -> None:
        """Loads a model's folder or file, with a template in place of the model's, before this process reads the same.
        Raises ModelLoadError."""
        tokenizer = path / "tokenizer.json" if path.is_dir() else path
        num_bytes = tokenizer.stat().st_size if tokenizer.is_file() and path.is_dir() else 64 * 2**20
        self._asked = self._make(msgspec.msgpack.encode(Files(str(path), chat_template=template)), num_bytes)
        for _ in range(_TRIES):
            try:
                problem = msgspec.msgpack.decode(await self._asked.load(), type=dict[str, str] | None)
            except WorkerInterrupted:
                continue
            except (WorkerError, WorkerExceeded) as error:
                text = f"{tokenizer}: this tokenizer or its chat template cannot be loaded: {error}"
                raise ModelLoadError(ModelLoadReason.TOKENIZER_INVALID, text) from error
            if problem is not None:
                raise start_error(**problem)
            return
        text = f"{tokenizer}: the process that loads this tokenizer is ended again and again"
        raise ModelLoadError(ModelLoadReason.TOKENIZER_INVALID, text)

    def serve(self, files: Files, shape: ModelShape) -> None:
        """`files`: loaded at the first need, unless `load` was called. `shape`: of the model."""
        self._shape = shape
        if self._asked is None:
            self._asked = self._make(msgspec.msgpack.encode(files), 0)

    async def formats(self, tool_call_parser: str, reasoning_parser: str) -> tuple[str, str] | None:
        """Names of the formats of calls and reasoning; None where finding out takes too much."""
        try:
            return await self._do("", tuple[str, str], "formats", tool_call_parser, reasoning_parser)
        except RequestError:
            return None

    async def prompts(self, fields: PromptFields) -> list[tuple[str, EncodedPrompt]]:
        """Each prompt of a request, with its place there. Raises `RequestError`."""
        found = await self._do(fields.FIELD, list[tuple[str, Ids, int | None]], "prompts", fields, self._shape)
        return [(place, EncodedPrompt(unpacked(ids), start)) for place, ids, start in found]

    async def result(self, chat: ChatPrompt, tool_call_id: str, content: str, mark: str) -> tuple[list[int], int]:
        """As `PromptProgram.result`. Raises `RequestError`."""
        job = ("result", chat, tool_call_id, content, mark, self._shape)
        ids, num_tokens = await self._do("content", tuple[Ids, int], *job)
        return unpacked(ids), num_tokens

    async def text(self, token_ids: Sequence[int]) -> str:
        """With special tokens. Raises `RequestError`."""
        return await self._do("tokens", str, "text", packed(token_ids))

    async def encoded(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of the model's own texts, without special tokens; empty for a text that cannot be encoded."""
        return [unpacked(ids) for ids, _ in await self._do("model", list[tuple[Ids, str]], "texts", texts)]

    async def sampling(self, make: Callable[[Encode], SamplingParams]) -> SamplingParams:
        """The result of `make`, which is called again once the texts that it encodes are known. Raises its errors."""
        known: dict[str, list[int] | str] = {}
        missing: list[str] = []

        def encode(text: str) -> list[int]:
            found = known.get(text)
            if found is None:
                missing.append(text)
                return [0]
            if isinstance(found, str):
                raise RuntimeError(found)
            return found

        while True:
            missing.clear()
            try:
                sampling = make(encode)
            except RequestError:
                if not missing:
                    raise
            if not missing:
                return sampling
            try:
                found = await self._do("", list[tuple[Ids, str]], "texts", missing)
            except RequestError as error:
                found = [(b"", error.message)] * len(missing)
            known |= {text: problem or unpacked(ids) for text, (ids, problem) in zip(missing, found, strict=True)}

    async def _do(self, field: str, kind: type[Result], job: str, *arguments: object) -> Result:
        """Answer of the job, of type `kind`. Raises `RequestError`, about `field` unless the program names another."""
        message = prompt_program.written(job, *arguments)
        if self._asked is None:
            raise NotReady
        asked = self._asked
        ask = asked.ask if len(message) <= QUICK_BYTES else asked.ask_beside
        try:
            answer = await tried(asked, lambda: ask(message))
        except (WorkerError, WorkerExceeded, GivenUp) as error:
            which = "the tokenizer or chat template of this model cannot be used"
            raise RequestError(field, f"{field}: {which} for this: {error}".removeprefix(": ")) from error
        refusal, found = msgspec.msgpack.decode(answer, type=tuple[prompt_program.Refusal | None, kind | None])  # type: ignore[valid-type]
        if refusal is not None:
            raise RequestError(*refusal)
        return found  # type: ignore[return-value]

    def close(self) -> None:
        if self._asked is not None:
            self._asked.close()
