"""The cost of a step, learnt online from the engine's steps.

`step = base + prefill_step·[p > 0] + prefill_token·p + prefill_context·c + decode_seq·d + kv_token·k` seconds, all
coefficients ≥ 0. The engine publishes the coefficients with its load, and the gateway predicts time to first token from
them. Sizes of batches and durations only.
"""

import math
from operator import mul
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fairlead_common.wire import messages
from fairlead_engine.types.batch import Batch

Vector = npt.NDArray[np.float64]

_LARGEST_SURPRISE = 0.7
"""Bound of one step's effect on the pace, as a natural logarithm: a factor of about two."""


class StepWork(NamedTuple):
    """How much of each kind of work a step holds: the regressors of the step-cost model."""

    base: float
    """1: every step pays it once."""
    prefill_step: float
    """1 in a step that computes several tokens of some item, on slower ways through the model. Without this term, short
    prompts on a CPU are predicted a third too low and the cost of decodes absorbs the rest."""
    prefill_token: float
    """Tokens of items that compute several and have no drafts."""
    prefill_context: float
    """Tokens that those attend to: the sum over them of their positions."""
    decode_seq: float
    """Items that compute one token, and each token of items with drafts."""
    kv_token: float
    """Tokens that those attend to."""

    @classmethod
    def of(cls, batch: Batch) -> "StepWork":
        decode_seq, kv_token = len(batch.decodes), int(batch.decodes.ends.sum())
        prefill_token = prefill_context = 0
        for item in batch.chunks:
            if item.num_tokens == 1:
                decode_seq += 1
                kv_token += item.end
            elif item.drafts:
                decode_seq += item.num_tokens
                kv_token += item.num_tokens * (item.start + item.end + 1) // 2
            else:
                prefill_token += item.num_tokens
                prefill_context += item.num_tokens * (item.start + item.end - 1) // 2
        return cls(1, int(prefill_token > 0), prefill_token, prefill_context, decode_seq, kv_token)


class StepCostModel:
    """Exponentially weighted, non-negative least squares on six coefficients.

    - Each step counts relative to its duration: a coefficient explains short decode steps as well as long prefills, and
      a delayed step weighs little.
    - Steps with prompt tokens and steps without are two histories. Each fades by its own steps, by half in `half_life`:
      thousands of decodes do not wear away the lessons of prompts.
    - On top of the fit comes the *pace*, a factor for all coefficients that follows within `pace_half_life` steps of
      both kinds: a neighbour that takes half the processor slows rare prompts too, long before the fit could learn from
      them. Measured on two contended cores, the median error of predicted prefills falls from 33 to 27 %.
    - `set_prior` remembers the warm-up with a small constant weight: work that the present load lacks keeps a sensible
      cost.
    - `observe` notes a step; after every `solve_every` of them the new rows enter the normal equations, which
      `solve_nonnegative` solves.
    """

    def __init__(
        self,
        *,
        half_life: float = 256.0,
        pace_half_life: float = 16.0,
        prior_weight: float = 0.05,
        solve_every: int = 16,
    ) -> None:
        self._decay = 0.5 ** (1.0 / half_life)
        self._pace_gain = 1.0 - 0.5 ** (1.0 / pace_half_life)
        self._log_pace = 0.0
        self._prior_weight = prior_weight
        self._solve_every = solve_every
        size = len(StepWork._fields)
        # The normal equations, gram · coefficients = moment, of the observed steps of both kinds and of the prior: the
        # last column is the moment, and the others are the gram.
        self._equations, self._prior = np.zeros((2, size, size + 1)), np.zeros((size, size + 1))
        self._new: tuple[list[list[float]], list[list[float]]] = ([], [])
        """Rows to add to the equations of each kind: a step's work per second, and 1 as its duration."""
        self._coefficients = [0.0] * size
        self._residual = 0.0
        self._residual_weight = 0.0
        self._num_learnt = 0
        self.num_steps = 0
        self.last_step_tokens = 0
        self.last_step_seconds = 0.0

    def observe(self, batch: Batch, seconds: float, *, learns: bool = True) -> None:
        """Counts a step and learns from it; not from a step without work or time, nor with `learns` False."""
        self.num_steps += 1
        self.last_step_tokens = batch.num_tokens
        self.last_step_seconds = seconds
        if batch and learns:
            self.learn(StepWork.of(batch), seconds)

    def learn(self, work: StepWork, seconds: float) -> None:
        """Learns from work that took so long: a step's, or a share or a sum of several steps'."""
        if seconds <= 0.0:
            return
        shares = [amount / seconds for amount in work]
        if any(self._coefficients):
            self._learn_from_prediction(sum(map(mul, shares, self._coefficients)))
        self._new[work.prefill_step > 0.0].append([*shares, 1.0])
        self._num_learnt += 1
        if self._num_learnt % self._solve_every == 0:
            self.solve()

    def set_prior(self, steps: list[tuple[StepWork, float]], residual: float = 0.0) -> None:
        """Replaces the prior, (work, seconds) of steps measured on purpose. `residual`: until steps are observed."""
        rows = np.array([np.array(work) / seconds for work, seconds in steps if seconds > 0.0])
        if not rows.size:
            return
        self._prior[:, :-1] = self._prior_weight * rows.T @ rows
        self._prior[:, -1] = self._prior_weight * rows.sum(axis=0)
        if not self._residual_weight:
            self._residual = residual
        self.solve()

    def told(self, rows_per_decode: float, tokens_per_decode: float) -> messages.StepCost:
        """The published costs, if a decoding sequence has `rows_per_decode` rows a step and gets
        `tokens_per_decode`."""
        costs = self.coefficients
        for name in ("decode_seq", "kv_token") if rows_per_decode != 1.0 and costs else ():
            costs[name] *= rows_per_decode
        return messages.StepCost(**costs, tokens_per_decode=tokens_per_decode)

    @property
    def coefficients(self) -> dict[str, float]:
        """Seconds per unit of each kind of work, and `residual`: typical relative error. Empty until learnt."""
        if not any(self._coefficients):
            return {}
        pace = math.exp(self._log_pace)
        named = {name: pace * each for name, each in zip(StepWork._fields, self._coefficients, strict=True)}
        return {**named, "residual": self._residual}

    def predict(self, work: StepWork) -> float:
        """Seconds that a step with this work takes; 0 until something was learnt."""
        return float(sum(map(mul, work, self._coefficients))) * math.exp(self._log_pace)

    def predict_least(self, work: StepWork) -> float:
        """Seconds that it hardly takes less than: twice the typical error below what is predicted."""
        return self.predict(work) * max(0.0, 1.0 - 2.0 * self._residual)

    def solve(self) -> None:
        """Updates the coefficients with everything learnt."""
        for kind, new in enumerate(self._new):
            if new:
                self._equations[kind] = self._faded(self._equations[kind], np.array(new))
                new.clear()
        equations = self._equations.sum(axis=0) + self._prior
        guess = np.array(self._coefficients)
        self._coefficients = solve_nonnegative(equations[:, :-1], equations[:, -1], guess).tolist()

    def _faded(self, equations: Vector, new: Vector) -> Vector:
        """The equations after adding the `new` rows, of which the last counts most."""
        weights = self._decay ** np.arange(len(new) - 1, -1, -1)
        faded: Vector = self._decay ** len(new) * equations + (weights[:, None] * new[:, :-1]).T @ new
        return faded

    def _learn_from_prediction(self, fit: float) -> None:
        """`fit`: the coefficients' prediction for a step before it was seen, as a share of its duration. The residual
        is a fading mean of the absolute relative error, pace included; a single error counts as 1 at most."""
        error = fit * math.exp(self._log_pace) - 1.0
        self._residual_weight = self._residual_weight * self._decay + 1.0
        self._residual += (min(abs(error), 1.0) - self._residual) / self._residual_weight
        if fit > 0.0:
            surprise = -math.log(fit) - self._log_pace
            self._log_pace += self._pace_gain * min(max(surprise, -_LARGEST_SURPRISE), _LARGEST_SURPRISE)


