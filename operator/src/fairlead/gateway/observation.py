"""Observations of requests: the figures behind metrics and log lines, and per model the signals that the operator
scales by."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from fairlead.api.signals_message import ModelSignals, count_seconds, count_tokens
from fairlead.fleet.directory import FleetModel
from fairlead.gateway.openai.errors import OpenAIError, RequestOutcome
from fairlead.gateway.openai.parse import InferenceRequest
from fairlead.gateway.openai.sse import Usage
from fairlead.gateway.prompts.reader import ReadPrompt
from fairlead.routing.books import Failure
from fairlead.routing.queue import Ticket
from fairlead.routing.replica import Decision
from fairlead_common.logs import LineBudget
from fairlead_common.openai.prompts import READING_PATHS

logger = logging.getLogger("fairlead.gateway.requests")


REFUSALS_LOGGED_AT_ONCE = 20
REFUSALS_LOGGED_PER_SECOND = 1.0
"""Log lines about requests refused before their model is known; anybody can send many. Metrics count all."""
_LEAST_SECONDS = 1e-6
"""Least actual time that an error is divided by."""
MAX_LOGGED_PATH_LENGTH = 200
"""Characters of a path, which before authentication may be anything."""


class Observer:
    """Hears of a request's milestones as they happen; the figures are in the Observation."""

    __slots__ = ()

    def arrived(self, seen: "Observation") -> None:
        """The model's replicas could serve the request."""

    def dispatched(self, seen: "Observation") -> None:
        """An attempt begins."""

    def attempt_failed(self, seen: "Observation", failure: str) -> None:
        """The replica of the last attempt did not serve the request; `failure` is a metric label."""

    def first_token(self, seen: "Observation") -> None:
        """The first token has come, or a whole answer that is not streamed."""

    def ended(self, seen: "Observation") -> None:
        """The request is over, however it ended."""


