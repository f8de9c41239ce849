"""`/fairlead/v1/models`: how every model stands, those that cannot be asked too, behind the same keys as the API."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.fleet.directory import Outlook
from fairlead.gateway.access import KeyedAccess
from fairlead_testing.fake_engine import Refusal
from fairlead_testing.gateways import make_pool

KEY = "alice-0123456789abcdef"
ASLEEP = Outlook(True, "It is scaled to zero; Fairlead's autoscaler starts a replica.", asleep=True)


async def states(setup) -> dict:
    """By the first name."""
    async with setup.http.get(f"{setup.url}/fairlead/v1/models") as answer:
        assert answer.status == 200
        return {each["names"][0]: each for each in (await answer.json())["models"]}


async def test_models_say_their_state_reason_and_replicas(start) -> None:
    def pools(engines):
        fake = make_pool([engines[0].replica()], name="fake", aliases=("gpt",), departing=[engines[1].replica()])
        return [
            replace(fake, num_starting=2, trouble="The image cannot be pulled."),
            make_pool(name="zero", outlook=ASLEEP),
            make_pool(name="broken", namespace="other", outlook=Outlook(False, "The profile 'gpu' is not known.")),
        ]

    setup = await start(2, pools=pools)
    nothing = {"ready": 0, "starting": 0, "draining": 0}
    assert await states(setup) == {
        "fake": {
            "key": "default/fake", "names": ["fake", "gpt"], "state": "ready", "waiting": 0, "capabilities": [],
            "message": "The image cannot be pulled.", "replicas": {"ready": 1, "starting": 2, "draining": 1},
        },
        "zero": {
            "key": "default/zero", "names": ["zero"], "state": "asleep", "waiting": 0, "capabilities": [],
            "message": ASLEEP.message, "replicas": nothing,
        },
        "broken": {
            "key": "other/broken", "names": ["broken"], "state": "failed", "waiting": 0, "capabilities": [],
            "message": "The profile 'gpu' is not known.", "replicas": nothing,
        },
    }  # fmt: skip


async def test_names_stay_when_another_model_changes(start) -> None:
    setup = await start()
    fleet = setup.gateway.pools.fleet
    fleet.publish([*map(replace, fleet.directory.pools), make_pool(name="zero", outlook=ASLEEP)])
    assert list(await states(setup)) == ["fake", "zero"]


async def test_replicas_that_drain_and_requests_that_wait_are_counted(start) -> None:
    setup = await start(2, follow=True)
    assert (await states(setup))["fake"]["replicas"] == {"ready": 2, "starting": 0, "draining": 0}
    for engine in setup.engines:
        engine.refusal = Refusal.FULL
    request = asyncio.create_task(setup.stream())
    await setup.until(lambda: sum(len(pool.queue) for pool in setup.gateway.pools) == 1)
    assert (await states(setup))["fake"]["waiting"] == 1
    for engine in setup.engines:
        engine.refusal = None
    await request
    setup.engines[0].drain()
    await setup.until(lambda: [pool.num_ready for pool in setup.gateway.pools] == [1])
    assert (await states(setup))["fake"]["replicas"] == {"ready": 1, "starting": 0, "draining": 1}


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer wrong-0123456789abcdef"}])
async def test_without_a_key_nothing_is_told(start, tmp_path: Path, headers: dict[str, str]) -> None:
    (tmp_path / "alice").write_text(KEY)
    setup = await start(access=KeyedAccess(tmp_path), pools=lambda _: [make_pool(name="secret-name")])
    async with setup.http.get(f"{setup.url}/fairlead/v1/models", headers=headers) as answer:
        assert answer.status == 401 and "secret-name" not in await answer.text()
    async with setup.http.get(f"{setup.url}/fairlead/v1/models", headers={"x-api-key": KEY}) as answer:
        assert answer.status == 200 and "secret-name" in await answer.text()