def solve_nonnegative(gram: Vector, moment: Vector, guess: Vector | None = None) -> Vector:
    """The x ≥ 0 that minimises `x·gram·x / 2 - moment·x`, for a symmetric positive semi-definite `gram` [n, n].

    The active-set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23) on the normal
    equations: a handful of solutions of at most n equations, or a single one where the same variables are above 0 as in
    the `guess`. The equations are scaled to a unit diagonal first, since a variable may count sequences or millions of
    tokens; a variable that never occurred stays 0.
    """
    scale = np.sqrt(np.diag(gram))
    known = scale > 0.0
    safe_scale = np.where(known, scale, 1.0)
    scaled = gram / np.outer(safe_scale, safe_scale) + 1e-9 * np.eye(len(moment))
    target = moment / safe_scale
    x = np.zeros(len(moment))
    free = np.zeros(len(moment), dtype=bool) if guess is None else known & (guess > 0.0)
    if free.any():
        x = _descend(scaled, target, x, free)
    for _ in range(4 * len(moment)):  # it ends long before, but rounding must not make it circle
        gradient = np.where(free | ~known, -np.inf, target - scaled @ x)
        best = int(np.argmax(gradient))
        if gradient[best] <= 1e-10:
            break
        free[best] = True
        x = _descend(scaled, target, x, free)
    result: Vector = x / safe_scale
    return result


def _descend(gram: Vector, moment: Vector, x: Vector, free: npt.NDArray[np.bool_]) -> Vector:
    """Moves `x` to the optimum of the free variables, fixing at 0 each variable that would become negative."""
    while True:
        optimum = np.zeros_like(x)
        optimum[free] = np.linalg.solve(gram[np.ix_(free, free)], moment[free])
        blocking = free & (optimum < 0.0)
        if not blocking.any():
            return optimum
        steps = x[blocking] / (x[blocking] - optimum[blocking])
        x = np.where(free, x + steps.min() * (optimum - x), 0.0)
        free &= ~(blocking & (x <= 1e-15))
        x[~free] = 0.0
