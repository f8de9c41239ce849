"""PagedServer: what fakes of vLLM and SGLang have in common, in this process or (`run`) as one of its own.

OpenAI's API over a prefix cache of blocks that is told of in events, steps that take time, requests that end when their
client leaves, and a SIGTERM that cuts everything; SIGUSR1 cuts the event stream, SIGUSR2 opens it again. What each says
in words of its own is in its class.
"""

import argparse
import asyncio
import itertools
import json
import signal
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import uvloop

from fairlead.routing.replica import Limits
from fairlead_common.tokens.tokenizing import PromptTokenizer
from fairlead_common.wire.blocks import extra_bytes
from fairlead_common.wire.messages import StepCost
from fairlead_common.wire.own_paths import FORM_PATHS, OWN_PATHS
from fairlead_testing.block_publisher import BlockPublisher, Encoding
from fairlead_testing.fake_engine.answers import Answer
from fairlead_testing.fake_engine.core import FakeCore, FakeSequence
from fairlead_testing.fake_engine.prompts import make_tokenizer
from fairlead_testing.http import HttpProgram, RecordedRequest, Responder

DEFAULT_LIMITS = Limits(max_num_seqs=8, max_num_queued_tokens=10**9, max_model_len=4096)
"""Its queue has no end."""
DEFAULT_TOKENS = tuple(f" {index}" for index in range(16))


