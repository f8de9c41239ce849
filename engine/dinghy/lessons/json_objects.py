"""Reading and writing small JSON objects."""

from collections.abc import Callable
from random import Random

from lessons.conversation import Conversation, assistant, compact_json, user
from lessons.world import CARGOES, NAMES, VISITORS

LARGEST_BERTH = 20
_WRITE = ("Write as JSON: {}", "As JSON: {}", "Make a JSON object of: {}")


def json_objects(rng: Random) -> Conversation:
    """One exercise: write an object, take one out of a sentence, or read a field."""
    exercise: Callable[[Random], tuple[str, str]] = rng.choice((_write, _extract, _read))
    question, answer = exercise(rng)
    return Conversation("json", (user(question), assistant(answer)))


def _record(rng: Random) -> dict[str, str | int]:
    """Two or three fields in a random order."""
    fields: dict[str, str | int] = {
        "ship": rng.choice(VISITORS),
        "cargo": rng.choice(CARGOES),
        "berth": rng.randint(1, LARGEST_BERTH),
        "name": rng.choice(NAMES),
    }
    return {key: fields[key] for key in rng.sample(tuple(fields), rng.randint(2, 3))}


def _write(rng: Random) -> tuple[str, str]:
    record = _record(rng)
    described = ", ".join(f"{key} {value}" for key, value in record.items())
    return rng.choice(_WRITE).format(described), compact_json(record)


def _extract(rng: Random) -> tuple[str, str]:
    ship, cargo, berth = rng.choice(VISITORS), rng.choice(CARGOES), rng.randint(1, LARGEST_BERTH)
    question, record = rng.choice(
        (
            (f"The {ship} carries {cargo}. Give ship and cargo as JSON.", {"ship": ship, "cargo": cargo}),
            (f"The {ship} lies at berth {berth}. Give ship and berth as JSON.", {"ship": ship, "berth": berth}),
        )
    )
    return question, compact_json(record)


def _read(rng: Random) -> tuple[str, str]:
    record = _record(rng)
    key = rng.choice(tuple(record))
    return f"What is the {key} in {compact_json(record)}?", str(record[key])
