"""What came of a load: counts, percentiles, rates, goodput, and how good the gateway's predictions were. Pure."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from fairlead.client.load_generator import LoadSample

DEFAULT_BLOCK_SIZE = 16
"""Tokens of a KV-cache block: how far a prediction of cached tokens may be off and still be called right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """Limits of a request for goodput. None = no limit."""

    ttft_seconds: float | None = None
    tpot_seconds: float | None = None

    @property
    def is_set(self) -> bool:
        """Whether there is any."""
        return self.ttft_seconds is not None or self.tpot_seconds is not None

    def met_by(self, sample: LoadSample) -> bool:
        """Rejected, failed and unfinished requests are misses, and answers without a first token, if one is required.
        Answers of one token have no time per further token."""
        if not sample.is_completed:
            return False
        ttft, tpot = sample.ttft_seconds, sample.completion.tpot_seconds
        if self.ttft_seconds is not None and (ttft is None or ttft > self.ttft_seconds):
            return False
        return self.tpot_seconds is None or tpot is None or tpot <= self.tpot_seconds


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Of durations in seconds."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    max: float = 0.0

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Percentiles | None":
        """None where there is no value."""
        known = sorted(value for value in values if value is not None)
        if not known:
            return None
        return cls(sum(known) / len(known), *(percentile(known, percent) for percent in (50, 90, 99, 100)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """The gateway's predictions against reality, over answers with a prediction."""

    num_cached: int
    """Answers with a prediction of cached tokens."""
    within_one_block_ratio: float | None
    """Share of predictions within one block; None = none."""
    num_ttft: int
    """Answers with a comparable predicted time to first token."""
    ttft_median_error_ratio: float | None
    """Median of |predicted - actual| / actual. The gateway predicts at arrival, queueing included; the client's actual
    time includes the network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Requests that met the objectives, of all sent."""

    objectives: Objectives
    ratio: float
    """Of all requests sent; rejects, errors and unfinished ones are misses."""
    per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of a number of requests. Ratios are from 0 to 1; None = nothing to measure."""

    seconds: float
    """Duration of the load, the wait for its last answers included."""
    num_requests: int
    """Sent, whatever became of them."""
    num_completed: int
    num_rejected: int
    """Refused with 429: there was no room."""
    num_failed: int
    """Everything else that went wrong."""
    num_unfinished: int
    """Still under way when the report was made."""
    errors: dict[str, int] = field(default_factory=dict)
    """Rejected and failed requests by status and code, or by message; most frequent first."""
    num_checked: int
    """Answers to questions whose answer is known."""
    num_right: int
    ttft: Percentiles | None
    """From due to first token."""
    tpot: Percentiles | None
    """Time per output token after the first."""
    latency: Percentiles | None
    """From due to end; of completed requests."""
    requests_per_second: float
    """Completed ones."""
    prompt_tokens: int
    output_tokens: int
    output_tokens_per_second: float
    cached_ratio: float | None
    """Prompt tokens that came from a cache."""
    predictions: Predictions
    goodput: Goodput | None
    """None where no objective was set."""
    by_replica: dict[str, int] = field(default_factory=dict)
    """Completed requests per replica, most first."""


def report(
    samples: Sequence[LoadSample],
    seconds: float,
    *,
    objectives: Objectives = Objectives(),
    block_size: int = DEFAULT_BLOCK_SIZE,
) -> Report:
    """Of all requests so far, `seconds` after the load began."""
    completed = [sample for sample in samples if sample.is_completed]
    answers = [sample.completion for sample in completed]
    errors = [sample.error for sample in samples if sample.error is not None]
    num_rejected = sum(1 for sample in samples if sample.is_rejected)
    prompt_tokens = sum(answer.num_prompt_tokens for answer in answers)
    output_tokens = sum(answer.num_completion_tokens for answer in answers)
    goodput = None
    if objectives.is_set:
        num_met = sum(1 for sample in samples if objectives.met_by(sample))
        ratio = num_met / len(samples) if samples else 0.0
        goodput = Goodput(objectives=objectives, ratio=ratio, per_second=_per_second(num_met, seconds))
    return Report(
        seconds=seconds,
        num_requests=len(samples),
        num_completed=len(completed),
        num_rejected=num_rejected,
        num_failed=len(errors) - num_rejected,
        num_unfinished=len(samples) - len(completed) - len(errors),
        errors=dict(Counter(error.kind for error in errors).most_common()),
        num_checked=sum(1 for sample in completed if sample.right is not None),
        num_right=sum(1 for sample in completed if sample.right),
        ttft=Percentiles.of(sample.ttft_seconds for sample in completed),
        tpot=Percentiles.of(answer.tpot_seconds for answer in answers),
        latency=Percentiles.of(sample.latency_seconds for sample in completed),
        requests_per_second=_per_second(len(completed), seconds),
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        output_tokens_per_second=_per_second(output_tokens, seconds),
        cached_ratio=sum(answer.num_cached_tokens for answer in answers) / prompt_tokens if prompt_tokens else None,
        predictions=predictions_of(completed, block_size),
        goodput=goodput,
        by_replica=dict(Counter(answer.replica for answer in answers if answer.replica).most_common()),
    )


def predictions_of(completed: Iterable[LoadSample], block_size: int = DEFAULT_BLOCK_SIZE) -> Predictions:
    """Of completed samples."""
    answers = [sample.completion for sample in completed]
    off = [
        abs(answer.predicted_cached_tokens - answer.num_cached_tokens)
        for answer in answers
        if answer.predicted_cached_tokens is not None
    ]
    errors = [
        abs(answer.predicted_ttft_seconds - answer.ttft_seconds) / answer.ttft_seconds
        for answer in answers
        if answer.predicted_ttft_seconds is not None and answer.ttft_seconds
    ]
    return Predictions(
        num_cached=len(off),
        within_one_block_ratio=sum(1 for tokens in off if tokens <= block_size) / len(off) if off else None,
        num_ttft=len(errors),
        ttft_median_error_ratio=percentile(errors, 50) if errors else None,
    )


def percentile(values: Iterable[float], percent: float) -> float:
    """Linear between the nearest ranks, as numpy's default; 0 for no values."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    position = (len(ordered) - 1) * percent / 100
    low = int(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


def _per_second(number: float, seconds: float) -> float:
    return number / seconds if seconds > 0 else 0.0
