"""Steps captured at the start and then replayed: hundreds of launches become one.

A step of decodes is one graph, from the tokens of its slots to the hidden states. A step with prompts has a graph for
each part between two attentions, whose shapes no number of tokens tells. Both are captured for a few sizes, and a step
is padded to the next: the added rows belong to a separate slot with a separate block.

A graph reads and writes addresses. All inputs and outputs therefore lie in buffers that live as long as the graphs, and
no graph's internal memory is read from outside: graphs may use the same memory, one after the other.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fairlead_engine.kernels.attention.backend import CapturableBackend
from fairlead_engine.kernels.attention.block_tables import DeviceTables
from fairlead_engine.kernels.recurrence import StateRows
from fairlead_engine.kernels.staging import stage
from fairlead_engine.model.decoder import Decoder, Taps
from fairlead_engine.model.layers import ForwardInput
from fairlead_engine.runner.dummy_steps import StepLimits
from fairlead_engine.runner.progress import Progress
from fairlead_engine.runner.slot_tokens import SlotTokens
from fairlead_engine.types.adapters import NOT_PLACED
from fairlead_engine.types.batch import Numbers

_DECODE_SIZES = (1, 2, 4, *range(8, 257, 8), *range(272, 513, 16))
"""Sequences of captured decodes. A product takes as long as reading its weights: padding is nearly free."""
_TOKEN_SIZES = (8, 16, 32, 48, 64, 96, 128, 192, 256, 384, *range(512, 1024, 128), *range(1024, 2049, 256))
"""Tokens of captured steps with prompts."""
_SMALL_STEP, _MOST_MULTIPLICATIONS = 512, 5 * 10**10
"""Larger steps are captured up to so many multiplications of tokens with a layer's weights, 0.2 ms on an H100, where
launching a layer's operations one by one takes the host 0.7 ms."""
_BYTES_PER_LAUNCH = 2**15
"""Device memory of a graph per launch: a generous guess; the log has the truth."""
_LAUNCHES_PER_LAYER = 17
"""Most: five beside four products, each of three launches where rows are rounded and sums are scaled."""
_LAUNCHES_OF_STATES = 60
"""The same of a layer that keeps states, whose gates and norms are computed operation by operation."""
ADAPTED, ADAPTED_EXPERTS = 2, 3
"""Launches of a layer with adapters over those of one without, and with adapters of experts."""

Replay = Callable[[], None]
Captured = TypeVar("Captured")


class GraphRecorder(Protocol):
    """Captures work on a device."""

    def record(self, run: Callable[[], None]) -> Replay:
        """Runs `run`, captures it, and returns a function that repeats it. Raises RuntimeError where impossible."""

    def num_bytes(self) -> int:
        """Device memory of all captured graphs."""


def decode_sizes(most: int) -> list[int]:
    """Numbers of sequences for captured decodes, of at most `most`."""
    return _sizes(_DECODE_SIZES, most)


