"""`/fairlead/v1/requests/{id}`: where a request went, and why."""

from pathlib import Path
from typing import Any

from fairlead.fleet.directory import Outlook
from fairlead.gateway.access import KeyedAccess
from fairlead.gateway.observation import Observation
from fairlead.gateway.recent_requests import MAX_CANDIDATES, MAX_NAME_LENGTH, RecentRequests
from fairlead_common.wire.messages import StepCost
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.gateways import make_pool

KEYS = {"alice": "alice-0123456789abcdef", "bob": "bob-0123456789abcdef01"}


async def record(setup, request_id: str, **headers: str) -> tuple[int, dict[str, Any]]:
    async with setup.http.get(f"{setup.url}/fairlead/v1/requests/{request_id}", headers=headers) as answer:
        return answer.status, await answer.json()


async def test_a_request_tells_candidates_predictions_and_what_happened(start) -> None:
    cost = StepCost(base=0.001, prefill_token=1e-4)
    setup = await start(engines=[FakeEngine(f"engine-{number}", step_cost=cost) for number in range(3)], follow=True)
    body = {"model": "fake", "messages": [{"role": "user", "content": "word " * 60}]}
    _, _, headers = await setup.post(body)
    holder, index = headers["x-fairlead-replica"], setup.gateway.datastore.index
    await setup.until(lambda: index.num_blocks(holder) > 0)
    again = "again.request:2"
    await setup.post(body, headers={"x-request-id": again})
    status, found = await record(setup, again)
    assert status == 200
    assert (found["request_id"], found["status"], found["outcome"]) == (again, 200, "completed")
    assert (found["model"], found["asked_model"], found["path"]) == ("default/fake", "fake", "/v1/chat/completions")
    assert found["replica"] == found["candidates"][0]["replica"] == holder and found["reason"]
    assert len(found["candidates"]) == 3
    others = [each["cached_tokens"] for each in found["candidates"][1:]]
    assert others == [0, 0] and found["candidates"][0]["cached_tokens"] == found["num_predicted_cached_tokens"] > 0
    assert found["num_cached_tokens"] == found["num_predicted_cached_tokens"]
    assert found["duration_seconds"] > 0 and found["num_attempts"] == 1 and found["num_completion_tokens"] == 4
    assert "word" not in str(found), "nothing is kept of what was said"


async def test_a_refused_request_tells_its_end(start) -> None:
    setup = await start(pools=lambda _: [make_pool(name="broken", outlook=Outlook(False, "It cannot be loaded."))])
    body = {"model": "broken", "messages": [{"role": "user", "content": "Hi"}]}
    status, _, _ = await setup.post(body, headers={"x-request-id": "refused-1"})
    assert status == 503
    _, found = await record(setup, "refused-1")
    assert (found["status"], found["replica"], found["candidates"], found["num_attempts"]) == (503, None, [], 0)
    status, answer = await record(setup, "x" * 5000)
    assert status == 404 and answer["error"]["code"] == "request_not_kept" and len(answer["error"]["message"]) < 400


async def test_a_request_is_told_to_its_client_alone(start, tmp_path: Path) -> None:
    for name, key in KEYS.items():
        (tmp_path / name).write_text(key)
    setup = await start(access=KeyedAccess(tmp_path))
    body = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
    headers = {"x-api-key": KEYS["alice"], "x-request-id": "of-alice"}
    assert (await setup.post(body, headers=headers))[0] == 200
    assert (await record(setup, "of-alice", **{"x-api-key": KEYS["alice"]}))[0] == 200
    assert (await record(setup, "of-alice", **{"x-api-key": KEYS["bob"]}))[0] == 404
    assert (await record(setup, "of-alice"))[0] == 401


async def test_of_many_replicas_the_nearest_are_told(start) -> None:
    setup = await start(MAX_CANDIDATES + 4)
    body = {"model": "fake", "messages": [{"role": "user", "content": "Hi"}]}
    await setup.post(body, headers={"x-request-id": "one-of-many"})
    _, found = await record(setup, "one-of-many")
    assert len(found["candidates"]) == MAX_CANDIDATES and found["candidates"][0]["replica"] == found["replica"]


async def test_what_is_kept_is_bounded() -> None:
    kept = RecentRequests(num_kept=2)
    for request_id in ("a", "b", "a", "c"):
        kept.ended(Observation(request_id, "/v1/chat/completions", asked_model="m" * 10**6))
    assert kept.find("b", None) is None
    found = kept.find("a", None)
    assert found is not None and len(found.asked_model) == MAX_NAME_LENGTH
    assert kept.find("c", "somebody") is None and kept.find("c", None) is not None
