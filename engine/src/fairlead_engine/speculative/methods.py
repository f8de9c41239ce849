"""`METHODS`: the ways of guessing tokens, one entry each.

`EngineConfig` asks an entry which settings the method takes, the core for its proposer and the runner for its drafter.
A new method is a file with a `Proposer` (as `ngram.py`) or with a `Guesser` (`runner/guesser.py`), and an entry here.
"""

from collections.abc import Callable
from dataclasses import dataclass

from fairlead_engine.speculative.drafting import Proposer, RunnerProposer
from fairlead_engine.speculative.ngram import NGramProposer
from fairlead_protocol.models.choices import SpeculativeMethod


def _left_to_the_runner(shortest: int, longest: int) -> Proposer:
    return RunnerProposer()


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What config, core and runner know of one way of guessing."""

    settings: tuple[str, ...]
    """Fields of `EngineConfig` that may be set with this method, beside `num_speculative_tokens`."""
    proposer: Callable[[int, int], Proposer] = _left_to_the_runner
    """Makes the core's proposer from `EngineConfig.lookup_lengths`."""
    drafter: str | None = None
    """MODULE:CLASS, in `fairlead_engine.runner`, of the `Guesser` that reads `speculative_model`. A name, because that
    module imports torch, which the core does not. None = the proposer knows the tokens itself."""
    is_model: bool = False
    """Whether `speculative_model` is a whole model (demo:// too), which must have the tokenizer of `model`."""
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
}


def methods_by_setting() -> dict[str, list[SpeculativeMethod]]:
    """Field of `EngineConfig` → the methods that take it."""
    found = {"num_speculative_tokens": list(METHODS)}
    for name, method in METHODS.items():
        for setting in method.settings:
            found.setdefault(setting, []).append(name)
    return found
