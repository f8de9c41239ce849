"""Tasks of a joined replica: asking its engine for limits and tokenizer, and following its stream until the replica
leaves.

Limits go into the `Replica`; the tokenizer goes to a `TokenizerBook`.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Protocol

import msgspec

from fairlead.fleet.engine_stream import EngineListener, ReplicaStream
from fairlead.kube.backoff import Backoff
from fairlead.routing.replica import Limits, Load, Replica
from fairlead_common.http.client import HttpClient, TimeLimits
from fairlead_common.http.client_connection import TransportError, cause_of
from fairlead_common.http.loop_shares import LoopShares
from fairlead_common.http.origin import Origin
from fairlead_common.wire.messages import MAX_ADAPTERS, PATH_MODEL, ModelBrief, ShortText

logger = logging.getLogger(__name__)

TIMEOUT_SECONDS = 5.0
FIRST_BACKOFF_SECONDS = 0.2
LAST_BACKOFF_SECONDS = 10.0
MAX_REQUESTS = 2
"""At once, until their tokenizers are loaded, as answers are as large. Engines serve requests meanwhile."""
ADAPTERS_GAP_SECONDS = 0.5
MAX_INFO_BYTES = 48 * 2**20
"""The largest tokenizers of public models have some 35 MiB, 40 as JSON text. In such an answer, finding the gateway's
few fields takes 20 to 80 ms."""
MAX_ADAPTERS_BYTES = 2**20

OnKnown = Callable[[Replica], None]
"""Called with the replica completed by its engine's limits, and again when its adapters change."""


class TokenizerBook(Protocol):
    """Keeps the models' tokenizers; the gateway has one."""

    def get(self, digest: str) -> object | None:
        """The tokenizer of this digest, if known."""

    async def add(self, info: ModelBrief, told: bytes | None) -> None:
        """An engine's description. `told`: the whole answer, a `ModelInfo` if sound; None = the digest is known."""


class ModelInfoError(Exception):
    """The engine did not tell; the text says why."""


class ModelInfoClient:
    """Asks engines once each, `GET /fairlead/v1/model`, and keeps no connection."""

    def __init__(self, *, timeout: float = TIMEOUT_SECONDS, tokenizers: TokenizerBook | None = None) -> None:
        """`timeout`: seconds for one whole attempt. `tokenizers`: told of every engine that answers."""
        self._tokenizers = tokenizers
        self._limits = TimeLimits(connect=timeout, first_byte=timeout, silence=timeout, whole=timeout)
        self._http = HttpClient(max_idle=0)
        self._turns = asyncio.Semaphore(MAX_REQUESTS)

    async def fetch(self, replica: Replica) -> Replica:
        """The replica completed by its engine's description. One attempt; raises ModelInfoError."""
        try:
            async with self._turns:
                brief = await self._ask(replica)
        except (TransportError, TimeoutError, ValueError, RecursionError) as error:
            raise ModelInfoError(cause_of(error)) from error
        limits = Limits(
            max_num_seqs=brief.max_num_seqs,
            max_num_queued_tokens=brief.max_num_queued_tokens,
            block_size=brief.block_size,
            max_model_len=brief.max_model_len,
            num_kv_blocks=brief.num_kv_blocks,
            shares_prefixes=brief.shares_prefixes,
            keeps_states=brief.keeps_states,
        )
        return replace(
            replica,
            limits=limits,
            served_name=brief.served_name,
            digest=brief.digest,
            adapters=frozenset(brief.adapters),
            capabilities=tuple(brief.capabilities),
        )

    async def _ask(self, replica: Replica) -> ModelBrief:
        async with self._http.request(Origin(replica.host, replica.port), "GET", PATH_MODEL, self._limits) as response:
            if response.status != 200:
                raise ModelInfoError(f"HTTP {response.status}")
            body = await response.read(MAX_INFO_BYTES)
        brief = msgspec.json.decode(body, type=_Told).whole
        if self._tokenizers is not None:
            is_known = self._tokenizers.get(brief.digest) is not None
            adding = self._tokenizers.add(brief, None if is_known else body)
            del body  # which is large, and loading takes seconds
            await adding
        return brief


class _Told(ModelBrief, kw_only=True, frozen=True):
    """With its adapters still encoded: there may be millions."""

    adapters: msgspec.Raw = msgspec.Raw(b"[]")  # type: ignore[assignment]

    @property
    def whole(self) -> ModelBrief:
        """Adapters included. Raises ValueError for invalid or too many adapters."""
        if memoryview(self.adapters).nbytes > MAX_ADAPTERS_BYTES:
            raise ValueError(f"its adapters have more than {MAX_ADAPTERS_BYTES} bytes")
        return msgspec.structs.replace(self, adapters=_decode_adapters(self.adapters))


_decode_adapters = msgspec.json.Decoder(Annotated[list[ShortText], msgspec.Meta(max_length=MAX_ADAPTERS)]).decode


class ReplicaTasks:
    """One task per joined replica, by its uid. Needs a running loop."""

    def __init__(self, model_info: ModelInfoClient, listener: EngineListener | None = None) -> None:
        """`listener`: None = streams are not followed."""
        self._model_info = model_info
        self._listener = listener
        self._shares = LoopShares()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        """Cancelled, and not over yet; kept from the garbage collector."""

    def join(self, replica: Replica, on_known: OnKnown) -> None:
        """The replica is ready. One that has joined already has restarted: it leaves and joins."""
        self.leave(replica.uid)
        self._tasks[replica.uid] = asyncio.create_task(self._attend(replica, on_known), name=f"follow {replica.name}")

    def leave(self, uid: str) -> None:
        """The replica is not ready any more, or gone. Its listener hears nothing further."""
        task = self._tasks.pop(uid, None)
        if task is None:
            return
        task.cancel()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        if self._listener is not None:
            self._listener.forget(uid)

    async def close(self) -> None:
        """Everybody leaves."""
        for uid in list(self._tasks):
            self.leave(uid)
        await asyncio.gather(*self._ending, return_exceptions=True)

    async def _attend(self, replica: Replica, on_known: OnKnown) -> None:
        backoff = Backoff(FIRST_BACKOFF_SECONDS, LAST_BACKOFF_SECONDS)
        while True:
            try:
                known = await self._model_info.fetch(replica)
                break
            except ModelInfoError as error:
                logger.warning("asking %s what it is: %s; again in %.1f s", replica.name, error, backoff.seconds)
            await backoff.pause()
        on_known(known)
        changed_at = float("-inf")

        def on_load(load: Load) -> None:
            """Keeps the replica's adapters at the names in its loads, loaded or not. Each change makes a new directory
            of all models, hence at most one change in ADAPTERS_GAP_SECONDS; later loads bring the rest."""
            nonlocal known, changed_at
            if load.time - changed_at >= ADAPTERS_GAP_SECONDS and load.adapters.keys() != known.adapters:
                changed_at = load.time
                known = replace(known, adapters=frozenset(load.adapters))
                on_known(known)

        if self._listener is not None:
            await ReplicaStream(known, self._listener, on_load=on_load, shares=self._shares).run()