class OnDispatched(Observer):
    """Calls something when an attempt begins."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def dispatched(self, seen: "Observation") -> None:
        self._call()


def _now() -> float:
    return asyncio.get_running_loop().time()


@dataclass(slots=True)
class Observation:
    """Filled on the way; times are seconds since the request's arrival, None = not reached."""

    request_id: str
    path: str
    observers: tuple[Observer, ...] = ()
    """Who is told as it happens."""
    arrived: float = field(default_factory=_now)
    """Loop time."""
    client: str | None = None
    """The client whose API key came with the request; None = no keys are used."""
    is_spare: bool = False
    """Whether it is a line of a batch, which waits for spare capacity: its times say nothing of the service."""
    asked_model: str = ""
    """As the client wrote it."""
    model: str = ""
    """`namespace/name` of the LLMDeployment; empty where none was found."""
    stream: bool = False
    status: int = 0
    """What the client got; 0 = nothing."""
    outcome: str = RequestOutcome.INTERNAL_ERROR
    """A RequestOutcome, or the label of a QueueOutcome."""
    policy: str = ""
    """The model's routing policy."""
    decision: Decision | None = None
    """Of the last attempt."""
    num_attempts: int = 0
    num_deaths: int = 0
    """Replicas that broke down while they had it."""
    ticket: Ticket | None = None
    """Its place in line."""
    num_prompt_tokens: int = 0
    """Counted by the gateway; an estimate for untokenised prompts."""
    num_tokens_from_text_cache: int = 0
    """Of those, how many ids came from the cache of texts instead of from the tokenizer."""
    tokenizing_seconds: float = 0.0
    dispatched_after_seconds: float = 0.0
    """When the last attempt began."""
    ttft_seconds: float | None = None
    """Time to the first token, or to the vectors; to the whole answer where it is not streamed."""
    duration_seconds: float = 0.0
    usage: Usage | None = None
    """As told by the engine; None for broken streams and for clients that left."""
    num_generated: int | None = None
    """Output tokens of the request's one sequence; None = not known, or of several sequences side by side."""
    num_passed_tokens: int = 0
    """Events with tokens that passed; an engine may send several tokens in one event."""

    @property
    def partial_usage(self) -> Usage | None:
        """Usage known so far of a stream without usage; None = no token passed."""
        if self.usage is not None or not self.num_passed_tokens:
            return None
        return Usage(prompt_tokens=self.num_prompt_tokens, completion_tokens=self.num_passed_tokens)

    @property
    def shows_ttft(self) -> bool:
        """Whether the end of prefill can be seen: as a stream's first token, or as vectors."""
        return self.stream or self.path in READING_PATHS

    @property
    def queue_seconds(self) -> float:
        """Time spent waiting for a replica over all attempts, successful or not."""
        return 0.0 if self.ticket is None else self.ticket.waited_seconds

    @property
    def predicted_ttft_seconds(self) -> float | None:
        """Predicted time from the end of tokenising to the first token, queueing included; None = no prediction."""
        return None if self.ticket is None else self.ticket.foreseen_ttft_seconds

    @property
    def ttft_error_ratio(self) -> float | None:
        """Error of `predicted_ttft_seconds` as a share of the actual time; None = either is unknown."""
        ticket = self.ticket
        if ticket is None or ticket.foreseen_at is None or ticket.foreseen_ttft_seconds is None:
            return None
        if self.ttft_seconds is None or not self.shows_ttft:
            return None
        actual = max(self.arrived + self.ttft_seconds - ticket.foreseen_at, _LEAST_SECONDS)
        return abs(ticket.foreseen_ttft_seconds - actual) / actual

    @property
    def replica_ttft_seconds(self) -> float | None:
        """From the last dispatch to the first token, to compare with the routing decision; None = not streamed."""
        if self.ttft_seconds is None or not self.shows_ttft:
            return None
        return self.ttft_seconds - self.dispatched_after_seconds

    @property
    def tpot_seconds(self) -> float | None:
        """Mean time per output token after the first one; None = not streamed to the end, or a single token."""
        if not self.stream or self.ttft_seconds is None or self.outcome != RequestOutcome.COMPLETED:
            return None
        further = (self.num_generated or 0) - 1
        return (self.duration_seconds - self.ttft_seconds) / further if further > 0 else None

    @property
    def cached_tokens_error(self) -> int | None:
        """Error of the predicted cached tokens, in either direction; None = either figure is missing."""
        if self.usage is None or self.decision is None or self.decision.cached_tokens is None:
            return None
        return abs(self.decision.cached_tokens - self.usage.cached_tokens)

    def parsed(self, request: InferenceRequest) -> None:
        """The request could be read."""
        self.asked_model = request.model
        self.stream = request.stream

    def found(self, model: FleetModel) -> None:
        """It is known which model is meant."""
        self.model, self.policy = model.key, model.routing.policy

    def demands(self, counters: Observer, ticket: Ticket) -> None:
        """The model's replicas could serve the request: counts the request as demand in `counters`, and notes the place
        in line."""
        self.ticket = ticket
        self.observers += (counters,)
        counters.arrived(self)

    def routed(self, decision: Decision, prompt: ReadPrompt) -> None:
        """An attempt begins at this replica."""
        self.num_attempts += 1
        self.decision = decision
        self.num_prompt_tokens = prompt.num_tokens
        self.tokenizing_seconds = prompt.seconds
        self.num_tokens_from_text_cache = prompt.num_cached_tokens
        self.dispatched_after_seconds = _now() - self.arrived
        for observer in self.observers:
            observer.dispatched(self)

    def attempt_failed(self, failure: Failure | None, message: str, *, again: bool) -> None:
        """The replica did not serve this attempt (None: its queue is full); logged. `again`: whether another
        follows."""
        label = "engine_full" if failure is None else failure.label
        self.num_deaths += failure is Failure.DIED
        fields = {
            "request_id": self.request_id,
            "client": self.client,
            "model": self.model,
            "replica": self.decision.replica.name if self.decision else "",
            "num_attempts": self.num_attempts,
            "failure": label,
            "error": message,
            "again": str(again).lower(),
        }
        logger.log(logging.DEBUG if failure is None else logging.WARNING, "attempt failed", extra=fields)
        for observer in self.observers:
            observer.attempt_failed(self, label)

    def first_token(self) -> None:
        """The first token has come; later ones do not count."""
        if self.ttft_seconds is None:
            self.ttft_seconds = _now() - self.arrived
            for observer in self.observers:
                observer.first_token(self)

    def ended(self, status: int) -> None:
        """The request is over; `status` is what the client got."""
        self.status = status
        self.duration_seconds = _now() - self.arrived
        for observer in self.observers:
            observer.ended(self)


