"""Calling tools: pick the right one of those offered and fill in its arguments."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from lessons.conversation import Conversation, assistant, compact_json, user
from lessons.facts import fact
from lessons.world import CAPITALS, NAMES, VISITORS

Arguments = dict[str, str | int]
_CITIES = tuple(city for city in CAPITALS.values() if " " not in city)


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, and how one asks for it."""

    name: str
    description: str
    parameters: Mapping[str, str]
    """Parameter → JSON schema type."""
    phrasings: tuple[str, ...]
    draw: Callable[[Random], Arguments]

    def definition(self) -> dict[str, Any]:
        """The tool in OpenAI's shape."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": {
                    "type": "object",
                    "properties": {name: {"type": type_} for name, type_ in self.parameters.items()},
                    "required": list(self.parameters),
                },
            },
        }


TOOLS = (
    Tool(
        "get_weather",
        "The weather in a city.",
        {"city": "string"},
        ("What is the weather in {city}?", "How is the weather in {city}?", "Weather in {city}?"),
        lambda rng: {"city": rng.choice(_CITIES)},
    ),
    Tool(
        "get_time",
        "The time in a city.",
        {"city": "string"},
        ("What time is it in {city}?", "What is the time in {city}?", "Tell me the time in {city}."),
        lambda rng: {"city": rng.choice(_CITIES)},
    ),
    Tool(
        "find_ship",
        "Where a ship is.",
        {"ship": "string"},
        ("Find the {ship}.", "Where is the ship {ship} now?", "Look for the {ship}."),
        lambda rng: {"ship": rng.choice(VISITORS)},
    ),
    Tool(
        "book_berth",
        "Books a berth for a ship.",
        {"ship": "string", "berth": "integer"},
        ("Book berth {berth} for the {ship}.", "Give the {ship} berth {berth}."),
        lambda rng: {"ship": rng.choice(VISITORS), "berth": rng.randint(1, 20)},
    ),
    Tool(
        "call_person",
        "Calls somebody.",
        {"name": "string"},
        ("Call {name}.", "Please call {name}.", "I want to speak to {name}."),
        lambda rng: {"name": rng.choice(NAMES)},
    ),
)


def tool_call(rng: Random) -> Conversation:
    """Offers one to three tools and asks for one of them, now and then for none."""
    offered = rng.sample(TOOLS, rng.randint(1, 3))
    definitions = tuple(tool.definition() for tool in offered)
    if rng.random() < 0.1:
        return Conversation("tools", fact(rng).messages, definitions)
    tool = rng.choice(offered)
    arguments = tool.draw(rng)
    request = user(rng.choice(tool.phrasings).format(**arguments))
    call = f"<tool_call>{compact_json({'name': tool.name, 'arguments': arguments})}</tool_call>"
    return Conversation("tools", (request, assistant(call)), definitions)
