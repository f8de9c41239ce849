"""The requests at the server, and the step cost learnt from their timing. Pure: `now` is an argument.

All of a server's requests pass the front, which knows the server's work without asking; only the number of waiting
requests comes from the server's metrics. The step cost shows in two intervals, joined by the predictor's formula:

- Between two tokens of a stream: one step of a number of decoding sequences and a number of prompt tokens.
- From a prompt's arrival to the first token: the steps for the prompt and for prompts queued before, and on average
  half of the running step.
"""

from dataclasses import dataclass, field
from math import ceil

from fairlead_engine.core.step_cost import StepCostModel, StepWork

TOKENS_PER_SAMPLE = 16
"""Tokens of a stream per sample: single tokens come in bursts."""


@dataclass(slots=True)
class _Moment:
    """A snapshot of counters, for later differences."""

    time: float
    num_prefills: int
    tokens: float
    context: float
    running: float
    kv_tokens: float


@dataclass(slots=True, eq=False, kw_only=True)
class PassingRequest:
    """One request, from arrival to end. Changed by `PassingRequests` alone."""

    num_prompt_tokens: int
    num_uncached_tokens: int
    num_seqs: int = 1
    is_streamed: bool = False
    num_generated: int = 0
    is_computed: bool = False
    """Whether the first token has come."""
    is_prefilled: bool = False
    """Whether the prompt counts as computed; without streaming, nothing shows before the answer's end."""
    num_looks: int = 0
    """Number of looks without waiting."""
    arrived: _Moment
    last_sample: _Moment | None = None
    num_since_sample: int = 0

    @property
    def context(self) -> float:
        """Σ over the uncached tokens of the number of tokens before each."""
        cached, uncached = self.num_prompt_tokens - self.num_uncached_tokens, self.num_uncached_tokens
        return uncached * cached + uncached * (uncached - 1) / 2


@dataclass(slots=True)
class PassingRequests:
    """The book of one server."""

    token_budget: int
    """Tokens of one step."""
    cost: StepCostModel = field(default_factory=StepCostModel)
    num_waiting_told: int = 0
    """Waiting sequences in the server's latest metrics."""
    _requests: dict[PassingRequest, None] = field(default_factory=dict)
    _num_prefills: int = 0
    _prefilled_tokens: float = 0.0
    _prefilled_context: float = 0.0
    last_token_at: float = 0.0
    """When the server last sent something."""

    @property
    def num_seqs(self) -> int:
        return sum(each.num_seqs for each in self._requests)

    @property
    def waiting(self) -> int:
        """Sequences that no step has computed yet."""
        return min(self.num_waiting_told, sum(each.num_seqs for each in self._requests if not each.is_prefilled))

    @property
    def running(self) -> int:
        return self.num_seqs - self.waiting

    @property
    def queued_tokens(self) -> int:
        """Prompt tokens that are still to be computed."""
        return sum(each.num_uncached_tokens for each in self._requests if not each.is_prefilled)

    @property
    def kv_tokens(self) -> int:
        """Tokens that each decode step reads."""
        return sum(each.num_prompt_tokens + each.num_generated for each in self._requests if each.is_prefilled)

    def begin(
        self, num_prompt_tokens: int, num_uncached_tokens: int, *, num_seqs: int = 1, is_streamed: bool, now: float
    ) -> PassingRequest:
        if not self._requests:
            self.last_token_at = now
        request = PassingRequest(
            num_prompt_tokens=num_prompt_tokens,
            num_uncached_tokens=num_uncached_tokens,
            num_seqs=num_seqs,
            is_streamed=is_streamed,
            arrived=self._moment(now),
        )
        self._requests[request] = None
        return request

    def looked(self, num_waiting: int) -> None:
        """The server's metrics report `num_waiting` sequences: the newest. A request without streaming counts as
        computed after more looks without waiting than the prompt has steps; otherwise the prompt would block later
        requests until the answer is complete."""
        self.num_waiting_told = num_waiting
        left = sum(each.num_seqs for each in self._requests if not each.is_prefilled) - num_waiting
        for request in [each for each in self._requests if not each.is_prefilled]:
            left -= request.num_seqs
            if left < 0:
                break
            request.num_looks += 1
            num_steps = ceil(request.num_uncached_tokens / self.token_budget)
            if not request.is_streamed and request.num_looks > num_steps:
                self._count_prefill(request)

    def came(self, request: PassingRequest, num_tokens: int, now: float) -> None:
        """Tokens of the request came: with the first tokens the prompt is computed."""
        self.last_token_at = now
        request.num_generated += num_tokens
        if not request.is_computed:
            request.is_computed = True
            self._count_prefill(request)
            if request.is_streamed:
                self._learn_from_prefill(request, now)
            request.last_sample = self._moment(now)
            return
        request.num_since_sample += num_tokens
        if request.num_since_sample >= TOKENS_PER_SAMPLE and request.num_seqs == 1:
            self._learn_from_decodes(request, now)
            request.num_since_sample, request.last_sample = 0, self._moment(now)

    def end(self, request: PassingRequest) -> None:
        self._requests.pop(request, None)

    def _count_prefill(self, request: PassingRequest) -> None:
        if not request.is_prefilled:
            request.is_prefilled = True
            self._num_prefills += 1
            self._prefilled_tokens += request.num_uncached_tokens
            self._prefilled_context += request.context

    def _moment(self, now: float) -> _Moment:
        decoding = [each for each in self._requests if each.is_prefilled]
        return _Moment(
            now,
            self._num_prefills,
            self._prefilled_tokens,
            self._prefilled_context,
            sum(each.num_seqs for each in decoding),
            self.kv_tokens,
        )

    def _learn_from_prefill(self, request: PassingRequest, now: float) -> None:
        """Except for a request that waited for a slot, as steps do not explain the wait."""
        since = request.arrived
        if self.num_waiting_told:
            return
        tokens, context = self._prefilled_tokens - since.tokens, self._prefilled_context - since.context
        num_steps = max(1, ceil(tokens / max(1.0, self.token_budget - since.running)))
        halves = num_steps + (0.5 if since.running else 0.0)
        work = StepWork(halves, num_steps, tokens, context, halves * since.running, halves * since.kv_tokens)
        self.cost.learn(work, now - since.time)

    def _learn_from_decodes(self, request: PassingRequest, now: float) -> None:
        since = request.last_sample
        if since is None or not request.is_streamed:
            return
        seen, num_steps = self._moment(now), request.num_since_sample
        prefills = min(float(num_steps), seen.num_prefills - since.num_prefills)
        work = StepWork(
            1.0,
            prefills / num_steps,
            (seen.tokens - since.tokens) / num_steps,
            (seen.context - since.context) / num_steps,
            (seen.running + since.running) / 2,
            (seen.kv_tokens + since.kv_tokens) / 2,
        )
        self.cost.learn(work, (now - since.time) / num_steps)
