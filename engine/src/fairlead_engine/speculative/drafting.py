"""Drafts for the sequences of a step: `METHODS`, the number of drafts of each sequence, and their acceptance.

The scheduler asks for drafts of each decoding sequence and reports the accepted ones. A `Proposer` guesses.

The step chooses a token behind each draft as without drafts: with the same logits, penalties and random number of the
position. An answer therefore depends neither on the proposer nor on number and success of drafts (a coupling by common
random numbers, as in Daliri et al., Coupling without Communication and Drafter-Invariant Speculative Decoding, 2024).
For drafts of one token without a distribution, the result equals the rejection sampling of Leviathan et al. (2023): a
draft is accepted with its probability, else another token is drawn.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from fairlead_common.models.choices import SpeculativeMethod
from fairlead_engine.speculative.ngram import NGramProposer
from fairlead_engine.speculative.tree_shape import TreeShape
from fairlead_engine.types.sequences import UNKNOWN, SampledToken, ScheduledSequence, Sequence

_FADING = 0.98
"""Fading of earlier steps in the mean tokens per step."""


_FIRST_PAUSE = 2
_LONGEST_PAUSE = 64
"""Longest run of steps without drafts after a draft without accepted tokens."""


class DraftLength:
    """Number of drafts worth making for one sequence, learnt from accepted ones. The length grows while all drafts are
    accepted, shrinks to the accepted number, and becomes 0 without accepted drafts. Drafting then rests, twice as long
    after each vain try: wasted work falls to one row in 64 steps."""

    __slots__ = ("_length", "_most", "_pause", "_rest")

    def __init__(self, most: int) -> None:
        self._length = self._most = most
        self._rest = 0
        self._pause = _FIRST_PAUSE

    def next(self) -> int:
        """Most drafts for the next step; asked once a step."""
        if self._rest:
            self._rest -= 1
            return 0
        return self._length

    def observe(self, num_drafts: int, num_accepted: int) -> None:
        """Takes in the result of a step with at least one draft."""
        if num_accepted:
            self._pause = _FIRST_PAUSE
            wanted = max(self._length, 2 * num_drafts) if num_accepted == num_drafts else num_accepted + 1
            self._length = min(self._most, wanted)
        elif self._length > 1:
            self._length //= 2
        else:
            self._rest, self._pause = self._pause, min(2 * self._pause, _LONGEST_PAUSE)


class Drafts(NamedTuple):
    """A sequence's drafts for one step."""

    token_ids: list[int]
    """Empty without drafts; `UNKNOWN` where the runner makes them."""
    depth: int = 0
    """Positions that a tree of drafts covers; 0 = a chain, one draft for each position."""


_NO_DRAFTS = Drafts([])


def verified(drafts: list[int], chosen: list[SampledToken]) -> list[SampledToken]:
    """The accepted drafts and the token behind them, at least one token. `chosen`: tokens behind the last known token
    and behind each draft (one more than drafts). Ends before a place without a token, unless at the first place."""
    found = [chosen[0]]
    for draft, behind in zip(drafts, chosen[1:], strict=True):
        if found[-1].token_id != draft or not behind.is_there:
            break
        found.append(behind)
    return found


class Proposer(Protocol):
    """Proposes the tokens that may come next."""

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        """Up to `most` (at least 1) tokens that may follow the known tokens; empty without an idea."""

    def forget(self, sequences: Iterable[Sequence]) -> None:
        """Drops ended sequences; unknown ones are ignored."""


class RunnerProposer:
    """Leaves drafting to the runner's draft model."""

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        """`most` times `UNKNOWN`; nothing for a soft prompt, which the draft model lacks."""
        return [] if sequence.num_virtual_tokens else [UNKNOWN] * most

    def forget(self, sequences: Iterable[Sequence]) -> None:
        """Keeps nothing."""


