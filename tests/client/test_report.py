"""Percentiles, goodput and predictions, for any outcome of any load."""

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.client.load_generator import LoadSample
from fairlead.client.openai import ChatAnswer, RequestFailed
from fairlead.client.report import Objectives, Percentiles, percentile, predictions_of, report

seconds = st.floats(0.0001, 100.0)


def answered(
    ttft: float = 0.5, *, due: float = 0.0, waited: float = 0.0, tokens: int = 11, **fields: object
) -> LoadSample:
    """Ends one second after its first token."""
    completion = ChatAnswer(ttft_seconds=ttft, duration_seconds=ttft + 1.0, num_completion_tokens=tokens, **fields)
    return LoadSample(due, sent=due + waited, ended=due + waited + ttft + 1.0, completion=completion)


def refused(status: int = 429, code: str | None = "queue_full") -> LoadSample:
    return LoadSample(0.0, ended=0.1, error=RequestFailed(status, "no", code=code))


samples = st.lists(
    st.one_of(
        st.builds(answered, seconds, waited=st.floats(0, 10), tokens=st.integers(1, 100)),
        st.builds(refused, st.sampled_from([429, 500, 0])),
        st.just(LoadSample(0.0)),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0, 100))
def test_percentiles_are_numpys(values: list[float], percent: float) -> None:
    assert percentile(values, percent) == pytest.approx(float(numpy.percentile(values, percent)), abs=1e-6)


def test_of_nothing_there_are_no_percentiles() -> None:
    assert percentile([], 50) == 0.0
    assert Percentiles.of([None]) is None
    assert Percentiles.of([None, 1.0, 3.0]) == Percentiles(mean=2.0, p50=2.0, p90=2.8, p99=2.98, max=3.0)


@settings(deadline=None, max_examples=50)
@given(samples)
def test_every_request_is_in_exactly_one_class(sent: list[LoadSample]) -> None:
    seen = report(sent, 10.0)
    classes = (seen.num_completed, seen.num_rejected, seen.num_failed, seen.num_unfinished)
    assert sum(classes) == seen.num_requests == len(sent)
    assert sum(seen.errors.values()) == seen.num_rejected + seen.num_failed


@settings(deadline=None, max_examples=50)
@given(samples, seconds, seconds, seconds)
def test_goodput_is_of_all_requests_and_falls_with_stricter_objectives(
    sent: list[LoadSample], ttft: float, tpot: float, stricter: float
) -> None:
    seen = report(sent, 10.0, objectives=Objectives(ttft_seconds=ttft, tpot_seconds=tpot)).goodput
    strict = report(sent, 10.0, objectives=Objectives(ttft_seconds=min(ttft, stricter), tpot_seconds=tpot)).goodput
    assert seen is not None and strict is not None
    met = [
        each
        for each in sent
        if each.error is None
        and each.ended is not None
        and (each.ttft_seconds or 0) <= ttft
        and (each.completion.tpot_seconds or 0) <= tpot
    ]
    assert seen.ratio == pytest.approx(len(met) / len(sent) if sent else 0.0)
    assert seen.per_second == pytest.approx(len(met) / 10.0)
    assert 0 <= strict.ratio <= seen.ratio <= 1


def test_rejects_and_errors_are_misses() -> None:
    sent = [answered(), answered(), refused(), refused(500), LoadSample(0.0)]
    seen = report(sent, 4.0, objectives=Objectives(ttft_seconds=1.0)).goodput
    assert seen is not None
    assert (seen.ratio, seen.per_second) == (2 / 5, 0.5)
    assert report(sent, 4.0).goodput is None


def test_the_wait_before_sending_counts_against_the_objective() -> None:
    late = answered(0.5, waited=0.6)
    assert late.ttft_seconds == pytest.approx(1.1)
    assert not Objectives(ttft_seconds=1.0).met_by(late)
    assert Objectives(ttft_seconds=1.0).met_by(answered(0.5))


def test_the_time_per_further_token_is_held_to_its_own_limit() -> None:
    assert answered(tokens=11).completion.tpot_seconds == pytest.approx(0.1)
    assert Objectives(tpot_seconds=0.11).met_by(answered(tokens=11))
    assert not Objectives(tpot_seconds=0.09).met_by(answered(tokens=11))
    assert Objectives(tpot_seconds=0.09).met_by(answered(tokens=1)), "there is no further token"


def test_figures_of_a_load() -> None:
    first = answered(0.2, num_prompt_tokens=100, num_cached_tokens=64, replica="a")
    second = answered(0.4, num_prompt_tokens=100, num_cached_tokens=0, replica="b")
    second.right, first.right = True, False
    seen = report([first, second, first, refused(), refused(0, None), refused(503, "no_replicas")], 2.0)
    assert (seen.requests_per_second, seen.output_tokens, seen.output_tokens_per_second) == (1.5, 33, 16.5)
    assert seen.cached_ratio == pytest.approx(128 / 300)
    assert seen.by_replica == {"a": 2, "b": 1}
    assert (seen.num_checked, seen.num_right) == (3, 1)
    assert seen.errors == {"HTTP 429 queue_full": 1, "no": 1, "HTTP 503 no_replicas": 1}
    assert seen.ttft is not None and seen.ttft.p50 == pytest.approx(0.2)
    assert (seen.num_rejected, seen.num_failed) == (1, 2)


def test_nothing_sent_is_no_figures() -> None:
    seen = report([], 0.0)
    assert (seen.num_requests, seen.ttft, seen.cached_ratio, seen.requests_per_second) == (0, None, None, 0.0)


def test_predictions_against_what_came() -> None:
    exact = answered(0.2, num_cached_tokens=64, predicted_cached_tokens=64, predicted_ttft_seconds=0.2)
    near = answered(0.2, num_cached_tokens=64, predicted_cached_tokens=48, predicted_ttft_seconds=0.1)
    far = answered(0.2, num_cached_tokens=0, predicted_cached_tokens=64, predicted_ttft_seconds=0.5)
    seen = predictions_of([exact, near, far, answered()])
    assert (seen.num_cached, seen.num_ttft) == (3, 3)
    assert seen.within_one_block_ratio == pytest.approx(2 / 3)
    assert seen.ttft_median_error_ratio == pytest.approx(0.5)
    waited = answered(0.2, predicted_ttft_seconds=0.05)
    assert predictions_of([waited]).ttft_median_error_ratio == pytest.approx(0.75), "the wait was not foreseen"
    assert predictions_of([exact, near], block_size=8).within_one_block_ratio == 0.5
    assert predictions_of([answered()]).within_one_block_ratio is None
