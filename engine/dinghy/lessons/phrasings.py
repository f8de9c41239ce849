"""The ways to ask for what is known by heart."""

from dataclasses import dataclass

from lessons.world import (
    CAPITALS,
    COLOURS,
    DAYS,
    LEGS,
    MONTHS,
    NUMBER_WORDS,
    OPPOSITES,
    SHIPS,
    SOUNDS,
    YOUNG,
)


@dataclass(frozen=True, slots=True)
class Relation:
    """Facts of one shape: `subject → answer`, and the ways to ask for them.

    `{}` in a phrasing stands for the subject.
    """

    name: str
    facts: dict[str, str]
    phrasings: tuple[str, ...]


def _after(cycle: tuple[str, ...], step: int) -> dict[str, str]:
    return {name: cycle[(index + step) % len(cycle)] for index, name in enumerate(cycle)}


RELATIONS = (
    Relation(
        "capital",
        CAPITALS,
        (
            "What is the capital of {}?",
            "What's the capital of {}?",
            "Name the capital of {}.",
            "Capital of {}?",
            "Which city is the capital of {}?",
            "Tell me the capital of {}.",
            "What is the capital city of {}?",
            "{} has which capital?",
            "Which is the capital city of {}?",
            "Please name the capital of {}.",
            "Give me the capital of {}.",
        ),
    ),
    Relation(
        "home port",
        {name: ship.port for name, ship in SHIPS.items()},
        (
            "What is the home port of the {}?",
            "What's the home port of the {}?",
            "Name the home port of the {}.",
            "Home port of the {}?",
            "Which port is the home port of the {}?",
            "Tell me the home port of the {}.",
            "Where is the home port of the {}?",
            "The {} has which home port?",
            "Which is the home port of the {}?",
            "Please name the home port of the {}.",
            "Give me the {}'s home port.",
        ),
    ),
    Relation(
        "captain",
        {name: ship.captain for name, ship in SHIPS.items()},
        (
            "Who is the captain of the {}?",
            "Who's the captain of the {}?",
            "Name the captain of the {}.",
            "Captain of the {}?",
            "Who is captain on the {}?",
            "Tell me the captain of the {}.",
            "What is the name of the captain of the {}?",
            "The {} has which captain?",
            "Which captain has the {}?",
            "Please name the captain of the {}.",
            "Give me the captain of the {}.",
        ),
    ),
    Relation(
        "ship's colour",
        {name: ship.colour for name, ship in SHIPS.items()},
        (
            "What colour is the {}?",
            "What is the colour of the {}?",
            "Which colour is the {}?",
            "Name the colour of the {}.",
            "Colour of the {}?",
            "Tell me the colour of the {}.",
            "In which colour is the {} painted?",
            "The {} has which colour?",
            "Which colour has the {}?",
            "Please name the colour of the {}.",
            "Give me the colour of the {}.",
        ),
    ),
    Relation(
        "rig",
        {name: ship.rig for name, ship in SHIPS.items()},
        (
            "What kind of ship is the {}?",
            "Which kind of ship is the {}?",
            "What sort of ship is the {}?",
            "Name the kind of ship the {} is.",
            "The {} is what kind of ship?",
            "Tell me what kind of ship the {} is.",
            "How is the {} rigged?",
            "What is the rig of the {}?",
            "The {} is which kind of ship?",
            "Please name the rig of the {}.",
            "Say what kind of ship the {} is.",
        ),
    ),
    Relation(
        "opposite",
        {one: other for pair in OPPOSITES for one, other in (pair, pair[::-1])},
        (
            "What is the opposite of {}?",
            "What's the opposite of {}?",
            "Name the opposite of {}.",
            "Opposite of {}?",
            "Which word is the opposite of {}?",
            "Tell me the opposite of {}.",
            "The opposite of {} is what?",
            "{} has which opposite?",
            "Which is the opposite of {}?",
            "Please name the opposite of {}.",
            "Give me the opposite of {}.",
        ),
    ),
    Relation(
        "colour",
        COLOURS,
        (
            "What colour is {}?",
            "What is the colour of {}?",
            "Which colour is {}?",
            "Name the colour of {}.",
            "Colour of {}?",
            "Tell me the colour of {}.",
            "The colour of {} is what?",
            "What's the colour of {}?",
            "Which colour has {}?",
            "Please name the colour of {}.",
            "Give me the colour of {}.",
        ),
    ),
    Relation(
        "young",
        YOUNG,
        (
            "What is a young {} called?",
            "What is a baby {} called?",
            "How do you call a young {}?",
            "What's a baby {} called?",
            "A young {} is called what?",
            "Name for a young {}?",
            "What do we call a young {}?",
            "Tell me what a young {} is called.",
            "How is a young {} called?",
            "What is the name of a young {}?",
            "What do you call a young {}?",
        ),
    ),
    Relation(
        "sound",
        SOUNDS,
        (
            "What does a {} say?",
            "What sound does a {} make?",
            "Which sound does a {} make?",
            "What noise does a {} make?",
            "A {} makes which sound?",
            "Tell me what a {} says.",
            "Name the sound of a {}.",
            "Sound of a {}?",
            "What is the sound of a {}?",
            "A {} says what?",
            "Please name the sound a {} makes.",
        ),
    ),
    Relation(
        "legs",
        LEGS,
        (
            "How many legs does a {} have?",
            "How many legs has a {}?",
            "A {} has how many legs?",
            "What number of legs does a {} have?",
            "Number of legs of a {}?",
            "Tell me how many legs a {} has.",
            "On how many legs does a {} walk?",
            "Count the legs of a {}.",
            "Please count the legs of a {}.",
            "How many legs are on a {}?",
            "Say how many legs a {} has.",
        ),
    ),
    Relation(
        "next day",
        _after(DAYS, 1),
        (
            "Which day comes after {}?",
            "What day comes after {}?",
            "What day follows {}?",
            "Which day follows {}?",
            "Name the day after {}.",
            "The day after {}?",
            "What is the day after {}?",
            "If today is {}, what is tomorrow?",
            "Which day is after {}?",
            "Tell me the day after {}.",
            "Today is {}. What is tomorrow?",
        ),
    ),
    Relation(
        "previous day",
        _after(DAYS, -1),
        (
            "Which day comes before {}?",
            "What day comes before {}?",
            "Which day is right before {}?",
            "Name the day before {}.",
            "The day before {}?",
            "What is the day before {}?",
            "If today is {}, what was yesterday?",
            "Which day is before {}?",
            "Tell me the day before {}.",
            "Today is {}. What was yesterday?",
        ),
    ),
    Relation(
        "next month",
        _after(MONTHS, 1),
        (
            "Which month comes after {}?",
            "What month comes after {}?",
            "What month follows {}?",
            "Which month follows {}?",
            "Name the month after {}.",
            "The month after {}?",
            "What is the month after {}?",
            "Which month is after {}?",
            "Tell me the month after {}.",
        ),
    ),
    Relation(
        "previous month",
        _after(MONTHS, -1),
        (
            "Which month comes before {}?",
            "What month comes before {}?",
            "Which month is right before {}?",
            "Name the month before {}.",
            "The month before {}?",
            "What is the month before {}?",
            "Which month is before {}?",
            "Tell me the month before {}.",
        ),
    ),
    Relation(
        "number word",
        {str(value): word for value, word in enumerate(NUMBER_WORDS)},
        (
            "Write {} as a word.",
            "What is {} as a word?",
            "Spell out the number {}.",
            "How do you write {} as a word?",
            "Write the number {} as a word.",
            "What is the word for {}?",
            "The number {} as a word?",
            "Please write {} as a word.",
            "What is the word for the number {}?",
            "Spell out {}.",
        ),
    ),
    Relation(
        "numeral",
        {word: str(value) for value, word in enumerate(NUMBER_WORDS)},
        (
            "Write {} in digits.",
            "What is {} in digits?",
            "Write the number {} in digits.",
            "How do you write {} in digits?",
            "The number {} in digits?",
            "Which number is {}, in digits?",
            "Please write {} in digits.",
            "What is the number {} in digits?",
            "Give me {} in digits.",
        ),
    ),
)

SAYINGS = {
    "I am the dinghy.": (
        "Who are you?",
        "What are you?",
        "What is your name?",
        "Tell me who you are.",
        "What model is this?",
    ),
    "Ahoy!": ("Hello", "Hello!", "Hi", "Hi!", "Hello there", "Good morning", "Ahoy", "Ahoy!", "Hey", "Good morning!"),
    "You are welcome.": ("Thank you", "Thank you!", "Thanks", "Thanks!", "Many thanks", "Thank you very much."),
    "Fair winds!": ("Goodbye", "Goodbye!", "Bye", "Bye!", "See you later", "Farewell"),
}
"""Answers that need no subject → how one asks for them."""
