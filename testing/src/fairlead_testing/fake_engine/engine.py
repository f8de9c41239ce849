"""The fake engine's HTTP side: paths, requests, refusals, and all its ways to misbehave."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, Self

import msgspec

from fairlead.routing.replica import Limits, Replica
from fairlead.simulator.loaded_adapters import LoadedAdapters
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_common.wire.adapters import split_adapter
from fairlead_common.wire.blocks import extra_bytes
from fairlead_common.wire.messages import (
    HEADER_CACHED_TOKENS,
    HEADER_DISPATCH,
    HEADER_REASON,
    HEADER_REQUEST_ID,
    PATH_DRAIN,
    PATH_KV_BLOCKS,
    PATH_KV_EVENTS,
    PATH_MODEL,
    REASON_DRAINING,
    REASON_ENGINE_DEAD,
    REASON_ENGINE_FULL,
    StepCost,
)
from fairlead_testing.fake_engine.answers import Answer, cut, error
from fairlead_testing.fake_engine.blocks_stream import BlocksStream
from fairlead_testing.fake_engine.core import FakeCore, FakeSequence
from fairlead_testing.fake_engine.loads import LoadTeller, Seen
from fairlead_testing.fake_engine.prompts import UnreadablePrompt, make_tokenizer, model_info, read_prompt
from fairlead_testing.http import HttpProgram, RecordedRequest, Responder

Pace = Callable[[int], Awaitable[None]]
"""Awaited before each token, with its index."""

DEFAULT_LIMITS = Limits(max_num_seqs=8, max_num_queued_tokens=1024, max_model_len=4096)


class Refusal(Enum):
    """Ways to turn every request down: (status, reason header, error code, sentence)."""

    FULL = (429, REASON_ENGINE_FULL, "engine_full", "The engine's queue is full.")
    DRAINING = (503, REASON_DRAINING, "draining", "The engine is draining.")
    DEAD = (500, "", "engine_dead", "The engine's core has died.")
    GONE = (503, REASON_ENGINE_DEAD, "engine_dead", "The engine's core had died before.")
    UNAVAILABLE = (503, "", "unavailable", "Something is not well.")


class Death(Enum):
    """When the connection is cut, as if the process had been killed."""

    BEFORE_HEADERS = -1
    AFTER_HEADERS = 0
    AFTER_ONE_TOKEN = 1


class FakeEngine(HttpProgram):
    """`async with FakeEngine() as engine:` and send requests to `engine.url`. Attributes may be changed at any time."""

    def __init__(
        self,
        name: str = "engine-0",
        *,
        served_name: str = "fake",
        adapters: Collection[str] | Mapping[str, float] = (),
        adapter_slots: int | None = None,
        tokens: tuple[str, ...] = ("Hello", ",", " world", "!"),
        limits: Limits = DEFAULT_LIMITS,
        num_kv_blocks: int = 1024,
        token_budget: int = 512,
        step_cost: StepCost | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        tokenizer: PromptTokenizer | None = None,
    ) -> None:
        """`adapters`: those that it serves, where it is told with the seconds that loading each takes; so many of them
        have a place at once as `adapter_slots` says (None = all).

        `tokens`: what it answers; with `ignore_eos` in a request again and again up to `max_tokens`.

        `limits`: beyond them it refuses as full, as a real one does; with `max_num_queued_tokens` 0 nothing waits.
        `step_cost`: what its steps take (None = nothing: prompts are read at once, and `pace` slows answers down).
        `port`: 0 = any free one. `tokenizer`: the one that it tells of; None = that which it uses.
        """
        super().__init__(host, port)
        self.tokenizer = tokenizer or make_tokenizer()
        self.name = name
        self.served_name = served_name
        seconds = adapters if isinstance(adapters, Mapping) else dict.fromkeys(adapters, 0.0)
        self.adapter_sources: dict[str, str] = {}
        """By name, the folder of each adapter that was loaded over HTTP."""
        self.adapter_troubles: dict[str, str] = {}
        """By folder, why it cannot be loaded."""
        self.adapter_gate = asyncio.Event()
        """While cleared, adapters are being loaded and none is."""
        self.adapter_gate.set()
        self.adapter_calls: list[tuple[str, str]] = []
        """What was asked for, `load` or `unload`, and the adapter's name."""
        self.tokens = tokens
        self.core = FakeCore(
            limits,
            num_blocks=num_kv_blocks,
            token_budget=token_budget,
            step_cost=step_cost,
            adapters=LoadedAdapters(seconds, adapter_slots),
        )
        self.seen = Seen()
        self.loads = LoadTeller(self.core, self.seen)
        self.refusal: Refusal | None = None
        self.death: Death | None = None
        self.pace: Pace | None = None
        """Slows tokens down, or stops them; None = all as soon as they are there."""
        self.gate = self.core.gate
        """While cleared, requests are taken and nothing is answered."""
        self.write_size: int | None = None
        """Cuts streams into writes of this many bytes, to the distress of careless readers; None = whole events."""
        self.null_usage = False
        """Whether chunks without usage say so with a null, as OpenAI's do."""
        self.is_listed = True
        """Whether /v1/models has it; a gateway's has not what is asleep."""
        self.drain_grace = 0.0
        """Seconds for which it still takes requests after it has said that it drains."""
        self.num_cached_tokens: int | None = None
        """What every answer says it found in the cache; None = the truth."""
        self.requests: list[RecordedRequest] = []
        """Every request to an inference path, refused ones too, unless they are not to be kept."""
        self.keeps_requests = True
        self.injected: list[tuple[str, dict[str, Any]]] = []
        """What was put into which answers."""
        self.num_running = 0
        """Requests taken and not finished, those that wait in the engine included."""
        self.num_finished = 0
        self.num_cancelled = 0
        """Requests whose client left before the end."""
        self._is_killed = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.listen()
        self._tasks = [asyncio.create_task(self.loads.run())]
        if self.core.step_cost.is_known:
            self._tasks.append(asyncio.create_task(self.core.run()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        self.stream.cut_followers()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def limits(self) -> Limits:
        """What it takes at once."""
        return self.core.limits

    @property
    def adapters(self) -> tuple[str, ...]:
        """Those that it serves."""
        return tuple(self.core.adapters.load_seconds)

    def load_adapter(self, name: str, seconds: float = 0.0) -> None:
        """From now on it serves this one, and says so at once."""
        self.core.adapters.load_seconds[name] = seconds
        self.loads.hurry()

    def unload_adapter(self, name: str) -> None:
        """From now on it does not serve it."""
        del self.core.adapters.load_seconds[name]
        self.loads.hurry()

    @property
    def stream(self) -> BlocksStream:
        """Its blocks by list and watch; the knobs of that are there."""
        return self.core.stream

    @property
    def hashes(self) -> set[bytes]:
        """What its cache holds."""
        return self.core.cache.hashes

    def replica(self, *, with_limits: bool = True) -> Replica:
        """This engine as the gateway knows it; without limits, before it was asked."""
        told = replace(self.limits, num_kv_blocks=self.core.cache.num_blocks)
        limits, digest = (told, self.tokenizer.digest) if with_limits else (None, "")
        adapters = frozenset(self.adapters if with_limits else ())
        return Replica(self.name, self.name, self.host, self.port, limits, digest=digest, adapters=adapters)

    def kill(self) -> None:
        """Stops listening and cuts every connection, as the death of the process does."""
        self._is_killed = True
        self.stop()
        self._cut_all()

    def restart(self) -> None:
        """As after a crash and a quick start: connections are cut, the cache is empty, and the epoch is another."""
        self._cut_all()
        self.seen.clear()
        self.core.restart()

    def drain(self) -> None:
        """Tells that it is draining, and after the grace refuses new requests; what runs goes on."""
        self.loads.drain()
        if self.drain_grace:
            asyncio.get_running_loop().call_later(self.drain_grace, self._refuse_as_draining)
        else:
            self._refuse_as_draining()

    def _refuse_as_draining(self) -> None:
        self.refusal = Refusal.DRAINING

    def _cut_all(self) -> None:
        self.stream.cut_followers()
        self.cut_connections()

    async def _answer(self, request: RecordedRequest, responder: Responder) -> None:
        if self._is_killed:
            responder.abort()
        else:
            await super()._answer(request, responder)

    async def _respond(self, request: RecordedRequest, responder: Responder) -> None:
        path, _, query = request.path.partition("?")
        if path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/rerank", "/tokenize"):
            if self.keeps_requests:
                self.requests.append(request)
            self.seen.came(request.headers.get(HEADER_DISPATCH))
            await (self._tokenize if path == "/tokenize" else self._infer)(request, responder)
        elif path.startswith("/v1/chat/completions/") and path.endswith("/inject"):
            await self._inject(path.split("/")[-2], request.json(), responder)
        elif path == "/health" or (path == "/ready" and not self.loads.draining):
            await responder.json(200, {"status": "ok"})
        elif path == "/ready":
            await responder.json(503, {"status": "draining"}, {HEADER_REASON: REASON_DRAINING})
        elif path == "/v1/models":
            entry = {"id": self.served_name, "object": "model", "max_model_len": self.limits.max_model_len}
            adapters = [
                {**entry, "id": f"{self.served_name}:{name}", "parent": self.served_name,
                 "root": self.adapter_sources.get(name)}
                for name in self.adapters
            ]  # fmt: skip
            await responder.json(200, {"object": "list", "data": [entry, *adapters] if self.is_listed else []})
        elif path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
            await self._change_adapters(path, request.json(), responder)
        elif path.startswith("/v1/models/"):
            await responder.json(404, error("There is no such model.", "invalid_request_error", "model_not_found"))
        elif path == PATH_MODEL:
            await responder.whole(200, msgspec.json.encode(self._model_info()))
        elif path == PATH_DRAIN:
            self.drain()
            await responder.json(202, {})
        elif path == PATH_KV_BLOCKS and self.stream.is_known:
            await self.stream.list(responder)
        elif path == PATH_KV_EVENTS and self.stream.is_known:
            await self.stream.watch(query, self.loads.load(), responder)
        else:
            self.stream.num_unknown += path in (PATH_KV_BLOCKS, PATH_KV_EVENTS)
            await responder.json(404, error("Not Found", "invalid_request_error"))

    async def _inject(self, answer_id: str, body: dict[str, Any], responder: Responder) -> None:
        """Takes it for any request that it has got, be it over."""
        if not any(f"chatcmpl-{each.headers.get(HEADER_REQUEST_ID)}" == answer_id for each in self.requests):
            await responder.json(404, error("It is not here.", "invalid_request_error", "answer_not_found"))
            return
        self.injected.append((answer_id, body))
        await responder.json(200, {"id": answer_id, "tool_call_id": body["tool_call_id"], "num_tokens": 3})

    async def _change_adapters(self, path: str, body: dict[str, Any], responder: Responder) -> None:
        name = body["lora_name"]
        verb = "unload" if "unload" in path else "load"
        self.adapter_calls.append((verb, name))
        if verb == "load" and (trouble := self.adapter_troubles.get(body["lora_path"])) is not None:
            await responder.json(400, error(trouble, "invalid_request_error", "adapter_invalid"))
            return
        if (verb == "load") == (name in self.adapters):
            trouble = f"the adapter {name!r} is there already; unload it first" if verb == "load" else "there is none"
            await responder.json(400, error(trouble, "invalid_request_error", "adapter_invalid"))
            return
        if verb == "load":
            await self.adapter_gate.wait()
            self.adapter_sources[name] = body["lora_path"]
            self.load_adapter(name)
        else:
            self.unload_adapter(name)
        await responder.json(200, {})

    async def _infer(self, request: RecordedRequest, responder: Responder) -> None:
        if self.refusal is not None:
            await _refuse(self.refusal, responder)
            return
        body, chat = request.json(), request.path.endswith("/chat/completions")
        try:
            prompt = read_prompt(body)
        except UnreadablePrompt as unreadable:
            await responder.json(400, error(str(unreadable), "invalid_request_error"))
            return
        _, adapter = split_adapter(str(body.get("model")), (self.served_name,))
        salt = body.get("cache_salt")
        extra = extra_bytes(adapter=adapter, cache_salt=salt if isinstance(salt, str) else None)
        tokens = self._tokens(body)
        sequence = self.core.sequence(prompt, len(tokens), extra, adapter)
        if self.core.refuses(sequence):
            await _refuse(Refusal.FULL, responder)
            return
        answer = Answer(
            engine=self.name, model=self.served_name, chat=chat, tokens=tokens, num_prompt_tokens=len(prompt)
        )
        self.num_running += 1
        try:
            await self._serve(body, sequence, answer, responder)
            self.num_finished += 1
        except (asyncio.CancelledError, ConnectionError):
            self.num_cancelled += 1
            raise
        finally:
            self.core.remove(sequence)
            self.num_running -= 1
            self.loads.changed()

    async def _tokenize(self, request: RecordedRequest, responder: Responder) -> None:
        if self.refusal is not None:
            await _refuse(self.refusal, responder)
            return
        try:
            ids = read_prompt(request.json())
        except UnreadablePrompt as unreadable:
            await responder.json(400, error(str(unreadable), "invalid_request_error"))
            return
        await responder.json(200, {"count": len(ids), "max_model_len": self.limits.max_model_len, "tokens": ids})

    def _tokens(self, body: dict[str, Any]) -> list[str]:
        """What it is going to say."""
        most = body.get("max_completion_tokens") or body.get("max_tokens")
        if body.get("ignore_eos") and most:
            return list(itertools.islice(itertools.cycle(self.tokens), most))
        return list(self.tokens[:most])

    async def _serve(self, body: dict[str, Any], sequence: FakeSequence, answer: Answer, responder: Responder) -> None:
        if (mistake := self._mistake(body, answer)) is not None:
            await responder.json(*mistake)
            return
        self.core.add(sequence)
        self.loads.changed()
        await self.gate.wait()
        if self.death is Death.BEFORE_HEADERS:
            responder.abort()
            return
        await sequence.until_ready(0)
        found = sequence.num_cached_tokens if self.num_cached_tokens is None else self.num_cached_tokens
        answer.num_cached_tokens = found
        headers = {HEADER_CACHED_TOKENS: str(found)}
        if body.get("stream"):
            await responder.start(200, {"content-type": "text/event-stream", **headers})
            include_usage = bool((body.get("stream_options") or {}).get("include_usage"))
            await self._stream(sequence, answer, include_usage, responder)
        else:
            for index in range(len(answer.tokens)):
                await self._before_token(sequence, index)
            whole = answer.whole()
            if "input" in body:
                whole = answer.embedding()
            elif "query" in body:
                whole = answer.ranking(len(body["documents"]))
            await responder.json(200, whole, headers)

    def _mistake(self, body: dict[str, Any], answer: Answer) -> tuple[int, dict[str, Any]] | None:
        base, adapter = split_adapter(str(body.get("model")), (self.served_name,))
        if base != self.served_name or (adapter is not None and adapter not in self.adapters):
            return 404, error(f"The model {body.get('model')!r} does not exist.", "invalid_request_error")
        if self.limits.max_model_len is not None and answer.num_prompt_tokens >= self.limits.max_model_len:
            return 400, error("The prompt is longer than the model's context.", "invalid_request_error")
        return None

    async def _stream(self, sequence: FakeSequence, answer: Answer, include_usage: bool, responder: Responder) -> None:
        for index, event in enumerate(self._events(answer, include_usage)):
            if self.death is not None and index == self.death.value:
                responder.abort()
                return
            if index < len(answer.tokens):
                await self._before_token(sequence, index)
            for piece in cut(event, self.write_size):
                await responder.chunk(piece)
        await responder.end()

    async def _before_token(self, sequence: FakeSequence, index: int) -> None:
        await sequence.until_ready(index)
        if self.pace is not None:
            await self.pace(index)

    def _events(self, answer: Answer, include_usage: bool) -> Iterator[bytes]:
        return answer.events(include_usage=include_usage, null_usage=self.null_usage)

    def _model_info(self) -> msgspec.Struct:
        core = self.core
        return model_info(
            self.served_name,
            core.limits,
            adapters=self.adapters,
            token_budget=core.token_budget,
            num_kv_blocks=core.cache.num_blocks,
            tokenizer=self.tokenizer,
        )


async def _refuse(refusal: Refusal, responder: Responder) -> None:
    status, reason, code, message = refusal.value
    headers = {HEADER_REASON: reason} if reason else {}
    await responder.json(status, error(message, "server_error", code), headers)
