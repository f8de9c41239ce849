"""The director: a request's way through the gateway, top to bottom. Read this file first."""

from fairlead.gateway.dispatch.pools import Pools
from fairlead.gateway.dispatch.proxy import Proxy, ReplicaFailed
from fairlead.gateway.observation import Observation
from fairlead.gateway.openai.errors import replicas_died
from fairlead.gateway.openai.parse import InferenceRequest
from fairlead.gateway.request_client import Client
from fairlead.routing.books import Failure
from fairlead.routing.suspects import Suspicion

MAX_DEATHS = 2
"""Replicas that may die on one request: another might die of it, too."""


class Director:
    """Takes a request from its pool, through the queue, to a replica, and again where a retry may help."""

    def __init__(self, pools: Pools, proxy: Proxy, *, max_attempts: int) -> None:
        self.pools = pools
        self.proxy = proxy
        self.max_attempts = max_attempts

    async def handle(self, request: InferenceRequest, client: Client, seen: Observation) -> None:
        """Serves `request` to `client`. Raises OpenAIError as the client's answer."""
        pool = self.pools.find(request.model, request.chosen)  # 404 here
        seen.found(pool.model)
        ticket = pool.ticket(request)  # in line, kept through every attempt
        await pool.tokenize(ticket)  # ids and block hashes, once; off the loop when long; 400 where it fits no replica
        request.on_read()
        seen.demands(pool.counters_of(ticket), ticket)
        num_failures = num_deaths = 0
        while True:  # a second attempt only before the client's first byte
            async with pool.admit(ticket) as attempt:  # queue, hold while none is ready; 429, 503
                seen.routed(attempt.decision, ticket.prompt)  # replica, why, after how long
                try:
                    return await self.proxy.stream(attempt, request, pool.model.served_name, client, seen)
                except ReplicaFailed as failed:
                    suspicion = attempt.failed(failed.failure)
                    num_failures += failed.failure is not None  # a full engine did not fail: back to the old place
                    num_deaths += failed.failure is Failure.DIED
                    again = failed.retryable and num_failures < self.max_attempts and num_deaths < MAX_DEATHS
                    seen.attempt_failed(failed.failure, failed.error.message, again=again)
                    if num_deaths >= MAX_DEATHS:
                        raise replicas_died(num_deaths, is_to_blame=suspicion is Suspicion.SOLE) from failed
                    if not again:
                        raise failed.error from failed