class ModelCounters(ModelSignals, Observer):
    """Requests for one LLMDeployment since this gateway knows the deployment: the signals that only grow. Other fields
    keep their defaults."""

    def arrived(self, seen: Observation) -> None:
        self.num_arrivals += 1

    def foreseen(self, ttft_seconds: float) -> None:
        """A prediction of the time to first token was made."""
        count_seconds(self.predicted_ttft, ttft_seconds)

    def dispatched(self, seen: Observation) -> None:
        """It goes to a replica. Further attempts bring no further demand: only the first one counts."""
        if seen.num_attempts != 1:
            return
        predicted = seen.decision.uncached_tokens if seen.decision else None
        uncached = seen.num_prompt_tokens if predicted is None else predicted
        self.prompt_tokens += seen.num_prompt_tokens
        self.uncached_prompt_tokens += uncached
        count_tokens(self.uncached_per_request, uncached)

    def first_token(self, seen: Observation) -> None:
        if seen.shows_ttft and seen.ttft_seconds is not None:
            count_seconds(self.ttft, seen.ttft_seconds)

    def ended(self, seen: Observation) -> None:
        """The request is over; its usage is known if an engine answered."""
        self.num_ended += 1
        if seen.usage is not None and seen.usage.completion_tokens is not None:
            self.num_answered += 1
            self.output_tokens += seen.usage.completion_tokens
        if seen.tpot_seconds is not None:
            count_seconds(self.tpot, seen.tpot_seconds)


class Refusals:
    """Counts requests refused before their model is known, and logs as many as the budget allows."""

    def __init__(self, observer: Observer) -> None:
        self._observers = (observer,)
        self._lines = LineBudget(burst=REFUSALS_LOGGED_AT_ONCE, per_second=REFUSALS_LOGGED_PER_SECOND)

    def refused(self, error: OpenAIError, path: str, *, request_id: str = "", client: str | None = None) -> None:
        """A request got this answer, if the client was still connected."""
        path = path[:MAX_LOGGED_PATH_LENGTH]
        seen = Observation(request_id, path, observers=self._observers, client=client, outcome=error.outcome)
        seen.ended(error.status)
        num_left_out = self._lines.take(seen.arrived)
        if num_left_out is not None:
            log_request(seen, num_left_out=num_left_out, error=error.message)


def log_request(seen: Observation, *, num_left_out: int = 0, error: str | None = None) -> None:
    """One line per request, with the decision's inputs and the outcome. `num_left_out`: similar requests without a line
    since the last line. `error`: the reason of a refusal."""
    if not logger.isEnabledFor(logging.INFO):
        return
    usage, decision = seen.usage or seen.partial_usage, seen.decision
    fields = {
        "request_id": seen.request_id,
        "client": seen.client,
        "path": seen.path,
        "model": seen.model,
        "asked_model": seen.asked_model,
        "stream": seen.stream,
        "status": seen.status,
        "outcome": seen.outcome,
        "replica": decision.replica.name if decision else None,
        "reason": decision.reason if decision else None,
        "num_attempts": seen.num_attempts,
        "queue_seconds": rounded(seen.queue_seconds),
        "predicted_ttft_seconds": rounded(seen.predicted_ttft_seconds),
        "ttft_seconds": rounded(seen.ttft_seconds),
        "predicted_replica_ttft_seconds": rounded(decision.predicted_ttft_seconds if decision else None),
        "replica_ttft_seconds": rounded(seen.replica_ttft_seconds),
        "duration_seconds": rounded(seen.duration_seconds),
        "num_prompt_tokens": usage.prompt_tokens if usage else None,
        "num_predicted_cached_tokens": decision.cached_tokens if decision else None,
        "num_cached_tokens": seen.usage.cached_tokens if seen.usage else None,
        "num_completion_tokens": usage.completion_tokens if usage else None,
        "num_left_out": num_left_out or None,
        "error": error,
    }
    logger.info("request", extra=fields)


def rounded(seconds: float | None) -> float | None:
    """To microseconds."""
    return None if seconds is None else round(seconds, 6)
