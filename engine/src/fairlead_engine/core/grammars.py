"""Grammars that constrain answers: compiled beside the steps, and asked in each step for the allowed tokens.

A grammar is text for llguidance, imported with the first grammar. Matchers never raise: at a limit a matcher reports an
error, and its sequence gets no further token.
"""

import os
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Sequence as Many
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from fairlead_engine.core.clock import Clock
from fairlead_engine.core.grammar_limits import described, parser_limits
from fairlead_engine.machine.child_process import resident_bytes
from fairlead_engine.types.batch import Batch, TokenMasks
from fairlead_engine.types.sequences import SampledToken, ScheduledSequence, Sequence

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

_MOST_COMPILED = 128
"""Compiled grammars kept for later requests."""
_MOST_COMPILED_CHARACTERS = 2 * 2**20
"""Total text of those; a compiled grammar takes about 60 bytes for each character."""
_MOST_COMPILED_BYTES = 256 * 2**20
"""Total memory of those, by the process's growth: a short pattern of nested repetitions takes hundreds of megabytes."""
_MOST_USED_CHARACTERS = 4 * 2**20
"""Total text of the grammars in use by waiting and running sequences."""
_LONG_CHARACTERS = 256 * 1024
"""Longer grammars go to the slow compiler."""
_PATIENCE_SECONDS = 0.005
"""Seconds that an idle step waits for a grammar; commands may come meanwhile."""
_MOST_THREADS = 8
_BITS = 32


class Behind(NamedTuple):
    """A grammar's state behind some tokens."""

    matcher: "LLMatcher | None"
    """None = the grammar forbids the tokens, or ended among them."""
    is_over: bool = False
    """Whether the grammar ended among the tokens; further tokens are free."""


def behind_drafts(matcher: "LLMatcher", item: ScheduledSequence, eos_token_ids: Collection[int]) -> list[Behind]:
    """States behind the last known token (`matcher`) and behind each draft."""
    found = [Behind(matcher)]
    parents = item.parents or range(len(item.drafts))
    for parent, token_id in zip(parents, item.drafts, strict=True):
        found.append(_behind(found[parent], token_id, eos_token_ids))
    return found


def _behind(before: Behind, token_id: int, eos_token_ids: Collection[int]) -> Behind:
    matcher = before.matcher
    if matcher is None:
        return before
    if token_id in eos_token_ids and matcher.is_accepting():
        return Behind(None, is_over=True)
    if matcher.is_stopped() or matcher.validate_tokens([token_id]) != 1:
        return Behind(None)
    copy = matcher.deep_copy()
    copy.consume_token(token_id)
    return Behind(copy)


class _UnusableError(Exception):
    """A grammar cannot be used; the text says why."""


@dataclass(slots=True)
class _GrammarState:
    """A sequence's grammar and its state."""

    text: str
    compiled: "Future[LLMatcher]"
    """The grammar before its first token; sequences share it."""
    matcher: "LLMatcher | None" = None
    """State behind the tokens so far; None until the grammar is compiled."""
    problem: str | None = None
    """Why there is no next token."""


class _Place(NamedTuple):
    """A place where tokens are chosen: behind a sequence's last token, or behind each of its drafts."""

    row: int
    """First row of the sequence among the chosen tokens."""
    answer: _GrammarState
    item: ScheduledSequence | None = None
    """The share with drafts; the drafts are known when masks are asked for."""


class _Row(NamedTuple):
    """One chosen token."""

    row: int
    answer: _GrammarState
    matcher: "LLMatcher | None"
    """The state that constrains the token; None = no token is allowed."""


