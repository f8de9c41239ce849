"""FakeLlama: llama.cpp's server as others see it, with no model behind it: OpenAI's API, `/props`, metrics, and slots
that each keep the sequence that they computed last.

`python -m fairlead_testing.fake_llama --model FILE --…` takes llama-server's flags and is one as a process of its own.
"""

import argparse
import asyncio
import itertools
import signal
from pathlib import Path
from typing import Any, Self

import uvloop

from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_engine.model.tokenizer_files import read_tokenizer
from fairlead_testing.fake_engine.answers import Answer
from fairlead_testing.fake_engine.prompts import make_tokenizer
from fairlead_testing.http import HttpProgram, RecordedRequest, Responder

BUILD = "b7777-fake"
TOKENS = tuple(f" {index}" for index in range(16))
LEAST_SHARE = 0.1


class _Slot:
    def __init__(self) -> None:
        self.ids: list[int] = []
        self.is_busy = False


class FakeLlama(HttpProgram):
    """`async with FakeLlama() as llama:` and send requests to `llama.url`. Attributes may be changed at any time."""

    def __init__(
        self,
        *,
        served_name: str = "fake",
        tokenizer: PromptTokenizer | None = None,
        num_slots: int = 4,
        slot_context: int = 4096,
        step_seconds: float = 0.0,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        super().__init__(host, port)
        self.served_name = served_name
        self.slot_context = slot_context
        self.step_seconds = step_seconds
        self.is_loaded = True
        """Whether it answers other than that it loads."""
        self.is_stuck = False
        """Whether a step takes for ever: metrics are not answered, `/health` is."""
        self.num_cancelled = 0
        self._tokenizer = tokenizer or make_tokenizer()
        self._slots = [_Slot() for _ in range(num_slots)]
        self._changed = asyncio.Condition()
        self._counts = {"prompt_tokens": 0, "tokens_predicted": 0}
        self._num_deferred = 0

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()

    async def _respond(self, request: RecordedRequest, responder: Responder) -> None:
        path = request.path.partition("?")[0]
        if not self.is_loaded:
            await responder.json(503, _error(503, "Loading model", "unavailable_error"))
        elif path in ("/v1/chat/completions", "/v1/completions"):
            await self._infer(request, responder)
            if request.json().get("stream"):  # it closes the connection, which no header has said
                await asyncio.sleep(0.01)
                raise ConnectionResetError
        elif path == "/health":
            await responder.json(200, {"status": "ok"})
        elif path == "/props":
            settings = {"n_ctx": self.slot_context, "params": {}}
            props = {"default_generation_settings": settings, "total_slots": len(self._slots), "build_info": BUILD}
            await responder.json(200, props)
        elif path == "/v1/models":
            card = {"id": self.served_name, "aliases": [self.served_name], "owned_by": "llamacpp"}
            await responder.json(200, {"object": "list", "data": [card]})
        elif path == "/metrics":
            while self.is_stuck:
                await asyncio.sleep(0.05)
            await responder.whole(200, self._metrics().encode(), {"content-type": "text/plain; version=0.0.4"})
        else:
            await responder.json(404, _error(404, "File Not Found", "not_found_error"))

    async def _infer(self, request: RecordedRequest, responder: Responder) -> None:
        body, chat = request.json(), request.path.endswith("/chat/completions")
        prompt = body["messages"] if chat else body["prompt"]
        ids = (
            self._tokenizer.encode_chat(prompt) if chat
            else prompt if isinstance(prompt, list) else self._tokenizer.encode(prompt)
        )  # fmt: skip
        if len(ids) >= self.slot_context:
            await responder.json(400, _error(400, "the request exceeds the context size", "exceed_context_size_error"))
            return
        most = body.get("max_completion_tokens") or body.get("max_tokens") or len(TOKENS)
        tokens = list(itertools.islice(itertools.cycle(TOKENS), most))
        answer = Answer(engine="llama", model=self.served_name, chat=chat, tokens=tokens, num_prompt_tokens=len(ids))
        slot = await self._taken(ids)
        try:
            answer.num_cached_tokens = min(_num_common(slot.ids, ids), len(ids) - 1)
            self._counts["prompt_tokens"] += len(ids) - answer.num_cached_tokens
            slot.ids = ids
            await self._serve(body, answer, responder)
        except (asyncio.CancelledError, ConnectionError):
            self.num_cancelled += 1
            raise
        finally:
            slot.is_busy = False
            self._slots.append(self._slots.pop(self._slots.index(slot)))
            async with self._changed:
                self._changed.notify_all()

    async def _taken(self, ids: list[int]) -> _Slot:
        """The free one that is most alike, if a tenth is; else the one that was used least recently."""
        self._num_deferred += 1
        try:
            async with self._changed:
                await self._changed.wait_for(lambda: not all(slot.is_busy for slot in self._slots))
            free = [slot for slot in self._slots if not slot.is_busy]
            best = max(free, key=lambda slot: _num_common(slot.ids, ids))
            chosen = best if _num_common(best.ids, ids) > LEAST_SHARE * len(ids) else free[0]
            chosen.is_busy = True
            return chosen
        finally:
            self._num_deferred -= 1

    async def _serve(self, body: Any, answer: Answer, responder: Responder) -> None:
        if not body.get("stream"):
            for _ in answer.tokens:
                await self._token()
            await responder.json(200, answer.whole())
            return
        await responder.start(200, {"content-type": "text/event-stream"})
        wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        for index, event in enumerate(answer.events(include_usage=wants_usage, null_usage=False)):
            if index < len(answer.tokens):
                await self._token()
            await responder.chunk(event)
        await responder.end()

    async def _token(self) -> None:
        await asyncio.sleep(self.step_seconds)
        self._counts["tokens_predicted"] += 1

    def _metrics(self) -> str:
        gauges = {
            "requests_processing": sum(slot.is_busy for slot in self._slots),
            "requests_deferred": self._num_deferred,
        }
        lines = [f"llamacpp:{name}_total {count}" for name, count in self._counts.items()]
        return "\n".join([*lines, *(f"llamacpp:{name} {value}" for name, value in gauges.items())]) + "\n"


def _error(code: int, message: str, kind: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "type": kind}}


def _num_common(held: list[int], ids: list[int]) -> int:
    pairs = enumerate(zip(held, ids, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(held), len(ids)))


def parser() -> argparse.ArgumentParser:
    """Of llama-server's flags, those that a pod gives."""
    made = argparse.ArgumentParser("llama-server", description=__doc__, allow_abbrev=False)
    for flag in ("--model", "--alias", "--host"):
        made.add_argument(flag, required=True)
    for flag in ("--port", "--ctx-size", "--parallel"):
        made.add_argument(flag, type=int, required=True)
    for flag in (
        "--batch-size",
        "--cache-ram",
        "--cache-type-k",
        "--cache-type-v",
        "--reasoning-format",
        "--chat-template",
        "--threads",
    ):
        made.add_argument(flag)
    for flag in ("--no-kv-unified", "--cache-prompt", "--no-cache-prompt"):
        made.add_argument(flag, action="store_true")
    made.add_argument("--metrics", action="store_true", required=True)
    return made


async def serve(args: argparse.Namespace) -> None:
    """Until told to stop."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    llama = FakeLlama(
        served_name=args.alias,
        tokenizer=read_tokenizer(Path(args.model)),
        num_slots=args.parallel,
        slot_context=(args.ctx_size or 4096) // args.parallel,
        step_seconds=0.004,
        host=args.host,
        port=args.port,
    )
    async with llama:
        await stopped.wait()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(parser().parse_args()))
