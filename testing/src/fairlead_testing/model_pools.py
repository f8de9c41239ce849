"""A model's pool in virtual time: replicas, loads and prompts are given, what becomes of requests is written down.

For tests of the waiting line, without sockets. Play them with `fairlead_testing.clock.in_virtual_time`.
"""

import asyncio
from collections.abc import Collection, Iterable
from typing import Any, cast

from fairlead.fleet.directory import Pool
from fairlead.gateway.dispatch.admission import ModelPool, Shared
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.openai.errors import OpenAIError
from fairlead.gateway.openai.parse import InferenceRequest
from fairlead.gateway.prompts.reader import PromptReader, ReadPrompt, Tokenizers
from fairlead.routing.datastore import Datastore
from fairlead.routing.prompt import Tokens
from fairlead.routing.replica import Limits, Load, Replica
from fairlead_testing.gateways import make_pool

ONE = Limits(max_num_seqs=1, max_num_queued_tokens=0)


def replica(uid: str = "a", limits: Limits | None = ONE, digest: str = "?", adapters: Collection[str] = ()) -> Replica:
    return Replica(
        uid=uid, name=uid, host="127.0.0.1", port=8000, limits=limits, digest=digest, adapters=frozenset(adapters)
    )


def pool_of(*replicas: Replica, **model: Any) -> Pool:
    return make_pool(replicas, **{"max_queue_time": 30.0, "cold_start_timeout": 600.0, **model})


def load(time: float, **figures: Any) -> Load:
    """Of an idle replica with one slot and four blocks, but for `figures`."""
    idle = {"running": 0, "waiting": 0, "queued_prefill_tokens": 0, "kv_blocks_free": 4, "kv_blocks_total": 4}
    return Load(**{"time": time, **idle, "kv_tokens": 0, "token_budget": 64, "max_num_seqs": 1, **figures})


def request(name: str, num_bytes: int = 1, priority: int = 0, model: str = "fake") -> InferenceRequest:
    return InferenceRequest(
        request_id=name,
        path="/v1/completions",
        model=model,
        stream=False,
        wants_usage=False,
        fields={},
        priority=priority,
        num_bytes=num_bytes,
    )


class FakeReader:
    """Stands for tokenizers and reader: takes its time, and notes what it has read."""

    def __init__(self, *digests: str, seconds: float = 0.0, num_tokens: int = 10) -> None:
        """`digests`: the tokenizers it knows. `seconds`: what reading takes."""
        self.digests = digests
        self.seconds = seconds
        self.num_tokens: dict[str, int] = {}
        """By request, where it is not the usual."""
        self.usual_num_tokens = num_tokens
        self.read_log: list[tuple[str, str]] = []
        """Request and digest."""

    def get(self, digest: str) -> object | None:
        return object() if digest in self.digests else None

    def problem(self, digest: str) -> None:
        """There is none."""

    async def read(
        self, request: InferenceRequest, digests: Iterable[str], prompt: ReadPrompt | None = None, **_: Any
    ) -> ReadPrompt:
        prompt = prompt or ReadPrompt(adapter=request.adapter)
        name = request.request_id
        prompt.num_tokens = self.num_tokens.get(name, self.usual_num_tokens)
        for digest in sorted(digests):
            self.read_log.append((name, digest))
            await asyncio.sleep(self.seconds)
            prompt.by_digest[digest] = (Tokens(range(prompt.num_tokens)),)
        return prompt


class Room:
    """A ModelPool and what became of its requests: (name, outcome, virtual seconds)."""

    def __init__(self, pool: Pool, reader: FakeReader | None = None, **settings: Any) -> None:
        self.datastore = Datastore()
        self.reader = reader or FakeReader()
        self.num_urgent = 0
        shared = Shared(
            GatewaySettings(**settings),
            "gateway",
            self.datastore,
            cast(Tokenizers, self.reader),
            cast(PromptReader, self.reader),
        )
        self.model_pool = ModelPool(pool, shared, self._count_urgent)
        self.log: list[tuple[str, str, float]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def ask(
        self, name: str, *, seconds: float = 0.0, num_bytes: int = 1, priority: int = 0, model: str = "fake"
    ) -> asyncio.Task[None]:
        """Asks for a turn and keeps it for `seconds`."""
        task = asyncio.create_task(self._ask(name, seconds, request(name, num_bytes, priority, model)))
        self.tasks.append(task)
        return task

    def tell(self, uid: str, **figures: Any) -> None:
        """A load line of this replica comes."""
        told = load(self.model_pool.now(), **figures)
        self.datastore.loaded(uid, told)
        self.model_pool.load_changed(uid, told)

    async def _ask(self, name: str, seconds: float, asked: InferenceRequest) -> None:
        try:
            ticket = self.model_pool.ticket(asked)
            await self.model_pool.tokenize(ticket)
            async with self.model_pool.admit(ticket) as attempt:
                self.log.append((name, attempt.decision.replica.uid, self.model_pool.now()))
                await asyncio.sleep(seconds)
                attempt.accepted()
        except OpenAIError as error:
            self.log.append((name, str(error.code), self.model_pool.now()))

    async def end(self) -> list[tuple[str, str, float]]:
        """Everything that happened, after everybody is done; nothing may be left behind."""
        results = await asyncio.gather(*self.tasks, return_exceptions=True)
        assert not [result for result in results if isinstance(result, Exception)]
        await asyncio.sleep(0)
        self.model_pool.queue.check()
        self.model_pool.router.in_flight.check()
        assert len(self.model_pool.queue) == 0
        assert self.model_pool.router.in_flight.total == 0
        assert not len(self.model_pool.queue)
        assert self.model_pool.prompts._reading is None
        return self.log

    def _count_urgent(self) -> None:
        self.num_urgent += 1
