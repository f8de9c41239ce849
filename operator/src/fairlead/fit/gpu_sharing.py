"""GPU budgets: the replicas of each LLMDeployment where all together want more GPUs than a budget has. Pure; the
operator's tick calls `share` with the wanted number of every LLMDeployment, after `recommend`.

The fair number of each LLMDeployment is found first:

1. LLMDeployments not scaled by Fairlead keep their replicas;
2. `minReplicas` of all, by priority;
3. further replicas by priority: with equal priority, present replicas stay, and new replicas are granted in turns, the
   latest LLMDeployment first.

Then replicas are added within the free GPUs. An LLMDeployment above the fair number goes down to the fair number in its
own scale-down steps. So a budget is never exceeded, and LLMDeployments of equal priority take nothing from each other.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from fairlead.api.llmdeployment import Autoscaling
from fairlead.api.scaling_policy import targets_of
from fairlead.demand.signals import Signals


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The present and the wanted replicas of an LLMDeployment."""

    name: str
    """`namespace/name`."""
    gpus: int
    """Of a replica; at least 1."""
    budgets: tuple[str, ...]
    """Names of the budgets that bound the LLMDeployment."""
    current: int
    """Replicas asked for now."""
    wanted: int
    fewest: int = 0
    """`minReplicas`."""
    leaving: int = 0
    """Draining replicas, which still hold GPUs."""
    priority: int = 0
    lateness: float = 0.0
    """As of `lateness`."""
    is_scaled: bool = True
    """Whether Fairlead scales the LLMDeployment; otherwise the present replicas stay."""

    @property
    def held(self) -> int:
        """GPUs held now."""
        return self.gpus * (self.current + self.leaving)


@dataclass(frozen=True, slots=True)
class Grant:
    """The allowed replicas."""

    replicas: int
    because: str = ""
    """The reason for fewer replicas than wanted, to follow "but"; empty = as many as wanted."""


def share(claims: Iterable[Claim], budgets: Mapping[str, int]) -> dict[str, Grant]:
    """Grants by the claims' names, for budgets of so many GPUs."""
    ranked = sorted(claims, key=lambda each: (-each.priority, -each.lateness, each.name))
    fair = _fair(ranked, budgets)
    free = {name: most - sum(each.held for each in ranked if name in each.budgets) for name, most in budgets.items()}
    grants = {}
    for claim in ranked:
        number = min(claim.wanted, fair[claim.name]) if claim.is_scaled else claim.current
        if number > claim.current:
            number = claim.current + _take(claim, number - claim.current, free)
        grants[claim.name] = Grant(number, _why(claim, number, ranked, budgets))
    return grants


def lateness(signals: Signals, spec: Autoscaling) -> float:
    """The worst of a fleet's figures as a share of its target; 1 = just met."""
    demand, targets = signals.demand, targets_of(spec)
    shares = [0.0]
    if targets.queue_depth is not None:
        shares.append(demand.waiting / (targets.queue_depth * max(1, signals.ready)))
    for target, times in ((targets.time_to_first_token, demand.ttft), (targets.time_per_output_token, demand.tpot)):
        if target:
            shares.append((times.percentile(targets.percentile) or 0.0) / target)
    if targets.time_to_first_token:
        shares.append(demand.oldest_wait_seconds / targets.time_to_first_token)
    return max(shares)


def _fair(ranked: Sequence[Claim], budgets: Mapping[str, int]) -> dict[str, int]:
    left, fair = dict(budgets), {each.name: 0 for each in ranked}

    def raise_to(number: int, claim: Claim) -> bool:
        taken = _take(claim, min(number, claim.wanted) - fair[claim.name], left)
        fair[claim.name] += taken
        return taken > 0

    for claim in ranked:
        if not claim.is_scaled:
            fair[claim.name] = claim.current
            left |= {name: left[name] - claim.held for name in claim.budgets}
    scaled = [each for each in ranked if each.is_scaled]
    classes = [list(group) for _, group in groupby(scaled, key=lambda each: each.priority)]
    for equals in classes:
        for claim in equals:
            raise_to(min(claim.fewest, claim.current), claim)
        for claim in equals:
            raise_to(claim.fewest, claim)
    for equals in classes:
        for claim in equals:
            raise_to(claim.current, claim)
        growing = equals
        while growing:
            growing = [each for each in growing if raise_to(fair[each.name] + 1, each)]
    return fair


def _take(claim: Claim, number: int, left: dict[str, int]) -> int:
    """Takes the GPUs of `number` replicas, or of fewer where a budget has less; returns the number of replicas."""
    number = max(0, min([number, *(left[name] // claim.gpus for name in claim.budgets)]))
    for name in claim.budgets:
        left[name] -= number * claim.gpus
    return number


def _why(claim: Claim, number: int, ranked: Sequence[Claim], budgets: Mapping[str, int]) -> str:
    if number >= claim.wanted or not claim.is_scaled or not claim.budgets:
        return ""
    held = {name: [each for each in ranked if name in each.budgets and each.held] for name in claim.budgets}
    taken = {name: sum(each.held for each in held[name]) for name in held}
    name = min(held, key=lambda each: (budgets[each] - taken[each], each))
    others = sorted((each for each in held[name] if each is not claim), key=lambda each: (-each.held, each.name))
    text = (
        f"{claim.wanted - number} of {claim.wanted} wanted replicas wait for GPU budget {name}: "
        f"{taken[name]} of {budgets[name]} GPUs"
    )
    if not others:
        return text
    return f"{text}, of which {others[0].name} (priority {others[0].priority}) holds {others[0].held}"