class Grammars:
    """The grammars of waiting and running sequences. Called by the engine, from its thread."""

    def __init__(
        self,
        read_tokenizer: Callable[[], str],
        *,
        vocab_size: int,
        eos_token_ids: Collection[int],
        cores: Collection[int] = (),
        clock: Clock | None = None,
    ) -> None:
        """`read_tokenizer` reads tokenizer.json's text when the first grammar comes. `cores`: logical CPUs for the
        threads here, regardless of the engine's binding; empty = any."""
        self._read_tokenizer = read_tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)
        self._clock = clock or Clock()
        self._num_words = -(-vocab_size // _BITS)
        self._answers: dict[Sequence, _GrammarState] = {}
        self._compiled: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._sizes: dict[str, int] = {}
        """Text of a grammar → bytes by which the process grew during compilation."""

        def begin() -> None:
            if cores:
                os.sched_setaffinity(0, cores)

        # Neither masks nor other grammars wait for a grammar that takes long.
        self._compiler = ThreadPoolExecutor(1, "grammar-compiler", begin)
        self._slow_compiler = ThreadPoolExecutor(1, "grammar-compiler-slow", begin)
        self._beginning = Lock()
        self._filler = ThreadPoolExecutor(1, "grammar-masks", begin)
        self._num_threads = max(1, min(_MOST_THREADS, len(cores) // 2))
        self._tokenizer: LLTokenizer | None = None
        self._executor: LLExecutor | None = None
        self.num_masks = 0
        """Tokens chosen under a grammar since the start."""
        self.mask_seconds = 0.0
        """Time spent on finding the allowed tokens."""

    def __bool__(self) -> bool:
        """Whether any sequence has a grammar."""
        return bool(self._answers)

    @property
    def figures(self) -> dict[str, Any]:
        """The masks' fields of `EngineLoad`."""
        return {"num_masks": self.num_masks, "mask_seconds": self.mask_seconds}

    def has_room(self, sequence: Sequence) -> bool:
        """Whether memory is left for the sequence's grammar; always for a grammar in use and for a single grammar."""
        grammar = sequence.sampling.grammar
        if grammar is None:
            return True
        used = {answer.text for answer in self._answers.values()}
        return grammar.text in used or not used or sum(map(len, used)) + len(grammar.text) <= _MOST_USED_CHARACTERS

    def add(self, sequence: Sequence) -> None:
        """Begins to compile the sequence's grammar; nothing without a grammar."""
        grammar = sequence.sampling.grammar
        if grammar is None:
            return
        lane = self._slow_compiler if grammar.is_slow or len(grammar.text) > _LONG_CHARACTERS else self._compiler
        compiled = self._compiled.pop(grammar.text, None) or lane.submit(self._compile, grammar.text)
        self._compiled[grammar.text] = compiled
        self._drop_oldest()
        self._answers[sequence] = _GrammarState(grammar.text, compiled)

    def _drop_oldest(self) -> None:
        """Keeps the cache within its bounds; sequences keep their own grammars."""
        for text in [*self._sizes]:
            if text not in self._compiled:  # dropped before it was compiled
                self._sizes.pop(text, None)
        num_characters = sum(map(len, self._compiled))
        num_bytes = sum(self._sizes.get(text, 0) for text in self._compiled)
        while self._compiled and (
            len(self._compiled) > _MOST_COMPILED
            or num_characters > _MOST_COMPILED_CHARACTERS
            or num_bytes > _MOST_COMPILED_BYTES
        ):
            text, _ = self._compiled.popitem(last=False)
            num_characters -= len(text)
            num_bytes -= self._sizes.pop(text, 0)

    def is_ready(self, sequence: Sequence) -> bool:
        """Whether the sequence's grammar is compiled."""
        answer = self._answers.get(sequence)
        return answer is None or answer.compiled.done()

    def wait(self) -> None:
        """Waits until another grammar is compiled, or for a moment."""
        compiling = [answer.compiled for answer in self._answers.values() if not answer.compiled.done()]
        if compiling:
            wait(compiling, _PATIENCE_SECONDS, FIRST_COMPLETED)

    def constrain(self, batch: Batch) -> bool:
        """Whether `batch` chooses a token for a sequence with a grammar."""
        return bool(self._answers) and any(sequence in self._answers for _, sequence in batch.sampling)

    def begin(self, batch: Batch) -> Callable[[], TokenMasks]:
        """Begins to find the allowed tokens in a thread; the result waits for the thread. All earlier tokens were
        accepted, except drafts, which are read when the result is called."""
        places = self._places(batch)
        if not any(place.item is not None for place in places):
            return self._filler.submit(self._fill, places).result
        return lambda: self._filler.submit(self._fill, places).result()

    def _places(self, batch: Batch) -> "list[_Place]":
        """Places where a constrained token is chosen; a share with drafts counts once."""
        decodes = enumerate(batch.decodes.sequences)
        found = [_Place(row, answer) for row, sequence in decodes if (answer := self._answers.get(sequence))]
        row = len(batch.decodes)
        for item in batch.chunks:
            if item.num_choices and (answer := self._answers.get(item.sequence)) is not None:
                found.append(_Place(row, answer, item if item.drafts else None))
            row += item.num_choices
        return found

    def accept(self, batch: Batch, sampled: list[SampledToken | None]) -> None:
        if not self._answers:
            return
        for sequence, token in zip(batch.decodes.sequences, sampled, strict=False):
            self._accept(sequence, [token])
        for item, token in zip(batch.chunks, sampled[len(batch.decodes) :], strict=True):
            self._accept(item.sequence, item.chosen or [token])

    def _accept(self, sequence: Sequence, tokens: Many[SampledToken | None]) -> None:
        answer = self._answers.get(sequence)
        for token in tokens:
            if answer is None or answer.matcher is None or token is None or not token.is_there:
                return
            if token.token_id in self._eos_token_ids and answer.matcher.is_accepting():
                del self._answers[sequence]  # who ignores the end goes on freely
                return
            answer.matcher.consume_token(token.token_id)

    def problem(self, sequence: Sequence) -> str | None:
        """Why the sequence's grammar leaves no next token; None = it does not."""
        answer = self._answers.get(sequence)
        return None if answer is None else answer.problem

    def forget(self, sequences: Iterable[Sequence]) -> None:
        """Drops ended sequences; unknown ones are ignored."""
        for sequence in sequences:
            self._answers.pop(sequence, None)

    # -- in threads ------------------------------------------------------------------------------------------------

    def _compile(self, text: str) -> "LLMatcher":
        from llguidance import LLExecutor, LLMatcher, LLTokenizer

        with self._beginning:
            if self._tokenizer is None:
                eos = sorted(token_id for token_id in self._eos_token_ids if token_id < self._vocab_size)
                self._executor = LLExecutor(self._num_threads)
                self._tokenizer = LLTokenizer(self._read_tokenizer(), n_vocab=self._vocab_size, eos_token=eos or None)
        before = resident_bytes()
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=parser_limits())
        if not matcher.is_error():
            matcher.compute_bitmask()  # what is found once for the first token is there for all copies
        if matcher.is_error():
            problem = described(matcher.get_error())
            del matcher  # the error would keep it
            raise _UnusableError(problem)
        self._sizes[text] = max(0, resident_bytes() - before)
        return matcher

    def _fill(self, places: "list[_Place]") -> TokenMasks:
        from llguidance.numpy import fill_next_token_bitmask_par

        began = self._clock.monotonic()
        rows = [each for place in places for each in self._rows(place)]
        words = np.zeros((len(rows), self._num_words), np.int32)
        matchers = [(each.matcher, index) for index, each in enumerate(rows) if each.matcher is not None]
        if matchers and self._executor is not None:
            fill_next_token_bitmask_par(self._executor, matchers, words)
        for index, (_, answer, matcher) in enumerate(rows):
            if matcher is not None and matcher.is_error():
                if matcher is answer.matcher:  # else one that goes no further than a draft
                    answer.problem = answer.problem or described(matcher.get_error())
                words[index] = 0
        self.num_masks += len(rows)
        self.mask_seconds += self._clock.monotonic() - began
        return TokenMasks(np.array([each.row for each in rows], np.int64), words)

    def _rows(self, place: "_Place") -> "Iterator[_Row]":
        """The constrained tokens of a place."""
        answer = place.answer
        _settle(answer)
        matcher = None if answer.problem is not None else answer.matcher
        if place.item is None:
            yield _Row(place.row, answer, matcher)
        elif matcher is None:
            yield from (_Row(place.row + index, answer, None) for index in range(place.item.num_choices))
        else:
            for index, behind in enumerate(behind_drafts(matcher, place.item, self._eos_token_ids)):
                if not behind.is_over:
                    yield _Row(place.row + index, answer, behind.matcher)


def usable_cores() -> Collection[int]:
    """Logical CPUs that the calling thread may use; empty where the platform does not say."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()


def _settle(answer: _GrammarState) -> None:
    """Copies the compiled grammar for the sequence, or notes the error."""
    if answer.matcher is not None or answer.problem is not None:
        return
    try:
        compiled = answer.compiled.result()
    except _UnusableError as error:
        answer.problem = str(error)
        return
    except Exception as error:  # llguidance raises bare ones for a tokenizer that it cannot use
        answer.problem = f"no grammar can be used with this model's tokenizer: {described(str(error))}"
        return
    answer.matcher = compiled.deep_copy()
