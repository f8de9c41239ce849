"""What a load asks, and when: seeded conversations and arrivals, the same on every machine. Pure; sending them is the
load generator's work.

The texts are in the repertoire of the bundled model (`engine/dinghy/README.md`): a harbour log that is there to be
shared, cached and passed over, then exercises whose answers are known. Any other model can be asked the same; its
answers are then not counted as right. Sizes in tokens are approximate: what the dinghy's tokenizer makes of them.
"""

import math
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from random import Random
from typing import Any

TOKENS_PER_LINE = 12
"""Of a line of a harbour log, with the dinghy's tokenizer; others need up to twice as many."""
QUESTION_TOKENS = 32
"""An exercise with its chat template, at most."""
LARGEST_NUMBER = 12
"""Of operands that the dinghy knows."""

_SUMS = ("What is {} plus {}?", "What is {} + {}?", "{} + {} =", "Add {} and {}.", "How much is {} plus {}?")
_DIFFERENCES = ("What is {} minus {}?", "What is {} - {}?", "{} - {} =", "How much is {} minus {}?")
_SHIPS = (
    "Arrow", "Badger", "Beacon", "Comet", "Coral", "Daisy", "Delta", "Eagle", "Echo", "Falcon", "Flint", "Garnet",
    "Hazel", "Heron", "Holly", "Iris", "Ivy", "Jade", "Jasper", "Laurel", "Linnet", "Lotus", "Magpie", "Martin",
    "Myrtle", "Nettle", "Olive", "Opal", "Otter", "Pearl", "Plover", "Poppy", "Raven", "Robin", "Rowan", "Ruby",
    "Saturn", "Sparrow", "Stork", "Swift", "Thistle", "Topaz", "Tulip", "Venus", "Violet", "Walnut", "Willow", "Wren",
)  # fmt: skip
_CARGOES = (
    "apples", "bricks", "butter", "cheese", "coal", "coffee", "copper", "corn", "cotton", "flour", "glass", "honey",
    "iron", "lemons", "marble", "oil", "paper", "pepper", "rope", "salt", "silk", "sugar", "tea", "tin", "wheat",
    "wine",
)  # fmt: skip
_CAPTAINS = (
    "Ada", "Anton", "Bruno", "Clara", "Dora", "Emil", "Frida", "Greta", "Hugo", "Ida", "Jonas", "Karl", "Lena", "Marta",
    "Nils", "Olga", "Otto", "Petra", "Rita", "Sven", "Tilda", "Ulf", "Vera", "Wanda",
)  # fmt: skip


class WorkloadKind(StrEnum):
    """What conversations have in common; the values are what `fairlead bench --workload` takes."""

    SHARED_PREFIX = "shared-prefix"
    """A few long system messages, each followed by a short question: an application's instructions."""
    MULTI_TURN = "multi-turn"
    """Long individual system messages, then several questions, each with the whole conversation so far."""
    UNSHARED = "unshared"
    """Long individual system messages, then one question: caches do not help."""
    FIXED = "fixed"
    """The same question every time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadShape:
    """Sizes of a workload. Kinds ignore sizes they do not use."""

    num_prefixes: int = 4
    """Different system messages of `SHARED_PREFIX`."""
    prefix_tokens: int = 400
    """Of a system message, about."""
    num_turns: int = 4
    """Questions of one `MULTI_TURN` conversation."""
    question: str = "What is 7 plus 5?"
    """What `FIXED` asks; the answer is not checked."""
    output_tokens: int = 32
    """Longest answer (`max_tokens`)."""
    ignore_eos: bool = False
    """Whether answers go on to exactly `output_tokens` (an extension that our engine and vLLM know)."""


def context_tokens(kind: WorkloadKind, shape: WorkloadShape) -> int:
    """Of the longest prompt with its answer, about: what has to fit into a model's context."""
    if kind is WorkloadKind.FIXED:
        return len(shape.question.split()) + shape.output_tokens
    num_turns = shape.num_turns if kind is WorkloadKind.MULTI_TURN else 1
    return shape.prefix_tokens + num_turns * (QUESTION_TOKENS + shape.output_tokens)


