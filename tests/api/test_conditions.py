"""Conditions: when lastTransitionTime moves, and what is found."""

from fairlead.api.conditions import (
    MAX_MESSAGE_LENGTH,
    MAX_REASON_LENGTH,
    Condition,
    ConditionStatus,
    ConditionType,
    Reason,
    find_condition,
    merge_conditions,
)

EARLIER, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"


def ready(status: ConditionStatus, reason: Reason = Reason.RECONCILING, message: str = "soon") -> Condition:
    return Condition(ConditionType.READY, status, reason, message)


def test_a_new_condition_has_changed_now() -> None:
    (merged,) = merge_conditions([], [ready(ConditionStatus.FALSE)], generation=3, time=LATER)
    assert merged == {
        "type": "Ready",
        "status": "False",
        "reason": "Reconciling",
        "message": "soon",
        "observedGeneration": 3,
        "lastTransitionTime": LATER,
    }


def test_what_is_told_is_no_longer_than_a_status_takes() -> None:
    condition = Condition(ConditionType.READY, ConditionStatus.FALSE, "R" * 100_000, "m" * 10_000_000)
    (merged,) = merge_conditions([], [condition], generation=3, time=LATER)
    assert len(merged["message"]) == MAX_MESSAGE_LENGTH and len(merged["reason"]) == MAX_REASON_LENGTH
    assert merge_conditions([merged], [condition], generation=3, time=EARLIER) == [merged]


def test_another_reason_is_no_transition() -> None:
    before = merge_conditions([], [ready(ConditionStatus.FALSE)], generation=1, time=EARLIER)
    now = ready(ConditionStatus.FALSE, Reason.LOADING_MODEL, "loading")
    (merged,) = merge_conditions(before, [now], generation=2, time=LATER)
    assert merged["lastTransitionTime"] == EARLIER
    assert merged["reason"] == "LoadingModel"
    assert merged["observedGeneration"] == 2


def test_another_status_is_a_transition() -> None:
    before = merge_conditions([], [ready(ConditionStatus.FALSE)], generation=1, time=EARLIER)
    (merged,) = merge_conditions(before, [ready(ConditionStatus.TRUE)], generation=1, time=LATER)
    assert merged["lastTransitionTime"] == LATER


def test_a_condition_without_a_time_gets_one() -> None:
    (merged,) = merge_conditions(
        [{"type": "Ready", "status": "True"}], [ready(ConditionStatus.TRUE)], generation=1, time=LATER
    )
    assert merged["lastTransitionTime"] == LATER


def test_a_condition_is_found_by_its_type() -> None:
    status = {"conditions": [{"type": "Degraded", "status": "True"}, {"type": "Ready", "status": "False"}]}
    assert find_condition(status, ConditionType.READY) == {"type": "Ready", "status": "False"}
    assert find_condition(status, ConditionType.PROGRESSING) == {}
    assert find_condition({}, ConditionType.READY) == {}
