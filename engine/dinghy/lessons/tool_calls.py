"""Calling tools: pick the right one of those offered, fill in its arguments, and say what it has answered.

What is said of a tool, what its parameters are called, and partly its own name differ from conversation to
conversation, so that all of it has to be read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from lessons.conversation import Conversation, Message, assistant, compact_json, tool_call_message, tool_result, user
from lessons.facts import fact
from lessons.world import CAPITALS, COLOURS, NAMES, OPPOSITES, VISITORS, YOUNG

Arguments = dict[str, str | int]
_CITIES = tuple(city for city in CAPITALS.values() if " " not in city)
_SKIES = ("rain", "sun", "snow", "fog", "wind")
_CITY = ("city", "location")
_WORDS = (
    *CAPITALS, *COLOURS, *YOUNG, *(word for pair in OPPOSITES for word in pair), "the", "a", "of", "for", "current",
    "returns", "gets", "function", "information", "given", "name", "in", "now", "by",
)  # fmt: skip
_SPARE = ("unit", "language", "format", "date", "verbose", "limit", "timezone", "detail")
"""Parameters that are never filled in."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool, the names that it and its parameters may have, and how one asks for it."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: Mapping[str, tuple[str, tuple[str, ...]]]
    """What an argument is → its JSON schema type, and the names its parameter may have."""
    phrasings: tuple[str, ...]
    draw: Callable[[Random], Arguments]
    answer: Callable[[Random], tuple[dict[str, str | int], str]]
    """What it returns, and how that is said."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool as it is offered in one conversation."""

    tool: Tool
    name: str
    parameters: Mapping[str, str]
    """What an argument is → the name of its parameter."""
    definition: dict[str, Any]
    """In OpenAI's shape."""


def _weather(rng: Random) -> tuple[dict[str, str | int], str]:
    degrees, sky = rng.randint(0, 30), rng.choice(_SKIES)
    return {"degrees": degrees, "sky": sky}, f"{degrees} degrees and {sky}"


def _time(rng: Random) -> tuple[dict[str, str | int], str]:
    hour = rng.randint(1, 24)
    return {"hour": hour}, f"{hour}"


def _berth(rng: Random) -> tuple[dict[str, str | int], str]:
    berth = rng.randint(1, 20)
    return {"berth": berth}, f"berth {berth}"


def _done(rng: Random) -> tuple[dict[str, str | int], str]:
    return {"result": "done"}, "done"


TOOLS = (
    Tool(
        ("get_weather", "get_current_weather"),
        ("The weather in a city.", "The weather in a city", "Get the current weather.", "Current weather for a place."),
        {"city": ("string", _CITY)},
        ("What is the weather in {city}?", "How is the weather in {city}?", "Weather in {city}?",
         "What's the weather like in {city}?", "Tell me the weather in {city}."),
        lambda rng: {"city": rng.choice(_CITIES)},
        _weather,
    ),
    Tool(
        ("get_time",),
        ("The time in a city.", "The time in a city", "Get the local time.", "Current time for a place."),
        {"city": ("string", _CITY)},
        ("What time is it in {city}?", "What is the time in {city}?", "Tell me the time in {city}."),
        lambda rng: {"city": rng.choice(_CITIES)},
        _time,
    ),
    Tool(
        ("find_ship",),
        ("Where a ship is.", "Where a ship is", "Finds a ship."),
        {"ship": ("string", ("ship", "name"))},
        ("Find the {ship}.", "Where is the ship {ship} now?", "Look for the {ship}."),
        lambda rng: {"ship": rng.choice(VISITORS)},
        _berth,
    ),
    Tool(
        ("book_berth",),
        ("Books a berth for a ship.", "Books a berth for a ship"),
        {"ship": ("string", ("ship",)), "berth": ("integer", ("berth", "number"))},
        ("Book berth {berth} for the {ship}.", "Give the {ship} berth {berth}."),
        lambda rng: {"ship": rng.choice(VISITORS), "berth": rng.randint(1, 20)},
        _done,
    ),
    Tool(
        ("call_person",),
        ("Calls somebody.", "Calls somebody", "Make a call."),
        {"name": ("string", ("name", "person"))},
        ("Call {name}.", "Please call {name}.", "I want to speak to {name}."),
        lambda rng: {"name": rng.choice(NAMES)},
        _done,
    ),
)  # fmt: skip


def offer(tool: Tool, rng: Random) -> Offer:
    """The tool under the names that chance gives it."""
    parameters = {what: rng.choice(names) for what, (_, names) in tool.parameters.items()}
    properties: dict[str, Any] = {parameters[what]: {"type": type_} for what, (type_, _) in tool.parameters.items()}
    if rng.random() < 0.15:
        properties[rng.choice(_SPARE)] = {"type": rng.choice(("string", "string", "integer", "boolean"))}
    name = rng.choice(tool.names)
    function = {
        "name": name,
        "description": _description(tool, rng),
        "parameters": {"type": "object", "properties": properties, "required": list(parameters.values())},
    }
    return Offer(tool, name, parameters, {"type": "function", "function": function})


def _description(tool: Tool, rng: Random) -> str:
    """What is said of a tool: mostly something true, sometimes nothing or any words, as its name tells enough."""
    chance = rng.random()
    if chance < 0.7:
        return rng.choice(tool.descriptions)
    return " ".join(rng.choices(_WORDS, k=rng.randint(2, 14))) if chance < 0.9 else ""


def tool_call(rng: Random) -> Conversation:
    """Offers one to three tools and asks for one of them, now and then for none; sometimes it has answered already."""
    offered = [offer(tool, rng) for tool in rng.sample(TOOLS, rng.randint(1, 3))]
    definitions = tuple(each.definition for each in offered)
    if rng.random() < 0.12:
        return Conversation("tools", fact(rng).messages, definitions)
    chosen = rng.choice(offered)
    drawn = chosen.tool.draw(rng)
    request = user(rng.choice(chosen.tool.phrasings).format(**drawn))
    arguments = {chosen.parameters[what]: value for what, value in drawn.items()}
    if rng.random() < 0.3:
        return Conversation("tools", (request, *_answered(chosen, arguments, rng)), definitions)
    call = f"<tool_call>{compact_json({'name': chosen.name, 'arguments': arguments})}</tool_call>"
    return Conversation("tools", (request, assistant(call)), definitions)


def _answered(chosen: Offer, arguments: Arguments, rng: Random) -> tuple[Message, ...]:
    """The call, what came of it, and what is said of that."""
    result, said = chosen.tool.answer(rng)
    return tool_call_message(chosen.name, arguments), tool_result(compact_json(result)), assistant(said)