class PagedServer(HttpProgram):
    """`async with FakeVllm() as server:` and send requests to `server.url`. Attributes may be changed at any time."""

    kind: ClassVar[str]
    """As `fairlead-engine front --engine` calls it."""

    def __init__(
        self,
        *,
        served_name: str = "fake",
        tokenizer: PromptTokenizer | None = None,
        tokens: tuple[str, ...] = DEFAULT_TOKENS,
        limits: Limits = DEFAULT_LIMITS,
        num_kv_blocks: int = 1024,
        token_budget: int = 2048,
        step_cost: StepCost | None = None,
        events: str | None = None,
        replay: str | None = None,
        encoding: Encoding = Encoding.MAPS_IN_ARRAY,
        hashes_are_bytes: bool = False,
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        """`tokens`: what it answers, again and again up to `max_tokens`. `events`, `replay`: ZMQ's addresses. The rest
        is as for a `FakeEngine`."""
        super().__init__(host, port)
        self.served_name = served_name
        self.tokens = tokens
        self.core = FakeCore(limits, num_blocks=num_kv_blocks, token_budget=token_budget, step_cost=step_cost)
        self.publisher = BlockPublisher(
            self.core.cache, events, replay, encoding=encoding, hashes_are_bytes=hashes_are_bytes
        )
        self.core.stream = self.publisher  # type: ignore[assignment]  # it is told of steps in the same way
        self.requests: list[RecordedRequest] = []
        """Every request to an inference path."""
        self.num_cancelled = 0
        """Requests whose client left before the end."""
        self.is_loaded = True
        """Whether it answers anything."""
        self.is_warm = True
        """Whether its `/health` says that it is well."""
        self._tokenizer = tokenizer or make_tokenizer()
        self.counts = {"prompt_tokens": 0, "generation_tokens": 0}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self.publisher.open()
        if self.core.step_cost.is_known:
            self._tasks.append(asyncio.create_task(self.core.run()))
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def kill(self) -> None:
        """As the death of the process, and as SIGTERM: whatever runs is cut off."""
        self.cut()
        self.publisher.close()

    async def restart(self) -> None:
        """As after a crash: cut connections, an empty cache, events from 0."""
        self.kill()
        self.core.restart()
        await self.listen()
        self.publisher.open()

    async def _respond(self, request: RecordedRequest, responder: Responder) -> None:
        path = request.path.partition("?")[0]
        if not self.is_loaded:
            responder.abort()
        elif path in ("/v1/chat/completions", "/v1/completions"):
            self.requests.append(request)
            await self._infer(request, responder)
        elif path in OWN_PATHS[self.kind]:
            self.requests.append(request)
            await responder.json(200, {"text": "ahoy"} if path in FORM_PATHS else {"object": "list", "data": []})
        elif path == "/health":
            await responder.whole(200 if self.is_warm else 503, b"")
        elif path == "/metrics":
            text = "\n".join(self.metrics()) + "\n"
            await responder.whole(200, text.encode(), {"content-type": "text/plain; version=0.0.4"})
        elif path in (documents := self.documents()):
            await responder.json(200, documents[path])
        elif path == "/tokenize":
            ids = self._prompt(request.json())
            await responder.json(
                200, {"count": len(ids), "max_model_len": self.core.limits.max_model_len, "tokens": ids}
            )
        else:
            await responder.json(404, {"detail": "Not Found"})

    @abstractmethod
    def documents(self) -> Mapping[str, Any]:
        """What it says of itself, by path."""

    @abstractmethod
    def metrics(self) -> list[str]:
        """The lines of `/metrics`."""

    @abstractmethod
    def refusal(self, status: int, message: str, type: str) -> dict[str, Any]:
        """What it answers where it refuses."""

    def problem(self, body: Mapping[str, Any], num_prompt_tokens: int) -> str | None:
        """Why it refuses a request before it computes anything; None = it does not."""
        is_long = num_prompt_tokens >= (self.core.limits.max_model_len or 10**9)
        return "The prompt is longer than the model's context." if is_long else None

    def late_problem(self, body: Mapping[str, Any]) -> str | None:
        """Why it refuses a request once a stream has begun; None = it does not."""
        return None

    def answer(self, body: Mapping[str, Any], **facts: Any) -> Answer:
        """What it is going to say. `facts`: fields of the answer."""
        return Answer(**facts)

    def card(self) -> dict[str, Any]:
        """Its model, as `/v1/models` lists it."""
        return {"id": self.served_name, "object": "model", "max_model_len": self.core.limits.max_model_len}

    @property
    def usage(self) -> float:
        """Share of the cache that running sequences use."""
        return 1.0 - self.core.cache.num_free / self.core.cache.num_blocks

    async def _refuse(self, responder: Responder, status: int, message: str, type: str) -> None:
        await responder.json(status, self.refusal(status, message, type))

    def _prompt(self, body: Mapping[str, Any]) -> list[int]:
        if "messages" in body:
            return self._tokenizer.encode_chat(body["messages"], tools=body.get("tools"))
        prompt = body["prompt"]
        if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
            [prompt] = prompt
        if isinstance(prompt, str):
            return self._tokenizer.encode(prompt)
        if not all(isinstance(each, int) for each in prompt):
            raise TypeError("this fake takes one prompt")
        return list(prompt)

    async def _infer(self, request: RecordedRequest, responder: Responder) -> None:
        body, chat = request.json(), request.path.endswith("/chat/completions")
        if any(name.startswith("fairlead_") for name in body) or any(
            name.startswith("x-fairlead") for name in request.headers
        ):
            await self._refuse(responder, 400, "What is this?", "BadRequestError")  # nobody else's business
            return
        if body.get("model") != self.served_name:
            await self._refuse(responder, 404, f"The model `{body.get('model')}` does not exist.", "NotFoundError")
            return
        try:
            ids, salt = self._prompt(body), body.get("cache_salt")
            problem = self.problem(body, len(ids))
            most = int(body.get("max_completion_tokens") or body.get("max_tokens") or len(self.tokens))
            tokens = list(itertools.islice(itertools.cycle(self.tokens), most))
            facts = {"engine": self.kind, "model": self.served_name, "num_prompt_tokens": len(ids)}
            answer = None if problem else self.answer(body, chat=chat, tokens=tokens, **facts)
        except (LookupError, TypeError, ValueError, AttributeError) as error:  # pydantic refuses such bodies
            problem, answer = f"{type(error).__name__} {error}", None
        if answer is None:
            await self._refuse(responder, 400, problem or "", "BadRequestError")
            return
        extra = extra_bytes(cache_salt=salt)
        self.publisher.knows(ids, extra, salt)
        sequence = self.core.sequence(ids, len(tokens), extra)
        self.core.add(sequence)
        try:
            await self._serve(body, sequence, answer, responder)
        except (asyncio.CancelledError, ConnectionError):
            self.num_cancelled += 1
            raise
        finally:
            self.core.remove(sequence)

    async def _serve(
        self, body: Mapping[str, Any], sequence: FakeSequence, answer: Answer, responder: Responder
    ) -> None:
        is_streamed, problem = bool(body.get("stream")), self.late_problem(body)
        if problem is not None and not is_streamed:
            await self._refuse(responder, 400, problem, "BadRequestError")
            return
        if is_streamed:  # before anything is computed
            await responder.start(200, {"content-type": "text/event-stream; charset=utf-8"})
        if problem is not None:
            told = json.dumps(self.refusal(400, problem, "BadRequestError")).encode()
            await responder.chunk(b"data: " + told + b"\n\ndata: [DONE]\n\n")
            await responder.end()
            return
        await sequence.until_ready(0)
        answer.num_cached_tokens = sequence.num_cached_tokens
        self.counts["prompt_tokens"] += answer.num_prompt_tokens
        if not is_streamed:
            for index in range(len(answer.tokens)):
                await self._token(sequence, index)
            await responder.json(200, answer.whole())
            return
        wants_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        for index, event in enumerate(answer.events(include_usage=wants_usage, null_usage=False)):
            if index < len(answer.tokens):
                await self._token(sequence, index)
            await responder.chunk(event)
        await responder.end()

    async def _token(self, sequence: FakeSequence, index: int) -> None:
        await sequence.until_ready(index)
        self.counts["generation_tokens"] += 1


STEP_COST = StepCost(base=0.004, prefill_token=2e-5, decode_seq=2e-4)
LOAD_SECONDS = 0.5
"""How long loading the model takes."""


def run(kind: type[PagedServer], args: argparse.Namespace) -> None:
    """Until told to stop. `args`: `model`, a folder, and limits and addresses under vLLM's names."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(kind, args))


async def _serve(kind: type[PagedServer], args: argparse.Namespace) -> None:
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    await asyncio.sleep(LOAD_SECONDS)
    server = kind(
        served_name=args.served_model_name,
        tokenizer=PromptTokenizer.from_folder(args.model),
        limits=Limits(
            max_num_seqs=args.max_num_seqs,
            max_num_queued_tokens=10**9,
            block_size=args.block_size,
            max_model_len=args.max_model_len,
        ),
        token_budget=args.max_num_batched_tokens,
        step_cost=STEP_COST,
        events=args.events,
        replay=args.replay,
        host=args.host,
        port=args.port,
    )
    loop.add_signal_handler(signal.SIGUSR1, server.publisher.close)
    loop.add_signal_handler(signal.SIGUSR2, server.publisher.open)
    async with server:
        await stopped.wait()
