"""Predicted time to first token (TTFT): costs of engine steps, and seconds until a replica has computed a prompt.

Pure functions of plain arguments, in seconds and tokens; routers and the autoscaler share them. Nothing here knows
requests, gateways or caches: how many tokens are uncached is an argument.

The model of an engine: while there is work, steps follow each other. A step decodes one token of each running sequence
and computes as many queued prompt tokens as its budget leaves, first come first served; the step that computes a
prompt's last token yields the first output token. A prompt that comes during a step waits for the next. So

    TTFT = rest of the running step + ceil(U / P) · every step + prefill_token · U + prefill_context · Σ context of U
           + seconds to load the adapter

    U = prompt tokens still queued behind the running step + the prompt's own uncached ones
    P = max(1, token_budget - running)
    every step = base + prefill_step + decode_seq · running + kv_token · kv_tokens

For a speculating engine, `decode_seq` and `kv_token` are of a sequence with drafts.

The queue is known from the engine's last load line (as of the end of the engine's last step) and from later dispatches;
the clock tells how much of the queue the engine has worked off meanwhile (`Backlog.advance`).

An example (a test computes it): base 10 ms, prefill_token 0.1 ms, decode_seq 1 ms, the rest 0; token budget 104. 20 ms
ago a load line said: 4 running, 260 prompt tokens queued, step age 5 ms. P = 100, every step costs 14 ms, a full one
14 + 10 = 24 ms. The step that ran then took 100 of the 260 tokens and had 24 - 5 = 19 ms to go; it ended 1 ms ago. So
the next has 23 ms to go with 100 tokens, and 60 are queued behind it. A prompt with 50 uncached tokens joins them:
U = 110, two steps. TTFT = 23 + 2 · 14 + 110 · 0.1 = 62 ms.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from fairlead.routing.replica import Load
from fairlead_common.wire.messages import StepCost


@dataclass(frozen=True, slots=True)
class Work:
    """Prompt tokens to compute."""

    tokens: float = 0.0
    context: float = 0.0
    """Σ over them of the tokens before each (`prefill_context`)."""


NO_WORK = Work()


@dataclass(frozen=True, slots=True)
class Dispatched:
    """A dispatched prompt that the replica's load does not include yet."""

    at: float
    """When, on the clock of `Load.time`."""
    work: Work


def prefill_work(cached_tokens: float, uncached_tokens: float) -> Work:
    """The rest of a prompt whose first `cached_tokens` are in the cache."""
    return Work(uncached_tokens, prefill_context(cached_tokens, uncached_tokens))


def prefill_context(cached_tokens: float, uncached_tokens: float) -> float:
    """Σ of the tokens before each uncached token of a prompt: c + (c+1) + … + (c+u-1) = u·c + u·(u-1)/2."""
    return uncached_tokens * cached_tokens + max(0.0, uncached_tokens * (uncached_tokens - 1) / 2)


def step_seconds(
    cost: StepCost, *, running: float, kv_tokens: float, prefill_tokens: float = 0.0, prefill_context: float = 0.0
) -> float:
    """One step that decodes `running` sequences with `kv_tokens` in the cache and computes `prefill_tokens` whose
    contexts add up to `prefill_context`."""
    return (
        cost.base
        + cost.decode_seq * running
        + cost.kv_token * kv_tokens
        + (cost.prefill_step if prefill_tokens else 0.0)
        + cost.prefill_token * prefill_tokens
        + cost.prefill_context * prefill_context
    )


def prefill_seconds(
    cost: StepCost, *, tokens: float, context: float, token_budget: float, running: float, kv_tokens: float
) -> float:
    """From the start of a step to the end of the step that computes the last of `tokens` queued prompt tokens."""
    num_steps = ceil(tokens / tokens_per_step(token_budget, running))
    every_step = step_seconds(cost, running=running, kv_tokens=kv_tokens) + cost.prefill_step
    return num_steps * every_step + cost.prefill_token * tokens + cost.prefill_context * context


def tokens_per_step(token_budget: float, running: float) -> float:
    """Prompt tokens that fit into a step beside `running` decodes."""
    return max(1.0, token_budget - running)