def token_sizes(most: int, layer_weights: int) -> list[int]:
    """Numbers of tokens for captured steps with prompts, of at most `most`, where a layer has so many weights."""
    largest = max(_SMALL_STEP, _MOST_MULTIPLICATIONS // layer_weights)
    return _sizes(tuple(size for size in _TOKEN_SIZES if size <= largest), most)


def _sizes(sizes: tuple[int, ...], most: int) -> list[int]:
    return [*(size for size in sizes if size < most), *([most] if most <= sizes[-1] else [])]


def foreseen_bytes(
    num_layers: int, weights: int, limits: StepLimits, work_space: int, adapted: int, num_recurrent: int = 0
) -> int:
    """Upper bound of the graphs' memory: the work space of the largest step, and the graphs themselves. `adapted`: an
    adapted decode's launches over a plain one's; 0 = none is captured. `num_recurrent`: layers that keep states."""
    num_graphs = (1 + adapted) * len(decode_sizes(limits.max_num_seqs))
    num_graphs += len(token_sizes(limits.max_num_batched_tokens, weights // num_layers))
    launches = (num_layers - num_recurrent) * _LAUNCHES_PER_LAYER + num_recurrent * _LAUNCHES_OF_STATES
    return work_space + num_graphs * launches * _BYTES_PER_LAUNCH


class GraphOutput(NamedTuple):
    """Result of a graph of decodes, valid until the next step."""

    hidden: Tensor
    """[sequences, hidden]."""
    slots: Tensor
    """int64 [sequences]."""
    context_lens: Tensor
    """int64 [sequences]."""
    tapped: Tensor | None
    """[sequences, layers x hidden]: inputs of the tapped layers; None without."""


class StepGraphs:
    """The graphs of one rank's part of a model with its cache; both must stay in place."""

    @torch.inference_mode()
    def __init__(
        self,
        recorder: GraphRecorder,
        model: Decoder,
        backend: CapturableBackend[DeviceTables, Any],
        caches: list[Any],
        tables: DeviceTables,
        tokens: SlotTokens,
        *,
        most_tokens: int,
        tapped_layers: tuple[int, ...] = (),
    ) -> None:
        """Captures steps of up to `most_tokens` tokens, and decodes of all slots but the last, whose table has the
        blocks for padding. Other slots are not touched. `caches`: a `LayerCache` or a `StateCache` of each layer.
        Decodes also return the inputs of `tapped_layers`. Raises RuntimeError."""
        self._recorder = recorder
        self._model = model
        self._backend = backend
        self._caches = caches
        self._tables = tables
        self._tokens = tokens
        spare_slot = len(tables.rows) - 1
        self._spare = np.array([[spare_slot], [1], [NOT_PLACED], [0]])
        """A padding row of decodes."""
        weights = model.config.num_parameters // model.config.num_layers
        decodes, pieces = decode_sizes(spare_slot), token_sizes(most_tokens, weights)
        self._tapped_layers = tapped_layers
        self._buffers = _Buffers(model, decodes[-1], pieces[-1], len(tapped_layers), tables.rows.device)
        self._decodes = self._captured("decode", decodes, self._capture_decode)
        """By the number of sequences, ascending."""
        self._adapted: dict[int, Replay] = {}
        """The same for steps with adapters."""
        if model.slots is not None:
            self._adapted = self._captured("adapted decode", decodes, partial(self._capture_decode, is_adapted=True))
        self._pieces = self._captured(
            "piecewise", pieces, lambda size: [self._recorder.record(piece) for piece in self._pieces_of(size)]
        )
        """By the number of tokens, ascending; the pieces in their order."""

    def fits_decodes(self, num_sequences: int) -> bool:
        """Whether a graph exists for a decode of `num_sequences`."""
        return _next_size(self._decodes, num_sequences) is not None

    def decode(self, slots: Numbers, context_lens: Numbers, adapters: Numbers, shifts: Numbers) -> GraphOutput:
        """Computes a decode. `adapters`: slots of adapters, empty = none; `shifts`: of rope positions, empty = none.
        Tables and tokens are up to date, and a graph fits."""
        size = _next_size(self._decodes, len(slots))
        assert size is not None
        numbers = np.empty((4, size), np.int64)
        numbers[:2, : len(slots)] = slots, context_lens
        numbers[:, len(slots) :] = self._spare
        numbers[2, : len(slots)] = adapters if len(adapters) else NOT_PLACED
        numbers[3, : len(slots)] = shifts if len(shifts) else 0
        rows = self._buffers.rows_of(size)
        stage(numbers, rows)
        (self._adapted if len(adapters) else self._decodes)[size]()
        tapped = self._buffers.tapped[: len(slots)] if self._tapped_layers else None
        row_slots, row_ends = rows[:2, : len(slots)]
        return GraphOutput(self._buffers.hidden[: len(slots)], row_slots, row_ends, tapped)

    def between_attentions(self, num_tokens: int) -> "PaddedPieces | None":
        """Computes a step of `num_tokens` tokens except its attentions; None = no graph fits."""
        size = _next_size(self._pieces, num_tokens)
        return None if size is None else PaddedPieces(self._pieces[size], self._buffers, num_tokens)

    def _captured(self, kind: str, sizes: list[int], capture: Callable[[int], Captured]) -> dict[int, Captured]:
        """The largest first: the others fit into its memory."""
        captured: dict[int, Captured] = {}
        progress = Progress(f"captured %d of %d {kind} graphs", len(sizes))
        for size in reversed(sizes):
            captured[size] = capture(size)
            progress.advance(f", {self._recorder.num_bytes() / 2**30:.2f} GiB")
        return dict(sorted(captured.items()))

    def _capture_decode(self, size: int, is_adapted: bool = False) -> Replay:
        stage(self._spare.repeat(size, axis=1), self._buffers.rows_of(size))
        return self._recorder.record(lambda: self._compute_decodes(size, is_adapted))

    def _compute_decodes(self, size: int, is_adapted: bool) -> None:
        slots, context_lens, adapters, shifts = self._buffers.rows_of(size)
        positions = context_lens - 1
        adapted = self._model.slots.of_rows(None, adapters) if is_adapted and self._model.slots is not None else None
        step = ForwardInput(
            token_ids=self._tokens.at(slots, positions),
            positions=positions,
            logit_rows=torch.arange(size, device=slots.device),
            backend=self._backend,
            attention=self._backend.prepare_decodes(slots, context_lens, self._tables),
            adapted=adapted,
            adapted_reads=adapted,
            states=StateRows(slots, None) if self._model.config.recurrent else None,
            places=positions + shifts if self._model.config.rope.sections else None,
        )
        taps = Taps(self._tapped_layers, self._buffers.tapped[:size]) if self._tapped_layers else None
        self._buffers.hidden[:size].copy_(self._model(step, self._caches, taps=taps))

    def _pieces_of(self, size: int) -> Iterator[Callable[[], None]]:
        """Each piece writes the next attention's heads, and the stream for the next piece."""
        buffers, model = self._buffers, self._model

        def write(layer: int, heads: Tensor, stream: Tensor) -> None:
            buffers.heads(layer, size).copy_(heads)
            buffers.stream[:size].copy_(stream)

        def following(index: int) -> None:
            write(index + 1, *model.following(index, buffers.attended(index, size), buffers.stream[:size]))

        model.adapt(None)
        yield lambda: write(0, *model.first(buffers.token_ids[:size]))
        yield from (partial(following, index) for index in range(len(model.layers) - 1))


class _Buffers:
    """Inputs and outputs of graphs."""

    def __init__(
        self, model: Decoder, most_sequences: int, most_tokens: int, num_tapped: int, device: torch.device
    ) -> None:
        dtype = model.embedding.weight.dtype

        def buffer(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._rows = torch.zeros(4 * most_sequences, dtype=torch.int64, device=device)
        self.hidden = buffer(most_sequences, model.config.hidden_size)
        """Hidden states of decodes."""
        self.tapped = buffer(most_sequences, num_tapped * model.config.hidden_size)
        """Inputs of the tapped layers, of decodes."""
        self.token_ids = torch.zeros(most_tokens, dtype=torch.int32, device=device)
        self.stream = buffer(most_tokens, model.config.stream_size)
        attentions = [layer.attention for layer in model.layers]
        self._heads_shapes = [each.heads_shape for each in attentions]
        """By layer."""
        self._attended_sizes = [each.attended_size for each in attentions]
        self._heads = buffer(most_tokens * max(prod(shape) for shape in self._heads_shapes))
        self._attended = buffer(most_tokens * max(self._attended_sizes))

    def heads(self, layer: int, size: int) -> Tensor:
        """[size, *heads_shape] of a layer; all layers share the memory."""
        shape = self._heads_shapes[layer]
        return self._heads[: size * prod(shape)].view(size, *shape)

    def attended(self, layer: int, size: int) -> Tensor:
        """[size, attended_size] of a layer."""
        width = self._attended_sizes[layer]
        return self._attended[: size * width].view(size, width)

    def rows_of(self, size: int) -> Tensor:
        """int64 [4, size] of decodes, in one copy: slots, context lengths, adapters' slots, shifts of positions."""
        return self._rows[: 4 * size].view(4, size)


class PaddedPieces:
    """A step's pieces between attentions, by graphs of at least as many tokens (`BetweenAttentions`)."""

    def __init__(self, pieces: list[Replay], buffers: _Buffers, num_tokens: int) -> None:
        self._pieces = pieces
        self._buffers = buffers
        self._num_tokens = num_tokens

    def first(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        self._buffers.token_ids[: self._num_tokens].copy_(token_ids)
        return self._computed(0)

    def following(self, index: int, attended: Tensor, stream: Tensor) -> tuple[Tensor, Tensor]:
        """The stream is where the piece before has left it."""
        self._buffers.attended(index, self._num_tokens).copy_(attended)
        return self._computed(index + 1)

    def _computed(self, piece: int) -> tuple[Tensor, Tensor]:
        self._pieces[piece]()
        return self._buffers.heads(piece, self._num_tokens), self._buffers.stream[: self._num_tokens]


def _next_size(captured: dict[int, Any], wanted: int) -> int | None:
    """The smallest captured size of at least `wanted`; None without."""
    sizes = list(captured)
    index = bisect_left(sizes, wanted)
    return sizes[index] if index < len(sizes) else None
