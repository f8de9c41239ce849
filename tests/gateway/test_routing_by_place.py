"""Canonical paths and Host headers choose a deployment; its body may not name another."""

from fairlead.fleet.directory import Pool
from fairlead_testing.fake_engine import FakeEngine
from fairlead_testing.gateways import make_pool

MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = {"model": "fake", "messages": MESSAGES}


def two_with_one_name(engines: list[FakeEngine]) -> list[Pool]:
    return [
        make_pool([engines[0].replica()], name="old", namespace="prod", served_name="fake", created=1.0),
        make_pool([engines[1].replica()], name="new", namespace="dev", served_name="fake", created=2.0),
    ]


async def test_a_bare_name_shared_by_two_goes_to_the_older(start) -> None:
    setup = await start(2, pools=two_with_one_name)
    assert (await setup.post(CHAT))[2]["x-fairlead-replica"] == "engine-0"
    assert (await setup.post({**CHAT, "model": "dev/fake"}))[2]["x-fairlead-replica"] == "engine-1"


async def test_the_canonical_path_chooses_with_or_without_a_model_in_the_body(start) -> None:
    setup = await start(2, pools=two_with_one_name)
    for body in (CHAT, {"messages": MESSAGES}, {**CHAT, "model": "dev/fake"}, {**CHAT, "model": "dev/new"}):
        status, _, headers = await setup.post(body, "/dev/new/v1/chat/completions")
        assert (status, headers["x-fairlead-replica"]) == (200, "engine-1")
    assert {request.json()["model"] for request in setup.engines[1].requests} == {"fake"}


async def test_the_host_chooses_too_but_the_path_goes_first(start) -> None:
    setup = await start(2, pools=two_with_one_name)
    for host in ("new.dev", "NEW.dev.svc.cluster.local:80"):
        _, _, headers = await setup.post(CHAT, headers={"host": host})
        assert headers["x-fairlead-replica"] == "engine-1"
    _, _, headers = await setup.post(CHAT, "/prod/old/v1/chat/completions", headers={"host": "new.dev"})
    assert headers["x-fairlead-replica"] == "engine-0"


async def test_a_model_that_is_not_this_deployments_is_404_there(start) -> None:
    setup = await start(2, pools=two_with_one_name)
    for path, headers in (("/dev/new/v1/chat/completions", {}), ("/v1/chat/completions", {"host": "new.dev"})):
        status, document, _ = await setup.post({**CHAT, "model": "prod/old"}, path, headers=headers)
        assert status == 404
        assert "dev/new" in document["error"]["message"]


async def test_a_canonical_path_of_nothing_is_404(start) -> None:
    setup = await start()
    status, document, _ = await setup.post(CHAT, "/dev/missing/v1/chat/completions")
    assert (status, document["error"]["code"]) == (404, "model_not_found")


async def test_at_its_own_place_a_deployment_lists_its_own_names(start) -> None:
    setup = await start(2, pools=two_with_one_name)
    for url, headers in ((f"{setup.url}/dev/new/v1/models", {}), (f"{setup.url}/v1/models", {"host": "new.dev"})):
        async with setup.http.get(url, headers=headers) as response:
            assert [entry["id"] for entry in (await response.json())["data"]] == ["fake"]
    async with setup.http.get(f"{setup.url}/dev/new/v1/models/fake") as response:
        assert (await response.json())["owned_by"] == "dev"


async def test_the_official_client_works_at_the_canonical_url(start) -> None:
    setup = await start(2, pools=two_with_one_name)
    client = setup.openai.with_options(base_url=f"{setup.url}/dev/new/v1")
    answer = await client.chat.completions.create(**CHAT)
    assert answer.id == "engine-1-1"
