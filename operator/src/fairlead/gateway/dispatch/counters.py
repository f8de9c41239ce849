"""ModelCounters: what the operator scales by, counted per model. Pure.

Counters only ever grow and their reader takes differences, so that a line of signals that nobody read has lost nothing.
They begin anew with the gateway, and with an LLMDeployment created again under an old name.
"""

from fairlead.api.signals_message import count_seconds, count_tokens, no_seconds, no_tokens
from fairlead.gateway.observation import Observation


class ModelCounters:
    """One LLMDeployment's requests at this gateway, counted since the gateway has known it. An Observer."""

    def __init__(self) -> None:
        self.num_arrivals = 0
        self.num_ended = 0
        self.num_answered = 0
        self.prompt_tokens = 0
        self.uncached_prompt_tokens = 0
        self.output_tokens = 0
        self.ttft = no_seconds()
        self.predicted_ttft = no_seconds()
        self.uncached_per_request = no_tokens()

    def arrived(self, seen: Observation) -> None:
        """It asks something of this model that its replicas could do."""
        self.num_arrivals += 1

    def foreseen(self, ttft_seconds: float) -> None:
        """When its first token should come, as soon as that could be said."""
        count_seconds(self.predicted_ttft, ttft_seconds)

    def dispatched(self, seen: Observation) -> None:
        """It goes to a replica. Further attempts bring no further demand: only the first one counts."""
        if seen.num_attempts != 1:
            return
        uncached = seen.num_prompt_tokens if seen.predicted_uncached_tokens is None else seen.predicted_uncached_tokens
        self.prompt_tokens += seen.num_prompt_tokens
        self.uncached_prompt_tokens += uncached
        count_tokens(self.uncached_per_request, uncached)

    def attempt_failed(self, seen: Observation, failure: str) -> None:
        """Nothing to count: the demand is the same."""

    def first_token(self, seen: Observation) -> None:
        """Its first token has come."""
        if seen.shows_ttft and seen.ttft_seconds is not None:
            count_seconds(self.ttft, seen.ttft_seconds)

    def ended(self, seen: Observation) -> None:
        """It is over, and its usage is known if an engine answered it."""
        self.num_ended += 1
        if seen.usage is not None and seen.usage.completion_tokens is not None:
            self.num_answered += 1
            self.output_tokens += seen.usage.completion_tokens
