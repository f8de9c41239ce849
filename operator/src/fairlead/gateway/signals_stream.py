"""`GET /fairlead/v1/signals` on the control port: a line of signals a second to every follower.

A line is encoded once for all followers, and only with followers. Slow followers miss lines, at no cost since counters
only grow; followers that read nothing are cut off.
"""

import asyncio
import logging
from collections.abc import Callable
from itertools import islice

import msgspec

from fairlead.api.signals_message import INTERVAL_SECONDS, ModelSignals, ReplicaSignals, SignalsLine
from fairlead.gateway.dispatch.admission import ModelPool
from fairlead.gateway.dispatch.pools import Pools
from fairlead.gateway.openai.errors import overloaded
from fairlead.gateway.request_client import Client, ClientGone, Receive, Send
from fairlead.routing.replica_state import is_hanging
from fairlead_common.http.bodies import BodyReader

logger = logging.getLogger(__name__)

WAKE_GAP_SECONDS = 0.05
"""Least time between two lines, however many requests ask to be told of."""
SLOW_FOLLOWER_SECONDS = 10.0
"""Followers that read nothing for so long are cut off."""
MAX_FOLLOWERS = 64
"""Of one gateway. Each operator follows once; each follower costs the loop that streams tokens a write a second."""
MAX_PROMPTS_LOOKED_AT = 64
"""Waiting prompts looked up in the replicas' caches for one line; longer queues are sampled."""
_NDJSON = b"application/x-ndjson"
_BODY_LIMIT_BYTES = 1024


class SignalsStream:
    """Writes the lines. `run` it as a task; `close` ends every follower's stream."""

    def __init__(self, pools: Pools, gateway_id: str) -> None:
        self._pools = pools
        self._gateway_id = gateway_id
        limit = _BODY_LIMIT_BYTES
        self._bodies = BodyReader(limit=limit, timeout=SLOW_FOLLOWER_SECONDS, total_limit=limit)
        self._now = asyncio.get_running_loop().time
        self._started = self._now()
        self._asked = asyncio.Event()
        """Set when the next line should come at once."""
        self._published = asyncio.Event()
        """Set, and replaced, with every line."""
        self._line = b""
        self._num_lines = 0
        self._wake = False
        self._draining = False
        self._closed = False
        self.num_followers = 0
        self.on_beat: Callable[[], None] = lambda: None
        """Called at least every INTERVAL_SECONDS, followed or not: what else has to be done that often."""

    def wake(self) -> None:
        """A model without a ready replica got a request, or requests begin to wait: a line goes out at once."""
        self._wake = True
        self._asked.set()

    def drain(self) -> None:
        """Lines say from now on that this gateway drains; the first comes at once."""
        self._draining = True
        self._asked.set()

    def close(self) -> None:
        """Ends every stream, and `run`."""
        self._closed = True
        self._asked.set()
        self._published.set()

    async def run(self) -> None:
        """Publishes lines until closed."""
        while not self._closed:
            try:
                await asyncio.wait_for(self._asked.wait(), INTERVAL_SECONDS - WAKE_GAP_SECONDS)
            except TimeoutError:
                pass
            self._asked.clear()
            try:
                if self.num_followers:
                    self._line = self._encoded(wake=self._wake)
                    self._num_lines += 1
            except Exception:
                logger.exception("a line of signals could not be made")
            else:
                self._wake = False
                published, self._published = self._published, asyncio.Event()
                published.set()
            self.on_beat()
            await asyncio.sleep(WAKE_GAP_SECONDS)

    async def serve(self, receive: Receive, send: Send, request_id: str) -> None:
        """Serves one follower until either side leaves. Raises OpenAIError (503) above MAX_FOLLOWERS."""
        if self.num_followers >= MAX_FOLLOWERS:
            message = f"This gateway's signals are followed by {MAX_FOLLOWERS} already."
            raise overloaded(message, code="too_many_followers")
        client = Client(receive, send, request_id=request_id, stall_timeout=SLOW_FOLLOWER_SECONDS)
        self.num_followers += 1
        try:
            with self._bodies.held() as held:
                await client.read(self._bodies, {}, held)
            async with client.watch:
                await client.start(200, [(b"content-type", _NDJSON), (b"cache-control", b"no-cache")])
                num_seen = self._num_lines
                await client.write(self._encoded())
                while not self._closed:
                    if num_seen == self._num_lines:
                        await self._published.wait()
                    else:
                        num_seen = self._num_lines
                        await client.write(self._line)
                await client.finish()
        except ClientGone:
            pass
        finally:
            self.num_followers -= 1
            client.close()

    def _encoded(self, *, wake: bool = False) -> bytes:
        return msgspec.json.encode(self.line(wake=wake)) + b"\n"

    def line(self, *, wake: bool = False) -> SignalsLine:
        """What would be said now."""
        now = self._now()
        return SignalsLine(
            gateway=self._gateway_id,
            uptime_seconds=now - self._started,
            wake=wake,
            draining=self._draining,
            models={pool.model.key: model_signals(pool, now) for pool in self._pools},
        )


def model_signals(pool: ModelPool, now: float) -> ModelSignals:
    """This gateway's present signals about one model."""
    prompts = [ticket.prompt for ticket in islice(pool.queue, pool.num_waiting)]  # lines of batches are the last
    stride = -(-len(prompts) // MAX_PROMPTS_LOOKED_AT) or 1
    sample = prompts[::stride]
    uncached = sum(pool.router.expected_uncached(prompt) for prompt in sample)
    if stride > 1:
        sampled_tokens = max(1, sum(prompt.num_tokens for prompt in sample))
        uncached = round(uncached * sum(prompt.num_tokens for prompt in prompts) / sampled_tokens)
    loads = [(replica, pool.datastore.load(replica.uid, now)) for replica in pool.router.replicas]
    return msgspec.structs.replace(
        pool.counters,
        waiting=pool.num_waiting,
        waiting_uncached_tokens=uncached,
        oldest_wait_seconds=pool.queue.oldest_wait_seconds(now, with_spare=pool.model.scale_for_batches),
        running=pool.num_running,
        batch_kv_tokens=0
        if pool.model.scale_for_batches
        else sum(sent.num_prompt_tokens for sent in pool.router.in_flight.spare),
        num_ready=pool.num_ready,
        tokenizer_problem=pool.tokenizer_problem or "",
        replicas={
            replica.uid: ReplicaSignals(
                name=replica.name,
                age_seconds=max(0.0, now - load.time),
                hangs=is_hanging(load),
                **load.figures | {"adapters": {}},
            )
            for replica, load in loads
            if load is not None
        },
    )
