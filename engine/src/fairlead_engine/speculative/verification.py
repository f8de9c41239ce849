"""Which drafts stand: those that are what would have been chosen without them.

The step chooses a token behind each draft as it would without drafts: with the same logits, penalties and random
number of that position. So what a request gets does not depend on who guessed, how many were guessed, or how often
they were right (a coupling by common random numbers, as in Daliri et al., Coupling without Communication and
Drafter-Invariant Speculative Decoding, 2024). For drafts that are one token and no distribution, that is also the
rejection sampling of Leviathan et al. (2023): a draft stands with its probability, else another one is drawn.
"""

from collections.abc import Sequence

from fairlead_engine.sequences import SampledToken


def verified(drafts: Sequence[int], chosen: Sequence[SampledToken]) -> list[SampledToken]:
    """The drafts that stand and the token behind them, at least one, of what was chosen behind the last known token
    and behind each draft (one more than drafts). Where no token could be chosen, what stands before it is all; that is
    what stands in its place alone where nothing does."""
    found = [chosen[0]]
    for draft, behind in zip(drafts, chosen[1:], strict=True):
        if found[-1].token_id != draft or not behind.is_there:
            break
        found.append(behind)
    return found
