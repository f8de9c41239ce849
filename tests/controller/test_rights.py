"""What a server serves and what we may do there, asked of a small server."""

import pytest

from fairlead.controller import capabilities as access
from fairlead.controller.capabilities import AccessReviews, Right, is_served, may_list, rights
from fairlead.kube.client import KubeError
from fairlead.kube.resources import NETWORK_POLICIES, POD_DISRUPTION_BUDGETS, POD_MONITORS, PODS
from fairlead_testing.api_servers import discovering


async def test_a_kind_is_served_in_its_very_version() -> None:
    async with discovering(POD_DISRUPTION_BUDGETS, PODS) as client:
        assert await is_served(client, POD_DISRUPTION_BUDGETS)
        assert await is_served(client, PODS)
        assert not await is_served(client, POD_MONITORS)
        assert not await is_served(client, NETWORK_POLICIES)


async def test_any_other_answer_is_neither_yes_nor_no() -> None:
    async with discovering(fail_with=503) as client:
        with pytest.raises(KubeError):
            await is_served(client, POD_MONITORS)


async def test_rights_that_are_missing_are_named_with_their_namespace() -> None:
    async with discovering(PODS, denied={("delete", "pods", "b"), ("patch", "pods", "b")}) as client:
        missing = await AccessReviews(client).missing(rights(PODS, ("list", "patch", "delete"), ("a", "b")))
    assert [right.sentence_part for right in missing] == [
        "patch pods in the namespace b",
        "delete pods in the namespace b",
    ]


def test_a_right_for_everything_and_one_for_a_subresource_are_written_as_people_read_them() -> None:
    assert rights(NETWORK_POLICIES, ("list",), None)[0].sentence_part == (
        "list networkpolicies.networking.k8s.io in all namespaces"
    )
    scale = Right("patch", "fairlead.dev", "llmdeployments", "a", "scale")
    assert scale.sentence_part == "patch llmdeployments.fairlead.dev/scale in the namespace a"


async def test_where_such_questions_are_not_served_nothing_is_missing() -> None:
    async with discovering(PODS, knows_rights=False, denied={("list", "pods", "a")}) as client:
        reviews = AccessReviews(client)
        assert await reviews.missing(rights(PODS, ("list",), ("a",))) == []
    assert reviews.refusal == "authorization.k8s.io/v1 is not served"


@pytest.mark.parametrize(("status", "attempts"), [(403, 1), (500, 3), (503, 3), (429, 3)])
async def test_where_they_are_refused_or_fail_nothing_is_missing_and_no_more_is_asked(
    monkeypatch: pytest.MonkeyPatch, status: int, attempts: int
) -> None:
    monkeypatch.setattr(access, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(access, "QUESTIONS_AT_ONCE", 1)
    asked: list[str] = []
    async with discovering(PODS, denied={("list", "pods", "a")}, fail_reviews_with=status, asked=asked) as client:
        reviews = AccessReviews(client)
        assert await reviews.missing(rights(PODS, ("list", "patch"), ("a",))) == []
        assert await reviews.missing(rights(PODS, ("delete",), ("a",))) == []
    assert asked == ["list"] * attempts
    assert reviews.refusal is not None
    assert str(status) in reviews.refusal


async def test_an_answer_that_does_not_come_is_waited_for_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(access, "ANSWER_SECONDS", 0.05)
    async with discovering(PODS, review_seconds=5.0) as client:
        reviews = AccessReviews(client)
        assert await reviews.missing(rights(PODS, ("list",), ("a",))) == []
    assert reviews.refusal is not None
    assert "no answer in time" in reviews.refusal


async def test_what_may_be_listed_is_found_out_by_listing() -> None:
    async with discovering(PODS, lists={"a": 200, "b": 403, "c": 500, "d": 404}) as client:
        assert await may_list(client, PODS, "a")
        assert await may_list(client, PODS, "d"), "what is not there is not refused"
        assert not await may_list(client, PODS, "b")
        with pytest.raises(KubeError):
            await may_list(client, PODS, "c")
