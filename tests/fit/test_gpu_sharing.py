"""Budgets of GPUs: never exceeded, minimums first, then priority, then lateness; and equals take nothing from each
other."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.fit.gpu_sharing import Claim, Grant, share

checked = settings(deadline=None, max_examples=100)
BUDGETS = {"a100s": 16, "team": 9}


@st.composite
def claims(draw: st.DrawFn) -> list[Claim]:
    """What is running is within the budgets."""
    made: list[Claim] = []
    for number in range(draw(st.integers(1, 5))):
        fewest = draw(st.integers(0, 2))
        claim = Claim(
            name=f"default/{number}", gpus=draw(st.sampled_from([1, 2, 4])), fewest=fewest,
            budgets=draw(st.sampled_from([("a100s",), ("team",), ("a100s", "team")])), current=draw(st.integers(0, 6)),
            wanted=fewest + draw(st.integers(0, 6)), leaving=draw(st.sampled_from([0, 0, 1])),
            priority=draw(st.integers(0, 2)), lateness=draw(st.floats(0.0, 3.0)), is_scaled=draw(st.booleans()),
        )  # fmt: skip
        fits = all(used([*made, claim])[name] <= most for name, most in BUDGETS.items())
        made.append(claim if fits else replace(claim, current=0, leaving=0))
    return made


def used(taken: list[Claim]) -> dict[str, int]:
    return {name: sum(each.held for each in taken if name in each.budgets) for name in BUDGETS}


def followed(taken: list[Claim]) -> list[Claim]:
    """Everybody as granted, and nothing drains any more."""
    for _ in range(20):
        grants = share(taken, BUDGETS)
        taken = [replace(each, current=grants[each.name].replicas, leaving=0) for each in taken]
    return taken


@checked
@given(claims(), st.randoms())
def test_a_budget_is_never_exceeded_and_the_order_of_claims_is_nothing(taken: list[Claim], random: object) -> None:
    grants = share(taken, BUDGETS)
    more = [replace(each, current=max(each.current, grants[each.name].replicas)) for each in taken]
    assert all(used(more)[name] <= most for name, most in BUDGETS.items()), "also before anything has gone"
    assert share(taken[::-1], BUDGETS) == grants
    for each in taken:
        grant = grants[each.name]
        assert grant.replicas == each.current if not each.is_scaled else grant.replicas <= each.wanted
        assert bool(grant.because) is (each.is_scaled and grant.replicas < each.wanted)


@checked
@given(claims())
def test_minimums_come_first_and_the_rest_settles_at_once(taken: list[Claim]) -> None:
    settled = followed(taken)
    assert followed(settled) == settled
    least = [replace(each, current=each.fewest, leaving=0) if each.is_scaled else each for each in taken]
    if all(used(least)[name] <= most for name, most in BUDGETS.items()):
        assert all(each.current >= each.fewest for each in settled if each.is_scaled)


@checked
@given(claims(), st.data())
def test_who_wants_more_takes_nothing_from_equals_or_the_more_important(
    taken: list[Claim], data: st.DataObject
) -> None:
    settled = followed(taken)
    one = data.draw(st.sampled_from(settled))
    changed = replace(one, wanted=one.wanted + 5, lateness=one.lateness + 5.0)
    after = {each.name: each for each in followed([changed if each is one else each for each in settled])}
    for each in settled:
        if each.priority >= one.priority and each is not one:
            assert after[each.name].current >= each.current, (each, one)


def test_the_sentence_says_who_waits_for_whom() -> None:
    chat = Claim(name="default/chat", gpus=4, budgets=("a100s",), current=3, wanted=3, priority=10)
    draft = Claim(name="default/draft", gpus=2, budgets=("a100s",), current=2, wanted=4)
    because = (
        "2 of 4 wanted replicas wait for GPU budget a100s: 16 of 16 GPUs, of which default/chat (priority 10) holds 12"
    )
    assert share([chat, draft], {"a100s": 16})["default/draft"] == Grant(2, because)


def test_the_later_of_equals_is_first_and_the_more_important_takes_what_is_above_the_minimum() -> None:
    def claim(name: str, current: int, wanted: int, priority: int = 0, lateness: float = 0.0) -> Claim:
        return Claim(
            name=name, gpus=1, budgets=("b",), current=current, wanted=wanted, fewest=1, priority=priority,
            lateness=lateness,
        )  # fmt: skip

    equals = share([claim("a", 1, 4, lateness=1.0), claim("b", 1, 4, lateness=2.0)], {"b": 5})
    assert [each.replicas for each in equals.values()] == [3, 2], "in turn, the latest first"
    running, urgent = claim("a", 4, 4), claim("b", 1, 3, priority=1)
    first = share([running, urgent], {"b": 5})
    assert (first["a"].replicas, first["b"].replicas) == (2, 1), "none is added before there is room"
    assert share([replace(running, current=2), urgent], {"b": 5})["b"].replicas == 3
