"""Clients who mean well: each kind sends one request or conversation and judges what comes back.

They know what a server must not get wrong: a greedy answer is the same every time, a stream ends in [DONE], usage adds
up, and what cannot be had now is refused with 429 and a Retry-After.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Protocol

import aiohttp

from fairlead.client.workload import harbour_log
from soak.asking import Asked, ClientLeft, Failed, Json, Refused, Requests
from soak.verdicts import Outcome, Verdicts

NUM_KNOWN = 12
"""Prompts whose greedy answers are asked for before anything disturbs the fleet."""
NUM_SAVED = 40
"""Answers that are remembered, so that prompts can foretell them."""

Kind = Callable[[Random], Awaitable[None]]
"""Sends one request or conversation. Raises Refused, ClientLeft and Failed."""


class Group(Protocol):
    """Clients who have something in common."""

    kinds: tuple[tuple[int, Kind], ...]
    """How often, and what."""

    async def learn(self) -> None:
        """Asks what is to be known while nothing else happens."""


class Crowd:
    """All groups together, drawn from at random."""

    def __init__(self, groups: tuple[Group, ...], verdicts: Verdicts) -> None:
        self._groups = groups
        self._verdicts = verdicts
        kinds = [kind for group in groups for kind in group.kinds]
        self._weights, self._kinds = [weight for weight, _ in kinds], [kind for _, kind in kinds]

    async def learn(self) -> None:
        """Of every group."""
        for group in self._groups:
            await group.learn()

    async def one(self, draw: Random) -> None:
        """One client of a kind that is drawn; its outcome is entered."""
        [kind] = draw.choices(self._kinds, self._weights)
        name, started = kind.__name__, time.monotonic()
        try:
            await kind(draw)
        except Refused:
            self._verdicts.enter(name, Outcome.TRY_LATER)
            await asyncio.sleep(draw.random())
        except ClientLeft:
            self._verdicts.enter(name, Outcome.LEFT)
        except (Failed, aiohttp.ClientError, OSError, TimeoutError) as error:
            self._verdicts.failed(name, f"{type(error).__name__}: {error}", started)
        else:
            self._verdicts.enter(name, Outcome.ANSWERED)


class Clients:
    """Who asks a model for text and nothing else."""

    def __init__(self, requests: Requests, model: str) -> None:
        self._requests = requests
        self._model = model
        self._prefixes = [harbour_log(Random(f"soak/{index}"), tokens) for index, tokens in enumerate((60, 200, 420))]
        self._known: dict[str, str] = {}
        """Prompt → its greedy answer of 24 tokens."""
        self._saved: list[tuple[str, str]] = []
        """Prompts and their greedy answers."""
        self.kinds: tuple[tuple[int, Kind], ...] = (
            (6, self.known),
            (4, self.shared_prefix),
            (3, self.conversation),
            (6, self.sampled),
            (3, self.echoing),
            (2, self.long),
            (3, self.leaver),
        )

    async def learn(self) -> None:
        """What each known prompt gives."""
        for index in range(NUM_KNOWN):
            prompt = f"{self._prefixes[index % 3]}\nThe log of ship {index} says"
            asked = await self._requests.answer("/v1/completions", {**self._greedy(24), "prompt": prompt})
            self._known[prompt] = asked.text

    # -- kinds --

    async def known(self, draw: Random) -> None:
        """A greedy prompt whose answer is known to the letter, whatever else is in the batch."""
        prompt, expected = draw.choice(list(self._known.items()))
        body = {**self._greedy(24), "prompt": prompt, "stream": draw.random() < 0.7}
        asked = await self._requests.answer("/v1/completions", body)
        if asked.text != expected:
            raise Failed(f"{prompt[-40:]!r} gave {asked.text!r} instead of {expected!r}")

    async def shared_prefix(self, draw: Random) -> None:
        """A chat behind one of a few system messages."""
        await self._chat(self._opening(draw), draw)

    async def conversation(self, draw: Random) -> None:
        """Three questions, each with the whole conversation so far."""
        messages = self._opening(draw)
        for _ in range(3):
            asked = await self._chat(messages, draw)
            messages += [{"role": "assistant", "content": asked.text}, _question(draw)]

    async def sampled(self, draw: Random) -> None:
        """A completion with a random choice of parameters, as text or token ids."""
        body: Json = {
            "model": self._model,
            "prompt": _prompt(draw),
            "max_tokens": draw.randint(1, 48),
            "temperature": draw.choice([0, 0.3, 1, 1.7]),
            "stream": draw.random() < 0.6,
        }
        optional: Json = {
            "top_p": draw.choice([1e-46, 0.1, 0.9, 1]),
            "seed": draw.randrange(2**31),
            "n": draw.randint(1, 3),
            "logprobs": draw.randint(0, 4),
            "stop": draw.choice(["a", [" the", "\n"], ["zzz"]]),
            "presence_penalty": draw.uniform(-2, 2),
            "ignore_eos": True,
            "cache_salt": draw.choice(["one", "two"]),
            "top_k": draw.randint(1, 20),
            "min_tokens": 1,
        }
        body |= {name: value for name, value in optional.items() if draw.random() < 0.25}
        asked = await self._requests.answer("/v1/completions", body)
        if len(asked.finish_reasons) != _num_prompts(body["prompt"]) * body.get("n", 1):
            raise Failed(f"{len(asked.finish_reasons)} choices for {body}")

    async def echoing(self, draw: Random) -> None:
        """A prompt, and at the same time one that is that prompt with the answer that it is going to get."""
        prompt, text = draw.choice(self._saved) if self._saved and draw.random() < 0.7 else (_words(draw, 12), "")
        bodies = [{**self._greedy(draw.randint(8, 40)), "prompt": prompt + said, "stream": True} for said in ("", text)]
        asked, _ = await asyncio.gather(*(self._requests.answer("/v1/completions", body) for body in bodies))
        self._saved = [*self._saved[1 - NUM_SAVED :], (prompt, asked.text)]

    async def long(self, draw: Random) -> None:
        """A prompt that takes most of a cache by itself."""
        prompt = harbour_log(draw, draw.choice([500, 600, 700]))
        await self._requests.answer(
            "/v1/completions", {**self._greedy(draw.randint(1, 12)), "prompt": prompt, "stream": True}
        )

    async def leaver(self, draw: Random) -> None:
        """Goes away: before anything came, or in the middle of a stream."""
        body = {**self._greedy(200), "prompt": _words(draw, 30), "n": draw.randint(1, 3), "stream": draw.random() < 0.7}
        patience = draw.choice([0.0, 0.02, 0.2, 1.0])
        try:
            async with asyncio.timeout(patience):
                await self._requests.answer("/v1/completions", body)
        except TimeoutError:
            raise ClientLeft from None

    # -- bodies --

    def _greedy(self, num_tokens: int) -> Json:
        return {"model": self._model, "temperature": 0, "max_tokens": num_tokens, "ignore_eos": True}

    def _opening(self, draw: Random) -> list[Json]:
        return [{"role": "system", "content": draw.choice(self._prefixes[:2])}, _question(draw)]

    async def _chat(self, messages: list[Json], draw: Random) -> Asked:
        body = {"model": self._model, "messages": messages, "max_tokens": 16, "stream": draw.random() < 0.7}
        return await self._requests.answer("/v1/chat/completions", body)


def _question(draw: Random) -> Json:
    return {"role": "user", "content": f"What is {draw.randint(0, 12)} plus {draw.randint(0, 12)}?"}


def _prompt(draw: Random) -> Any:
    """Text, token ids, or several of either."""
    one = _words(draw, draw.randint(1, 40))
    few = [draw.randrange(5, 500) for _ in range(draw.randint(1, 40))]
    return draw.choice([one, few, [one, _words(draw, 3)], [few, few[:3]]])


def _words(draw: Random, number: int) -> str:
    """Few different words: prompts that begin alike, and answers that are prompts."""
    return " ".join(draw.choice(("the", "log", "says", "tea", "7", "plus", "a", "ship")) for _ in range(number))


def _num_prompts(prompt: Any) -> int:
    return 1 if isinstance(prompt, str) or isinstance(prompt[0], int) else len(prompt)
