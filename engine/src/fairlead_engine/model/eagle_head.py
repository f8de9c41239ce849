"""EAGLE-3: one layer beside the model that drafts from the model's own hidden states.

Source: Li et al., EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test (2025),
and the layout of its checkpoints (`LlamaForCausalLMEagle3`). Input at position i: the token at i + 1 and, through `fc`,
the inputs of a low, a middle and a high layer of the model at i, or the head's own output at i - 1 beyond the model's
last position; output: the token at i + 2, among the words of `d2t`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import embedding

from fairlead_common.models.json_fields import JsonFields
from fairlead_common.models.model_config import DecoderShape, ModelConfig, parse_shape
from fairlead_engine.errors import ModelLoadError
from fairlead_engine.kernels.attention.backend import LayerCache
from fairlead_engine.model.checkpoint import read_tensors, refused
from fairlead_engine.model.layers import Attention, ForwardInput, GatedFeedForward, RMSNorm, Rotation, Rotations
from fairlead_engine.model.linear import Linear, make_linear
from fairlead_engine.model.rope import RotaryEmbedding

ARCHITECTURE = "LlamaForCausalLMEagle3"
_WHAT = "EAGLE-3 head"
_FILES = ("model.safetensors", "pytorch_model.bin")
_LAYER = "midlayer"
_EMBEDDING = "embed_tokens.weight"
_TAPPED = "eagle_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleHead:
    """A loaded head: immutable, and safe to call with any cache of its shape."""

    config: ModelConfig
    """Of its layer."""
    tapped_layers: tuple[int, int, int]
    """The model's layers whose inputs it takes."""
    embedding: Tensor
    """[words of the model, hidden]."""
    embedding_scale: float
    """Factor of the embedding's vectors; 1 for the head's own embedding."""
    reduce: Linear
    """Inputs of three layers of the model, side by side → [rows, hidden]."""
    embedding_norm: RMSNorm
    hidden_norm: RMSNorm
    attention: Attention
    """Of token and hidden state side by side."""
    feed_forward_norm: RMSNorm
    feed_forward: GatedFeedForward
    rotary: RotaryEmbedding
    final_norm: RMSNorm
    output: Linear
    targets: Tensor
    """int64 [words of the head]: the model's id of each."""
    vocab_size: int
    """Words of the model."""

    def __call__(self, step: ForwardInput, hidden: Tensor, cache: LayerCache) -> Tensor:
        """Runs one step, with the tokens behind their positions and hidden [tokens, hidden] from `reduce` or an earlier
        step; returns the hidden states of its logit rows [rows, hidden], not normalised."""
        embedded = self.embedding_norm.alone(self.embed(step.token_ids))
        heads = self.attention.heads(torch.cat((embedded, self.hidden_norm.alone(hidden)), dim=-1))
        rotation = Rotation(*self.rotary(step.positions, hidden.dtype))
        attended = self.attention.attend(heads, step, Rotations(rotation, rotation), cache)
        update = self.attention.output(attended[step.logit_rows])
        seen, stream = self.feed_forward_norm(update, hidden[step.logit_rows])
        return stream + self.feed_forward(seen)

    def embed(self, token_ids: Tensor) -> Tensor:
        """token_ids [tokens] → [tokens, hidden]."""
        found = embedding(token_ids, self.embedding)
        return found if self.embedding_scale == 1.0 else found * self.embedding_scale

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [rows, hidden] → [rows, words of the model]; -inf for words that it does not have."""
        own = self.output(self.final_norm.alone(hidden))
        found = own.new_full((len(own), self.vocab_size), float("-inf"))
        return found.index_copy_(1, self.targets, own)


def load_eagle_head(
    folder: Path,
    model: DecoderShape,
    model_embedding: Tensor,
    dtype: torch.dtype,
    device: torch.device,
    embedding_scale: float = 1.0,
) -> EagleHead:
    """The head in a folder, for the given model. A head without an embedding uses the model's [words, hidden], times
    `embedding_scale`. Raises ModelLoadError, with the reason."""
    fields = JsonFields.read(folder / "config.json")
    if ARCHITECTURE not in fields.texts("architectures"):
        raise fields.unsupported("architectures", f"heads for eagle3 are a {ARCHITECTURE}")
    if fields.boolean("norm_before_residual", False):
        raise fields.unsupported("norm_before_residual", "use a head that adds before it normalises")
    config = ModelConfig(**parse_shape(fields))
    if config.num_layers != 1:
        raise fields.unsupported("num_hidden_layers", "use a head of one layer")
    if fields.positive_int("target_hidden_size", model.hidden_size) != model.hidden_size:
        raise fields.invalid("target_hidden_size", f"must be the model's hidden_size ({model.hidden_size})")
    num_words = fields.positive_int("draft_vocab_size", config.vocab_size)
    tensors = _Tensors(folder, read_tensors(folder, _FILES, _WHAT), dtype, device)
    own = tensors.has(_EMBEDDING)
    head = _build(
        tensors, config, model, model_embedding, num_words, _tapped_layers(fields, model.num_layers),
        1.0 if own else embedding_scale,
    )  # fmt: skip
    tensors.check_all_taken()
    return head


def _tapped_layers(fields: JsonFields, num_layers: int) -> tuple[int, int, int]:
    """From the head's file, or as in the paper's code. A list at the top counts layers' inputs, as vLLM does; a list in
    `eagle_config` their outputs, as trainers do."""
    section = fields.section("eagle_config")
    is_inner = section is not None and section.has(_TAPPED)
    said = (section if section is not None and is_inner else fields).whole_numbers(_TAPPED)
    layers = [layer + is_inner for layer in said] or [2, num_layers // 2, num_layers - 3]
    if len(layers) != 3 or not 0 <= min(layers) <= max(layers) < num_layers:
        whose = f"{_TAPPED} {said}" if said else f"three of the model's layers by default {layers}"
        problem = f"it sees {whose}, and the model has {num_layers} layers: it needs three, and none beyond the last"
        raise refused(fields.path.parent, _WHAT, problem)
    low, middle, high = layers
    return low, middle, high


class _Tensors:
    """A head's tensors, all of which must be taken."""

    def __init__(self, folder: Path, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device) -> None:
        self._folder = folder
        self._dtype = dtype
        self.device = device
        self._left = {_plain(name): tensor for name, tensor in tensors.items()}

    def take(self, name: str, *shape: int) -> Tensor:
        """A tensor of floats."""
        return self.raw(name, *shape).to(self.device, self._dtype)

    def raw(self, name: str, *shape: int) -> Tensor:
        """As it is stored, on the host."""
        found = self._left.pop(name, None)
        if found is None or found.shape != shape:
            there = "is missing" if found is None else f"has shape {list(found.shape)}"
            raise self.refused(f"{name} {there}; config.json and the model ask for {list(shape)}")
        return found

    def has(self, name: str) -> bool:
        return name in self._left

    def drop(self, name: str) -> None:
        self._left.pop(name, None)

    def linear(self, names: Mapping[str, int], in_features: int) -> Linear:
        """One product for several projections, given as name → output size; with stored biases."""
        weight = torch.cat([self.take(f"{name}.weight", size, in_features) for name, size in names.items()])
        if not any(self.has(f"{name}.bias") for name in names):
            return make_linear(weight)
        return make_linear(weight, torch.cat([self.take(f"{name}.bias", size) for name, size in names.items()]))

    def norm(self, name: str, size: int, eps: float) -> RMSNorm:
        return RMSNorm(self.take(f"{name}.weight", size), eps)

    def refused(self, problem: str) -> ModelLoadError:
        return refused(self._folder, _WHAT, problem)

    def check_all_taken(self) -> None:
        if self._left:
            raise self.refused(f"config.json does not account for {', '.join(sorted(self._left)[:3])}")