class Drafting:
    """One engine's drafts. Sequences with a thinking budget have none: forced tokens must follow one by one."""

    def __init__(self, proposer: Proposer, most: int, tree: TreeShape | None = None) -> None:
        """`most`: positions drafted per sequence and step. `tree`: several drafts per position; None = one each."""
        self.proposer = proposer
        self._tree = tree
        self._most = most
        self._lengths: dict[Sequence, DraftLength] = {}
        self.num_drafts = 0
        """Times that a sequence had drafts."""
        self.num_draft_tokens = 0
        """Draft tokens of all those."""
        self.num_accepted_per_position = [0] * most
        """Accepted drafts by position in the draft."""
        self._num_decodes = self._num_rows = self._num_tokens = 0.0

    def propose(self, sequence: Sequence, most: int) -> Drafts:
        """Drafts for the next step, at most `most`."""
        if sequence.sampling.thinking is not None:
            return _NO_DRAFTS
        length = self._lengths.get(sequence)
        if length is None:
            length = self._lengths[sequence] = DraftLength(self._most)
        depth = length.next()
        wanted = min(depth if self._tree is None else self._tree.num_nodes(depth), most)
        if depth <= 0 or wanted <= 0:
            return _NO_DRAFTS
        return Drafts(self.proposer.propose(sequence, wanted), 0 if self._tree is None else depth)

    def observe(self, num_decodes: int, drafted: list[ScheduledSequence]) -> None:
        """A step was committed with `num_decodes` plain decodes and the drafted shares."""
        self._num_decodes = _FADING * self._num_decodes + num_decodes + len(drafted)
        self._num_rows = _FADING * self._num_rows + num_decodes + sum(item.num_tokens for item in drafted)
        self._num_tokens = _FADING * self._num_tokens + num_decodes + sum(len(item.chosen) for item in drafted)
        for item in drafted:
            num_accepted = sum(each.token_id == draft for each, draft in zip(item.chosen, item.drafts, strict=False))
            self.num_drafts += 1
            self.num_draft_tokens += len(item.drafts)
            for position in range(num_accepted):
                self.num_accepted_per_position[position] += 1
            if (length := self._lengths.get(item.sequence)) is not None:
                length.observe(item.depth or len(item.drafts), num_accepted)

    def forget(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self._lengths.pop(sequence, None)
        self.proposer.forget(sequences)

    @property
    def figures(self) -> dict[str, Any]:
        """The drafts' fields of `EngineLoad`."""
        return {
            "num_drafts": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_per_position": tuple(self.num_accepted_per_position),
        }

    @property
    def rows_per_decode(self) -> float:
        """Recent mean of rows computed per sequence past its prompt."""
        return self._num_rows / self._num_decodes if self._num_decodes else 1.0

    @property
    def tokens_per_decode(self) -> float:
        """Recent mean of tokens per step of a sequence past its prompt."""
        return self._num_tokens / self._num_decodes if self._num_decodes else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """A method of drafting, for config, core and runner."""

    settings: tuple[str, ...]
    """Fields of `EngineConfig` allowed with this method, beside `num_speculative_tokens`."""
    proposer: Callable[[int, int], Proposer] = lambda shortest, longest: RunnerProposer()
    """Makes the core's proposer from `EngineConfig.lookup_lengths`."""
    drafter: str | None = None
    """MODULE:CLASS in `fairlead_engine.runner` of the `Drafter` that reads `speculative_model`; a string, because the
    module imports torch, unlike the core. None = the proposer knows the tokens itself."""
    is_model: bool = False
    """Whether `speculative_model` is a whole model (demo:// too), with the tokenizer of `model`."""
    is_in_checkpoint: bool = False
    """Whether a layer of the model's own checkpoint guesses, which is loaded with the model then."""
    why_no_paths: str | None = None
    """Why `speculative_tree` cannot be a list of paths; None = it can."""


METHODS: dict[SpeculativeMethod, Method] = {
    SpeculativeMethod.NGRAM: Method(settings=("prompt_lookup_min", "prompt_lookup_max"), proposer=NGramProposer),
    SpeculativeMethod.DRAFT: Method(settings=("speculative_model",), drafter="draft_model:DraftModel", is_model=True),
    SpeculativeMethod.MEDUSA: Method(
        settings=("speculative_model", "speculative_tree"), drafter="medusa_heads:MedusaHeads"
    ),
    SpeculativeMethod.EAGLE3: Method(
        settings=("speculative_model", "speculative_tree"),
        drafter="eagle_drafts:EagleDrafts",
        why_no_paths="an EAGLE head follows the guesses that turn out likeliest",
    ),
    SpeculativeMethod.MTP: Method(
        settings=("speculative_tree",),
        drafter="mtp_drafts:MtpDrafts",
        is_in_checkpoint=True,
        why_no_paths="a layer of the checkpoint follows the guesses that turn out likeliest",
    ),
}


def methods_by_setting() -> dict[str, list[SpeculativeMethod]]:
    """Field of `EngineConfig` → the methods that take it."""
    found = {"num_speculative_tokens": list(METHODS)}
    for name, method in METHODS.items():
        for setting in method.settings:
            found.setdefault(setting, []).append(name)
    return found
