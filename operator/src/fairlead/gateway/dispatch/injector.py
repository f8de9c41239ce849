"""Results injected by clients into answers under way → the generating replica, through any gateway.

Gateways do not know one another's answers, so all replicas of the model are asked, including draining ones, or only the
replica named by the client. Every replica but the generating one says "not here".
"""

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping

from fairlead.fleet.directory import Pool
from fairlead.gateway.dispatch.pools import Pools
from fairlead.gateway.gateway_settings import GatewaySettings
from fairlead.gateway.openai.errors import OpenAIError, upstream_failed
from fairlead.gateway.openai.parse import parse
from fairlead.gateway.request_client import Client
from fairlead.routing.replica import Replica
from fairlead_common.http.addresses import authority
from fairlead_common.http.client import HttpClient, TimeLimits
from fairlead_common.http.client_connection import AnswerTooLarge, ConnectFailed, TransportError
from fairlead_common.http.origin import Origin
from fairlead_common.wire.messages import HEADER_REASON, HEADER_REPLICA, REASON_LOADING

_PATH = re.compile(r"/v1/chat/completions/[A-Za-z0-9._:=+-]{1,256}/inject")
_MOST_REPLY_BYTES = 64 * 1024
_NOT_HERE = 404
_NOT_SAID = frozenset({405, 408, 429})
"""Statuses without a verdict: the replica is busy or takes no injections; so are errors from here on:"""
_BROKEN = 500


def is_injection(path: str) -> bool:
    """Whether a request to this path injects into an answer."""
    return _PATH.fullmatch(path) is not None


class Injector:
    """Knows whom to ask; the engine says what may be injected."""

    def __init__(self, pools: Pools, upstream: HttpClient, settings: GatewaySettings) -> None:
        self._pools = pools
        self._upstream = upstream
        self._limits = TimeLimits(
            connect=settings.connect_timeout, first_byte=settings.response_timeout, silence=settings.idle_timeout
        )

    async def pass_on(
        self, path: str, chosen: Pool | None, body: bytes, headers: Mapping[bytes, bytes], client: Client
    ) -> int:
        """Passes on the answer of the generating replica, and returns its status. Raises OpenAIError."""
        request = parse(path, body, (), request_id=client.request_id, chosen=chosen)
        pool = self._pools.find(request.model, chosen)
        named = headers.get(HEADER_REPLICA.encode(), b"").decode("latin-1")
        there = (*pool.pool.replicas, *pool.pool.departing)
        replicas = [each for each in there if not named or each.name == named]
        leaving = {each.name for each in pool.pool.departing}
        status, answer, replica = await self._ask(replicas, leaving, path, body, client.request_id)
        await client.reply(status, answer, [(HEADER_REPLICA.encode(), replica.encode())] if replica else [])
        return status

    async def _ask(
        self, replicas: Iterable[Replica], leaving: Collection[str], path: str, body: bytes, request_id: str
    ) -> tuple[int, bytes, str | None]:
        """Status, body and replica of the first answer other than "not here". Unclear answers come last, as another
        replica may be injecting. A `leaving` replica that refuses connections has ended, with its answers."""

        async def ask(replica: Replica) -> tuple[int, bytes, str]:
            try:
                return await self._ask_one(replica, path, body, request_id)
            except ConnectFailed as error:
                if replica.name in leaving and isinstance(error.__cause__, ConnectionRefusedError):
                    return _NOT_HERE, b"", replica.name
                raise

        asked = [asyncio.create_task(ask(each)) for each in replicas]
        failure: TransportError | AnswerTooLarge | None = None
        unheard: tuple[int, bytes, str | None] | None = None
        try:
            for each in asyncio.as_completed(asked):
                try:
                    status, answer, name = await each
                except (TransportError, AnswerTooLarge) as error:
                    failure = error
                    continue
                if status in _NOT_SAID or status >= _BROKEN:
                    unheard = status, answer, name
                elif status != _NOT_HERE:
                    return status, answer, name
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        if unheard is not None:
            return unheard
        if failure is not None:
            raise upstream_failed(f"Not every replica could be asked for the answer: {failure}.")
        answer_id = path.split("/")[-2]
        message = f"No injectable answer {answer_id!r} is being generated: it has ended, or there was none."
        raise OpenAIError(_NOT_HERE, message, param="id", code="answer_not_found")

    async def _ask_one(self, replica: Replica, path: str, body: bytes, request_id: str) -> tuple[int, bytes, str]:
        head = (
            f"POST {path} HTTP/1.1\r\nhost: {authority(replica.host, replica.port)}\r\nx-request-id: {request_id}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        ).encode()
        origin = Origin(replica.host, replica.port)
        async with self._upstream.exchange(origin, head, body, self._limits) as response:
            answer = await response.read(_MOST_REPLY_BYTES)
            has_begun_anew = response.headers.get(HEADER_REASON.encode()) == REASON_LOADING.encode()
            return _NOT_HERE if has_begun_anew else response.status, answer, replica.name