class Backlog:
    """A replica's work in the course of time, as far as a prompt is delayed by it. Made for one prediction."""

    __slots__ = ("context", "cost", "every_step", "per_step", "rest", "running", "tokens")

    def __init__(self, cost: StepCost, *, running: float, kv_tokens: float, token_budget: float) -> None:
        """Of a replica that decodes `running` sequences in every step, with no prompt tokens queued."""
        self.cost = cost
        self.running = running
        self.every_step = step_seconds(cost, running=running, kv_tokens=kv_tokens)
        """Seconds of a step without prompt tokens."""
        self.per_step = tokens_per_step(token_budget, running)
        """Prompt tokens that fit into a step."""
        self.rest = 0.0
        """Seconds until the running step ends; 0 where none runs."""
        self.tokens = 0.0
        """Prompt tokens queued behind the running step."""
        self.context = 0.0
        """Σ of their contexts."""

    @classmethod
    def of(
        cls,
        load: Load,
        cost: StepCost,
        num_ended: int = 0,
        context_per_token: float | None = None,
        begun_with: Sequence[Work] = (),
    ) -> "Backlog":
        """As of the load line. `num_ended`: running sequences known to have ended since. `begun_with`: prompts in the
        running step, but too late for the line's figures.

        The line counts the running step's prompt tokens as still queued, and has no contexts. Where `context_per_token`
        is not known, prompts of equal length without cached tokens are assumed.

        A late step is expected to take as much longer as the step is late already: a hanging replica loses attraction
        gradually.
        """
        share = max(0.0, 1.0 - num_ended / load.running) if load.running else 0.0
        backlog = cls(
            cost, running=load.running * share, kv_tokens=load.kv_tokens * share, token_budget=load.token_budget
        )
        if context_per_token is None:
            context_per_token = load.queued_prefill_tokens / (load.waiting + 1) / 2
        backlog.tokens = load.queued_prefill_tokens + sum(work.tokens for work in begun_with)
        backlog.context = load.queued_prefill_tokens * context_per_token + sum(work.context for work in begun_with)
        if load.running or load.waiting or load.step_age_seconds:
            backlog._begin_step()
            backlog.rest = abs(backlog.rest - load.step_age_seconds)
        return backlog

    def join(self, work: Work) -> None:
        """One more prompt comes. An idle engine begins a step with the prompt at once."""
        is_idle = not (self.rest or self.tokens or self.running)
        self.tokens += work.tokens
        self.context += work.context
        if is_idle:
            self._begin_step()

    def advance(self, seconds: float) -> None:
        """Time passes, and nothing comes: steps are taken off the queue."""
        if seconds < self.rest:
            self.rest -= seconds
            return
        seconds -= self.rest
        if self.tokens >= self.per_step:
            full = self._step_seconds(self.per_step)
            num_steps = self.tokens // self.per_step
            if full > 0.0:
                num_steps = min(num_steps, seconds // full)
            self._take(num_steps * self.per_step)
            seconds -= num_steps * full
        self._begin_step()
        if seconds < self.rest:
            self.rest -= seconds
        else:  # less than a full step was queued, and that is done as well: decodes are left, if anything
            seconds -= self.rest
            self.rest = self.every_step - seconds % self.every_step if self.running and self.every_step else 0.0

    def seconds_to_first_token(self, work: Work) -> float:
        """Of a prompt that comes now."""
        tokens = self.tokens + work.tokens
        num_steps = ceil(tokens / self.per_step)
        context = self.context + work.context
        return (
            self.rest
            + num_steps * (self.every_step + self.cost.prefill_step)
            + self.cost.prefill_token * tokens
            + self.cost.prefill_context * context
        )

    def _begin_step(self) -> None:
        """The next step begins, with prompt tokens from the queue."""
        tokens = min(self.tokens, self.per_step)
        self.rest = self._step_seconds(tokens) if tokens or self.running else 0.0
        self._take(tokens)

    def _step_seconds(self, tokens: float) -> float:
        """A step with so many of the queued tokens."""
        context = self.context * tokens / self.tokens if self.tokens else 0.0
        first = self.every_step + (self.cost.prefill_step if tokens else 0.0)
        return first + self.cost.prefill_token * tokens + self.cost.prefill_context * context

    def _take(self, tokens: float) -> None:
        """Off the queue, and their share of the contexts."""
        if tokens:
            remaining = max(0.0, self.tokens - tokens)
            self.context *= remaining / self.tokens
            self.tokens = remaining


def predicted_ttft(
    load: Load,
    cost: StepCost,
    unseen: Sequence[Dispatched],
    work: Work,
    *,
    now: float,
    num_ended: int = 0,
    context_per_token: float | None = None,
    loading: float = 0.0,
) -> float:
    """From dispatch to first token of a prompt with this work, if sent `now` to the replica of this load.

    `unseen`: dispatched prompts that the load's figures (as of the end of the last step) do not include, in order;
    prompts from before the start of the running step are part of that step. `num_ended`: requests that the load
    includes and that ended since. `context_per_token`: of the load's queued tokens, where known. `loading`: seconds
    until the adapter is in the engine's memory. Waiting for a free slot is not included: replicas without one are no
    candidates.
    """
    step_began = load.time - load.step_age_seconds
    begun_with = [each.work for each in unseen if each.at <= step_began]
    backlog, time = Backlog.of(load, cost, num_ended, context_per_token, begun_with), load.time
    for each in unseen[len(begun_with) :]:
        backlog.advance(max(0.0, each.at - time))
        backlog.join(each.work)
        time = max(time, each.at)
    backlog.advance(max(0.0, now - time))
    return loading + backlog.seconds_to_first_token(work)
