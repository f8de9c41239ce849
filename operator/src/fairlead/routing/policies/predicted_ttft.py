"""PredictedTTFT: the replica with the earliest expected first token."""

from collections.abc import Mapping, Sequence
from statistics import median_low

from fairlead.api.llmdeployment import Routing
from fairlead.routing.policies.least_loaded import LeastLoaded
from fairlead.routing.prompt import Prompt
from fairlead.routing.replica import Candidate, Decision


class PredictedTTFT:
    """Compares expected seconds.

    - Differences below TIE_RATIO and TIE_SECONDS do not count: among ties the fewest uncached tokens decide, then the
      fewest requests, then the request's session, then turns.
    - A replica without a prediction (no load or step cost yet) counts as typical: the median predicted time, in
      proportion to its requests against the others' median. So it gets its share under load, neither every request nor
      none.
    - Without any prediction the fewest requests decide.
    """

    TIE_RATIO = 0.05
    TIE_SECONDS = 0.001

    def __init__(self, routing: Routing) -> None:
        self._least_loaded = LeastLoaded(routing)

    def pick(self, candidates: Sequence[Candidate], prompt: Prompt, in_flight: Mapping[str, int]) -> Decision:
        expected = expected_seconds(candidates)
        if not expected:
            unknown = self._least_loaded.fewest(candidates)
            return unknown.candidate.decided(f"nothing is known of loads; {unknown.reason}")
        soonest = min(expected.values())
        bound = soonest * (1 + self.TIE_RATIO) + self.TIE_SECONDS
        ties = [each for each in candidates if expected[each.replica.uid] <= bound]
        least = min(each.uncached_tokens for each in ties)
        chosen, _, by_session = self._least_loaded.fewest([each for each in ties if each.uncached_tokens == least])
        reason = self._reason(chosen, expected)
        return chosen.decided(f"{reason}; served its session among equal ones" if by_session else reason)

    @staticmethod
    def _reason(chosen: Candidate, expected: Mapping[str, float]) -> str:
        others = [seconds for uid, seconds in expected.items() if uid != chosen.replica.uid]
        reason = f"first token in {_ms(expected[chosen.replica.uid])}"
        if chosen.predicted_ttft_seconds is None:
            reason += ", if it is as others are: its load is not known"
        if chosen.is_tokenized:
            num_tokens = chosen.cached_tokens + chosen.uncached_tokens
            reason += f" ({chosen.cached_tokens} of {num_tokens} tokens cached)"
        if chosen.loading_seconds:
            reason += f", {_ms(chosen.loading_seconds)} of it to load the adapter"
        return f"{reason}; next best {_ms(min(others))}" if others else f"{reason}; the only one with room"


def expected_seconds(candidates: Sequence[Candidate]) -> dict[str, float]:
    """By uid: the predicted TTFT or its substitute (`PredictedTTFT`); empty = nothing is predicted."""
    known = [(each.predicted_ttft_seconds, each) for each in candidates if each.predicted_ttft_seconds is not None]
    expected = {each.replica.uid: seconds for seconds, each in known}
    if known and len(known) < len(candidates):
        per_request = median_low(expected.values()) / (median_low(each.num_in_flight for _, each in known) + 1)
        for each in candidates:
            expected.setdefault(each.replica.uid, per_request * (each.num_in_flight + 1))
    return expected


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 10.0 else f"{seconds:.0f} s"
