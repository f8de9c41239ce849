"""Inputs of a model's linear layers during reading, layer by layer: only one layer's moments are in memory, and each
layer reads the outputs of the rounded layers before. Driven by `quantizing`."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fairlead_common.models.model_config import KvShape
from fairlead_engine.kernels.attention.backend import CacheLayout, LayerCache
from fairlead_engine.kernels.attention.block_tables import BlockTables
from fairlead_engine.kernels.attention.chosen_keys import StepChoice
from fairlead_engine.model.decoder import Decoder
from fairlead_engine.model.linear import Linear
from fairlead_engine.model.recurrent import JointCache
from fairlead_engine.runner.prepared_batch import prepare
from fairlead_engine.runner.slot_states import SlotStates
from fairlead_engine.runner.slot_tokens import SlotTokens
from fairlead_engine.runner.step_plan import plan_prompt

_BLOCK_SIZE = 16


class InputMoments:
    """Sums of x^T x and of |x| over a layer's inputs x."""

    def __init__(self, in_features: int, device: torch.device) -> None:
        self.moments = torch.zeros(in_features, in_features, device=device)
        """float32 [in_features, in_features]."""
        self._magnitudes = torch.zeros(in_features, device=device)
        self.num_rows = 0

    def add(self, x: Tensor) -> None:
        """x [rows, in_features]."""
        rows = x.float()
        self.moments += rows.t() @ rows
        self._magnitudes += rows.abs().sum(0)
        self.num_rows += len(x)

    def divide(self, scales: Tensor) -> None:
        """Divides inputs by float32 [in_features] from here on."""
        self.moments /= scales.outer(scales)
        self._magnitudes /= scales

    @property
    def magnitudes(self) -> Tensor:
        """float32 [in_features]: mean magnitudes."""
        return self._magnitudes / max(1, self.num_rows)


class WatchedLinear:
    """A linear layer that can be watched and replaced."""

    copies_weight = True

    def __init__(self, names: Sequence[str], linear: Linear) -> None:
        self.names = tuple(names)
        """The layer's names in the checkpoint."""
        self.linear = linear
        self.seen: InputMoments | None = None
        self.is_watched = False

    def __call__(self, x: Tensor) -> Tensor:
        if self.is_watched and len(x):
            if self.seen is None:
                self.seen = InputMoments(x.shape[1], x.device)
            self.seen.add(x)
        return self.linear(x)


class LayerwiseReading:
    """A model that reads texts of one length in step, layer by layer."""

    def __init__(self, model: Decoder, texts: Tensor) -> None:
        """`texts` int64 [texts, tokens]."""
        config, weight = model.config, model.embedding.weight
        num_tokens = texts.shape[1]
        self._num_blocks = num_blocks = -(-num_tokens // _BLOCK_SIZE)
        self._layout = CacheLayout(
            num_layers=1,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            shared_value_dim=config.shared_value_dim,
            index_dim=config.index_dim,
            indexed=frozenset({0} if config.indexed else ()),
            block_size=_BLOCK_SIZE,
            dtype=weight.dtype,
            device=weight.device,
        )
        self._backend = backend = BlockTables()
        self._caches: dict[tuple[KvShape, int, int], LayerCache] = {}
        """By shape, and the text and the layer that later layers read it of."""
        plan = plan_prompt(texts[0].numpy(), num_blocks)
        tokens = SlotTokens(1, num_blocks * _BLOCK_SIZE, weight.device)
        tables = backend.tables(self._layout, 1, num_blocks)
        self._slot = None if config.state is None else SlotStates(config, 1, 0, weight.dtype, weight.device)
        self._step = prepare(plan, backend, tables, tokens, weight.device, states=self._slot).forward
        self._model = model
        self._rotations = model.rotations(self._step.positions)
        self._choices = [StepChoice() for _ in texts]
        """Keys chosen in each text by the layer before."""
        self._states: list[tuple[Tensor | None, Tensor]] = [
            (None, model.embedding(text.to(weight.device))) for text in texts
        ]

    def watch(self, index: int, watched: Sequence[WatchedLinear]) -> None:
        """Runs layer `index`, while its linear layers sum up their inputs. The texts stay at the layer's input."""
        for linear in watched:
            linear.is_watched = True
        for text, state in enumerate(self._states):
            self._through(index, text, state)
        for linear in watched:
            linear.is_watched = False

    def go_on(self, index: int) -> None:
        """Moves all texts through layer `index`."""
        self._states = [self._through(index, text, state) for text, state in enumerate(self._states)]

    def _through(self, index: int, text: int, state: tuple[Tensor | None, Tensor]) -> tuple[Tensor | None, Tensor]:
        layer, step = self._model.layers[index], replace(self._step, choice=self._choices[text])
        heads, stream = layer.before_attention(*state)
        attended = layer.attention.attend(heads, step, self._rotations, self._cache_of(index, text))
        return layer.after_attention(attended, stream)

    def _cache_of(self, index: int, text: int) -> Any:
        """Of a text that begins, or as the layer that is read has left it; None = the layer keeps nothing."""
        state = None if self._slot is None else self._slot.caches.get(index)
        if state is not None:
            state.cleared()
        config = self._model.config
        source = config.kv_source(index)
        if source not in config.attending_layers:
            return state
        is_kept = config.cache_layers.count(source) > 1
        key = config.kv_of(index), text if is_kept else 0, source if is_kept else -1
        if key not in self._caches:
            layout = replace(self._layout, kv_shapes=key[:1])
            (self._caches[key],) = self._backend.allocate(layout, self._num_blocks)
        return self._caches[key] if state is None else JointCache(self._caches[key], state)
