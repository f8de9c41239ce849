"""Random arrivals for a `RoutedFleet`; equal seeds give equal requests."""

import random
from collections.abc import Callable, Iterable, Sequence

from fairlead.simulator.routed_fleet import DIGEST, Arrival
from fairlead_testing.routing import make_prompt


def shared_prefixes(
    seed: int, *, num: int, rate: float, num_documents: int = 12, document_tokens: int = 1000, question_tokens: int = 60
) -> list[Arrival]:
    """Questions about documents, some of which are asked about more often (the k-th in proportion to 1/k)."""
    rng = random.Random(seed)
    documents = [[rng.randrange(50_000) for _ in range(document_tokens)] for _ in range(num_documents)]
    weights = [1 / (rank + 1) for rank in range(num_documents)]
    return list(
        _arrivals(
            rng,
            num,
            rate,
            lambda: rng.choices(documents, weights)[0] + [rng.randrange(50_000) for _ in range(question_tokens)],
        )
    )


def unshared(seed: int, *, num: int, rate: float, longest: int = 600) -> list[Arrival]:
    """Prompts of any length that have nothing in common."""
    rng = random.Random(seed)
    return list(_arrivals(rng, num, rate, lambda: [rng.randrange(50_000) for _ in range(rng.randint(50, longest))]))


def adapted(seed: int, adapters: Sequence[str], *, num: int, rate: float) -> list[Arrival]:
    """Short prompts that have nothing in common, for adapters some of which are asked for more often (the k-th in
    proportion to 1/k)."""
    rng = random.Random(seed)
    weights = [1 / (rank + 1) for rank in range(len(adapters))]
    arrivals = list(_arrivals(rng, num, rate, lambda: [rng.randrange(50_000) for _ in range(rng.randint(30, 120))]))
    for arrival in arrivals:
        arrival.prompt.adapter = rng.choices(adapters, weights)[0]
    return arrivals


def _arrivals(rng: random.Random, num: int, rate: float, tokens: Callable[[], list[int]]) -> Iterable[Arrival]:
    now = 2.0  # loads are known by then
    for _ in range(num):
        now += rng.expovariate(rate)
        token_ids = tokens()
        affinity = ",".join(map(str, token_ids[:20]))
        yield Arrival(now, make_prompt(token_ids, digest=DIGEST, affinity=affinity), rng.randint(5, 60))
