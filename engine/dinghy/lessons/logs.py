"""Long shared prefixes: a harbour log of up to some six hundred tokens, and then a question about something else.

The log is there to be shared, cached and passed over, as the long instructions of real applications are; reading it is
more than so small a network learns in minutes.
"""

from random import Random

from lessons.conversation import Conversation, Lesson, Message, system
from lessons.facts import fact
from lessons.sums import product, sum_or_difference
from lessons.words import words
from lessons.world import CARGOES, NAMES, VISITORS

LONGEST_LOG = len(VISITORS)
"""Ships in the longest log; about twelve tokens each."""
LARGEST_BERTH = 20
_AFTERWARDS: tuple[Lesson, ...] = (fact, fact, sum_or_difference, product, words)


def after_a_log(rng: Random) -> Conversation:
    """A log as system message, then a short question."""
    log = harbour_log(rng, rng.randint(3, LONGEST_LOG))
    return Conversation("logs", (log, *rng.choice(_AFTERWARDS)(rng).messages))


def harbour_log(rng: Random, num_ships: int) -> Message:
    """A log of so many ships, each once."""
    lines = (
        f"{ship}: {rng.choice(CARGOES)}, berth {rng.randint(1, LARGEST_BERTH)}, captain {rng.choice(NAMES)}"
        for ship in rng.sample(VISITORS, num_ships)
    )
    return system("\n".join(("Harbour log", *lines)))
