"""What a gateway expects of the caches of engines whose models keep states is what they find there.

Of talks with few beginnings, of which some are cut back and go on otherwise.
"""

import asyncio
import random
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from fairlead.routing.replica import Replica
from fairlead_engine_testing.attack import Engine, write_spoken_model
from fairlead_engine_testing.tiny_families import FAMILIES
from fairlead_testing.gateways import make_pool, running_gateway

NUM_ENGINES, NUM_TALKS, NUM_TURNS = 2, 25, 8
BLOCK_SIZE = 8
WORDS = (
    "box",
    "with",
    "a",
    "lid",
    "and",
    "two",
    "ropes",
    "one",
    "lamp",
    "that",
    "Ann",
    "has",
    "left",
    "there",
    "for",
    "the",
    "fox",
)


async def talk(client: httpx.AsyncClient, draw: random.Random, beginning: str) -> list[tuple[int, int]]:
    """Predicted and actual cached tokens of each turn."""
    text, seen = beginning, []
    for _ in range(NUM_TURNS):
        if draw.random() < 0.2:
            words = text.split(" ")
            text = " ".join(words[: draw.randint(10, len(words))])
        text += " " + " ".join(draw.choices(WORDS, k=draw.randint(1, 20)))
        reply = await client.post("/v1/completions", json={"model": "tiny", "prompt": text, "max_tokens": 4})
        assert reply.status_code == 200, reply.text
        actual = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        seen.append((int(reply.headers["x-fairlead-predicted-cached-tokens"]), actual))
    return seen


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", ["qwen3_5"])
async def test_cached_tokens_are_as_predicted_within_a_block(family: str, tmp_path: Path) -> None:
    model, draw = write_spoken_model(tmp_path / "tiny", FAMILIES[family]), random.Random(family)
    flags = ["--model", str(model), "--served-name", "tiny", "--dtype", "float32", "--block-size", str(BLOCK_SIZE)]
    flags += ["--kv-cache-memory", "8Mi", "--max-model-len", "500", "--max-num-seqs", "4"]
    with ExitStack() as stack:
        engines = []
        for number in range(NUM_ENGINES):
            (folder := tmp_path / str(number)).mkdir()
            engines.append(Engine(folder, flags))
            stack.callback(engines[-1].close)
        for engine in engines:
            engine.wait_ready()
        places = [urlsplit(engine.url) for engine in engines]
        pool = make_pool(
            [Replica(uid=f"e{at.port}", name=f"e{at.port}", host="127.0.0.1", port=int(at.port or 0)) for at in places],
            name="tiny",
        )
        async with running_gateway(pool, follow=True) as (gateway, _, url):
            now = asyncio.get_running_loop().time
            async with asyncio.timeout(60):
                while any(gateway.datastore.load(each.uid, now()) is None for each in pool.replicas) or not all(
                    each.prompts.digests for each in gateway.pools
                ):
                    await asyncio.sleep(0.05)
            beginnings = [" ".join(draw.choices(WORDS, k=draw.randint(10, 60))) for _ in range(3)]
            seen: list[tuple[int, int]] = []
            async with httpx.AsyncClient(base_url=url, timeout=120) as client:
                for at in range(0, NUM_TALKS, 5):
                    talks = (
                        talk(client, random.Random(f"{family}{at + i}"), draw.choice(beginnings)) for i in range(5)
                    )
                    seen += [each for one in await asyncio.gather(*talks) for each in one]
    assert len(seen) == 200
    assert sum(abs(predicted - actual) <= BLOCK_SIZE for predicted, actual in seen) >= 0.95 * len(seen), seen
    assert sum(actual for _, actual in seen) > 40 * len(seen), seen