@dataclass(frozen=True, slots=True)
class Turn:
    """One question of a conversation."""

    question: str
    answer: str | None = None
    """The exact answer, without surrounding spaces; None = anything."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """More fields of the request."""

    def is_right(self, text: str) -> bool | None:
        """Whether `text` is the answer, or begins with an answer that had to go on; None = unknown."""
        if self.answer is None:
            return None
        said = text.strip()
        if self.parameters.get("ignore_eos"):
            return said.startswith(self.answer)  # what follows is whatever a model says after its end
        return said == self.answer


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one client says, in order. Answers in between are the model's own."""

    turns: tuple[Turn, ...]
    system: str = ""
    """The system message; empty = none."""

    @property
    def opening(self) -> tuple[dict[str, str], ...]:
        """The messages before the first question."""
        return ({"role": "system", "content": self.system},) if self.system else ()


def conversations(kind: WorkloadKind, shape: WorkloadShape = WorkloadShape(), seed: int = 0) -> Iterator[Conversation]:
    """An endless stream; number n is the same for the same arguments."""
    parameters: dict[str, Any] = {"max_tokens": shape.output_tokens, "temperature": 0}
    if shape.ignore_eos:
        parameters["ignore_eos"] = True
    num_turns = shape.num_turns if kind is WorkloadKind.MULTI_TURN else 1
    for index in count():
        draw = Random(f"{seed}/{index}")
        if kind is WorkloadKind.FIXED:
            yield Conversation((Turn(shape.question, None, parameters),))
            continue
        turns = tuple(Turn(*_exercise(draw), parameters) for _ in range(num_turns))
        if kind is WorkloadKind.SHARED_PREFIX:
            draw = Random(f"{seed}/prefix/{draw.randrange(shape.num_prefixes)}")
        yield Conversation(turns, harbour_log(draw, shape.prefix_tokens))


def harbour_log(draw: Random, num_tokens: int) -> str:
    """About so many tokens of ships, cargoes and berths. The dinghy has seen up to 48 lines."""
    lines = ["Harbour log"]
    ships: list[str] = []
    for _ in range(max(1, round(num_tokens / TOKENS_PER_LINE))):
        ships = ships or draw.sample(_SHIPS, len(_SHIPS))
        cargo, berth, captain = draw.choice(_CARGOES), draw.randint(1, 20), draw.choice(_CAPTAINS)
        lines.append(f"{ships.pop()}: {cargo}, berth {berth}, captain {captain}")
    return "\n".join(lines)


def _exercise(draw: Random) -> tuple[str, str]:
    """A question and its answer."""
    one, other = draw.randint(0, LARGEST_NUMBER), draw.randint(0, LARGEST_NUMBER)
    if draw.random() < 0.5:
        return draw.choice(_SUMS).format(one, other), str(one + other)
    one, other = max(one, other), min(one, other)
    return draw.choice(_DIFFERENCES).format(one, other), str(one - other)


@dataclass(frozen=True, slots=True)
class ArrivalPhase:
    """A period of one average arrival rate in an open loop."""

    rate: float
    """Arrivals per second; 0 = none."""
    seconds: float
    """How long it lasts; may be infinite."""

    def __post_init__(self) -> None:
        if not (self.rate >= 0 and self.seconds > 0):  # not numbers neither
            raise ValueError(
                f"a phase needs a rate of 0 or more and some seconds, not {self.rate:g} for {self.seconds:g}"
            )


def arrival_times(phases: Iterable[ArrivalPhase], seed: int = 0, *, burstiness: float = 1.0) -> Iterator[float]:
    """Times of arrivals, in seconds since the first phase began, ascending; the same for the same seed.

    A renewal process: each gap is one draw of a gamma distribution with mean 1, spent at the rate of the moment (time
    rescaling). `burstiness` is its shape, as in vLLM's benchmarks: 1 is a Poisson process of varying rate exactly, less
    comes in bursts, more ever more evenly. An iterator of `phases` may decide late: each phase is
    taken shortly before it begins.
    """
    if not 0 < burstiness < math.inf:
        raise ValueError(f"burstiness is above 0 and finite, not {burstiness:g}")
    draw = random.Random(f"arrivals/{seed}")

    def gap() -> float:
        return draw.gammavariate(burstiness, 1.0 / burstiness)

    left = gap()
    began = 0.0
    for phase in phases:
        now, ends = began, began + phase.seconds
        while phase.rate > 0 and now + left / phase.rate < ends:
            now += left / phase.rate
            yield now
            left = gap()
        if phase.rate > 0:
            left -= (ends - now) * phase.rate
        began = ends
