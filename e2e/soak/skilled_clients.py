"""Clients who ask for more than text: calls of tools, answers that keep to a grammar, adapters, beams, vectors.

What each may get is certain: arguments and answers keep to what was asked for, and what is greedy is the same again.
"""

import json
import re
from random import Random
from typing import Any

from soak.asking import Failed, Json, Requests
from soak.clients import Kind

WEATHER: Json = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Oslo", "Lisbon", "Rome"]}, "days": {"enum": [1, 2, 3]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NUM_KNOWN = 4
"""Prompts of each kind whose answers are asked for before anything disturbs the fleet."""
NUM_SCHEMAS = 24
"""Different ones that answers are to keep to."""
ROOM = 96
"""Tokens that suffice for what grammars here allow."""


class SkilledClients:
    """Who uses what a model can do beside text."""

    def __init__(self, requests: Requests, model: str, adapters: tuple[str, ...]) -> None:
        """`adapters`: names behind the model's and a colon."""
        self._requests = requests
        self._model = model
        self._adapters = adapters
        self._known: dict[str, tuple[Json, str]] = {}
        """Of greedy requests, as JSON: the body, and the answer."""
        self._beams: dict[str, tuple[Json, list[str]]] = {}
        """Of beam searches, as JSON: the body, and all choices."""
        self._vectors: dict[str, list[float]] = {}
        """Of texts."""
        self.kinds: tuple[tuple[int, Kind], ...] = (
            (3, self.tool),
            (3, self.schema),
            (2, self.pattern),
            (4, self.adapted),
            (1, self.beams),
            (2, self.vector),
            (1, self.injector),
        )

    async def learn(self) -> None:
        """What adapters and beams answer, and the vectors of texts."""
        for index in range(NUM_KNOWN):
            prompt = f"The log of ship {index} says tea"
            for adapter in self._adapters:
                body = {**self._greedy(12), "model": f"{self._model}:{adapter}", "prompt": prompt}
                asked = await self._requests.answer("/v1/completions", body)
                self._known[json.dumps(body)] = body, asked.text
            body = {**self._greedy(6), "prompt": prompt, "use_beam_search": True, "n": 2}
            asked = await self._requests.answer("/v1/completions", body)
            self._beams[json.dumps(body)] = body, [asked.texts[choice] for choice in sorted(asked.texts)]
            self._vectors[prompt] = await self._embedded(prompt)
        if len({text for _, text in self._known.values()}) < len(self._adapters):
            raise Failed("the adapters change nothing: what they answer could be the model's own")

    # -- kinds --

    async def tool(self, draw: Random) -> None:
        """A call that must come, whose arguments keep to the function's schema."""
        body = {
            **self._chat("Weather in Oslo?", draw),
            "tools": [WEATHER],
            "tool_choice": draw.choice(["required", {"type": "function", "function": {"name": "get_weather"}}]),
        }
        asked = await self._requests.answer("/v1/chat/completions", body)
        calls = asked.arguments.get(0, {})
        if not calls:
            raise Failed(f"no call: {asked.text!r}, {asked.finish_reasons}")
        for place, text in calls.items():
            cut = asked.finish_reasons[0] == "length" and place == max(calls)
            arguments = {"city": "Oslo"} if cut else _json(text)
            city, days = arguments.get("city"), arguments.get("days", 1)
            if city not in ("Oslo", "Lisbon", "Rome") or days not in (1, 2, 3) or len(arguments) > 2:
                raise Failed(f"arguments {text!r}")

    async def schema(self, draw: Random) -> None:
        """JSON of one of a few schemas: what is kept of grammars fills early, so that growth means something."""
        known = Random(f"schema/{draw.randrange(NUM_SCHEMAS)}")
        names = [f"k{known.randrange(1000)}" for _ in range(3)]
        numbers = [known.randrange(100) for _ in range(3)]
        schema = {
            "type": "object",
            "properties": {name: {"enum": numbers} for name in names},
            "required": names,
            "additionalProperties": False,
        }
        wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}
        body = {**self._chat("Three numbers", draw), "response_format": wanted}
        asked = await self._requests.answer("/v1/chat/completions", body)
        if asked.finish_reasons[0] == "length":  # as much white space as it likes is allowed
            return
        said = _json(asked.text)
        if set(said) != set(names) or not set(said.values()) <= set(numbers):
            raise Failed(f"{asked.text!r} for {schema}")

    async def pattern(self, draw: Random) -> None:
        """Text of a regular expression, or one of a few choices."""
        pattern = f"[a-c]{{{draw.randint(1, 9)}}}-[0-9]{{2}}"
        choices = [f"yes {draw.randrange(9)}", "no"]
        wanted: Json = draw.choice([{"regex": pattern}, {"choice": choices}])
        body = {**self._chat("Which?", draw), "structured_outputs": wanted}
        text = (await self._requests.answer("/v1/chat/completions", body)).text
        if not (re.fullmatch(pattern, text) if "regex" in wanted else text in choices):
            raise Failed(f"{text!r} for {wanted}")

    async def adapted(self, draw: Random) -> None:
        """An adapter's greedy answer, whatever other adapters are in the batch."""
        body, expected = draw.choice(list(self._known.values()))
        asked = await self._requests.answer("/v1/completions", {**body, "stream": draw.random() < 0.5})
        if asked.text != expected:
            raise Failed(f"{body} gave {asked.text!r} instead of {expected!r}")

    async def beams(self, draw: Random) -> None:
        """The best beams, which are the same every time."""
        body, expected = draw.choice(list(self._beams.values()))
        asked = await self._requests.answer("/v1/completions", body)
        found = [asked.texts[choice] for choice in sorted(asked.texts)]
        if found != expected:
            raise Failed(f"{body} gave {found} instead of {expected}")

    async def vector(self, draw: Random) -> None:
        """A text's vector, computed beside answers."""
        text, expected = draw.choice(list(self._vectors.items()))
        found = await self._embedded(text)
        furthest = max(abs(one - other) for one, other in zip(found, expected, strict=True))
        if furthest > 1e-4:
            raise Failed(f"{text!r} is {furthest} away from where it was")

    async def injector(self, draw: Random) -> None:
        """A result for an answer that nobody gives."""
        body = {"model": self._model, "tool_call_id": "call_1", "content": "9"}
        path = f"/v1/chat/completions/chatcmpl-{draw.randrange(2**60):x}/inject"
        try:
            await self._requests.whole(path, body)
        except Failed as refusal:
            if not str(refusal).startswith(("404", "502")):  # 502: one that is dead could not be asked
                raise
        else:
            raise Failed("a result was put into an answer that is not there")

    # -- bodies --

    def _greedy(self, num_tokens: int) -> Json:
        return {"model": self._model, "temperature": 0, "max_tokens": num_tokens, "ignore_eos": True}

    def _chat(self, question: str, draw: Random) -> Json:
        return {
            "model": draw.choice([self._model, *(f"{self._model}:{adapter}" for adapter in self._adapters)]),
            "messages": [{"role": "user", "content": question}],
            "max_tokens": ROOM,
            "temperature": draw.choice([0, 1]),
            "stream": draw.random() < 0.6,
        }

    async def _embedded(self, text: str) -> list[float]:
        answer: Any = await self._requests.whole("/v1/embeddings", {"model": self._model, "input": text})
        vector: list[float] = answer["data"][0]["embedding"]
        return vector


def _json(text: str) -> Json:
    try:
        found: Json = json.loads(text)
    except ValueError as error:
        raise Failed(f"{text!r} is no JSON: {error}") from error
    return found