def _plain(name: str) -> str:
    """Strips the prefixes under which some checkpoints store the layer."""
    return re.sub(r"^layers\.0\.", f"{_LAYER}.", name.removeprefix("model."))


def _build(
    tensors: _Tensors,
    config: ModelConfig,
    model: DecoderShape,
    model_embedding: Tensor,
    num_words: int,
    tapped_layers: tuple[int, int, int],
    embedding_scale: float,
) -> EagleHead:
    hidden, eps = config.hidden_size, config.rms_norm_eps
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    own, inner = f"{_LAYER}.self_attn", config.intermediate_size
    projections = {f"{own}.q_proj": queries, f"{own}.k_proj": keys, f"{own}.v_proj": keys}
    attention = Attention(
        qkv=tensors.linear(projections, 2 * hidden),
        output=tensors.linear({f"{own}.o_proj": hidden}, queries),
        head_norm=None,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
    )
    return EagleHead(
        config=config,
        tapped_layers=tapped_layers,
        embedding=_embedding(tensors, hidden, model, model_embedding),
        embedding_scale=embedding_scale,
        reduce=tensors.linear({"fc": hidden}, 3 * model.hidden_size),
        embedding_norm=tensors.norm(f"{_LAYER}.input_layernorm", hidden, eps),
        hidden_norm=tensors.norm(f"{_LAYER}.hidden_norm", hidden, eps),
        attention=attention,
        feed_forward_norm=tensors.norm(f"{_LAYER}.post_attention_layernorm", hidden, eps),
        feed_forward=GatedFeedForward(
            tensors.linear({f"{_LAYER}.mlp.gate_proj": inner, f"{_LAYER}.mlp.up_proj": inner}, hidden),
            tensors.linear({f"{_LAYER}.mlp.down_proj": hidden}, inner),
        ),
        rotary=RotaryEmbedding(config.rope, config.head_dim, tensors.device),
        final_norm=tensors.norm("norm", hidden, eps),
        output=tensors.linear({"lm_head": num_words}, hidden),
        targets=_targets(tensors, num_words, model.vocab_size),
        vocab_size=model.vocab_size,
    )


def _embedding(tensors: _Tensors, hidden: int, model: DecoderShape, model_embedding: Tensor) -> Tensor:
    if tensors.has(_EMBEDDING):
        return tensors.take(_EMBEDDING, len(model_embedding), hidden)
    if hidden != model.hidden_size:
        problem = f"it stores no {_EMBEDDING}, and its hidden size {hidden} is not the model's ({model.hidden_size})"
        raise tensors.refused(problem)
    return model_embedding


def _targets(tensors: _Tensors, num_words: int, vocab_size: int) -> Tensor:
    """The model's id of each word of the head: `d2t` has the differences; `t2d` repeats them as flags."""
    tensors.drop("t2d")
    words = torch.arange(num_words)
    if tensors.has("d2t"):
        words = words + tensors.raw("d2t", num_words).long()
    elif num_words != vocab_size:
        raise tensors.refused(f"d2t is missing, and it has {num_words} words where the model has {vocab_size}")
    if int(words.min()) < 0 or int(words.max()) >= vocab_size or len(set(words.tolist())) != num_words:
        raise tensors.refused(f"d2t names a word twice, or one that is none of the model's {vocab_size}")
    return words.to(tensors.device)
