"""The last requests of this gateway, each by its id: predictions, events, and the reason for the choice of replica."""

from collections import OrderedDict
from heapq import nsmallest
from math import inf

import msgspec

from fairlead.gateway.observation import Observation, Observer, rounded
from fairlead.routing.replica import Candidate, Decision

PATH_REQUESTS = "/fairlead/v1/requests"
NUM_KEPT = 1000
MAX_CANDIDATES = 16
"""Of one request: the chosen replica, and those where its first token would have come next."""
MAX_NAME_LENGTH = 200
"""Characters of a model's name that are kept; a client may have written anything."""


class CandidateRecord(msgspec.Struct, kw_only=True):
    """A replica that the request could have gone to, as the gateway saw it at that moment."""

    replica: str
    num_in_flight: int
    """Unfinished requests of this gateway there."""
    cached_tokens: int
    """Prompt tokens found in the replica's cache."""
    uncached_tokens: int
    predicted_ttft_seconds: float | None
    """From dispatch to first token; None = its load or the cost of its steps was unknown."""


class RequestRecord(msgspec.Struct, kw_only=True):
    """One request that is over. Seconds count from its arrival unless a field says otherwise; None = not known."""

    request_id: str
    path: str
    model: str
    """`namespace/name`; empty where the request named none."""
    asked_model: str
    """As the client wrote it."""
    stream: bool
    status: int
    """What the client got; 0 = nothing."""
    outcome: str
    replica: str | None
    """Of the last attempt; None = no replica got the request."""
    reason: str | None
    """Why this replica, in the routing policy's words."""
    candidates: list[CandidateRecord]
    """Of the last attempt: the chosen replica first, then at most MAX_CANDIDATES - 1 others, soonest first."""
    num_attempts: int
    queue_seconds: float | None
    """Time spent waiting for a replica, over all attempts."""
    predicted_ttft_seconds: float | None
    """As foreseen when the prompt had been read, the queue included."""
    ttft_seconds: float | None
    duration_seconds: float | None
    num_prompt_tokens: int | None
    num_predicted_cached_tokens: int | None
    num_cached_tokens: int | None
    """As the engine counted."""
    num_completion_tokens: int | None


class RecentRequests(Observer):
    """The newest NUM_KEPT requests, by id. Of two with the same id the later one is kept."""

    def __init__(self, num_kept: int = NUM_KEPT) -> None:
        self._num_kept = num_kept
        self._records: OrderedDict[str, tuple[str | None, RequestRecord]] = OrderedDict()
        """Id → client and record."""

    def find(self, request_id: str, client: str | None) -> RequestRecord | None:
        """None where it is not kept, or is another client's."""
        asked_by, record = self._records.get(request_id, (None, None))
        return record if asked_by == client else None

    def ended(self, seen: Observation) -> None:
        self._records.pop(seen.request_id, None)
        self._records[seen.request_id] = seen.client, record_of(seen)
        if len(self._records) > self._num_kept:
            self._records.popitem(last=False)


def record_of(seen: Observation) -> RequestRecord:
    """What is kept of a request that is over; nothing of what it said."""
    usage, decision = seen.usage or seen.partial_usage, seen.decision
    return RequestRecord(
        request_id=seen.request_id,
        path=seen.path,
        model=seen.model,
        asked_model=seen.asked_model[:MAX_NAME_LENGTH],
        stream=seen.stream,
        status=seen.status,
        outcome=str(seen.outcome),
        replica=decision.replica.name if decision else None,
        reason=decision.reason if decision else None,
        candidates=_candidates(decision) if decision else [],
        num_attempts=seen.num_attempts,
        queue_seconds=rounded(seen.queue_seconds),
        predicted_ttft_seconds=rounded(seen.predicted_ttft_seconds),
        ttft_seconds=rounded(seen.ttft_seconds),
        duration_seconds=rounded(seen.duration_seconds),
        num_prompt_tokens=usage.prompt_tokens if usage else None,
        num_predicted_cached_tokens=decision.cached_tokens if decision else None,
        num_cached_tokens=seen.usage.cached_tokens if seen.usage else None,
        num_completion_tokens=usage.completion_tokens if usage else None,
    )


def _candidates(decision: Decision) -> list[CandidateRecord]:
    def rank(each: Candidate) -> tuple[bool, float]:
        ttft = each.predicted_ttft_seconds
        return each.replica.uid != decision.replica.uid, inf if ttft is None else ttft

    return [_candidate(each) for each in nsmallest(MAX_CANDIDATES, decision.candidates, key=rank)]


def _candidate(seen: Candidate) -> CandidateRecord:
    return CandidateRecord(
        replica=seen.replica.name,
        num_in_flight=seen.num_in_flight,
        cached_tokens=seen.cached_tokens,
        uncached_tokens=seen.uncached_tokens,
        predicted_ttft_seconds=rounded(seen.predicted_ttft_seconds),
    )
