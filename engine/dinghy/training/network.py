"""The dinghy's network for training: a compact Llama in plain torch.

It computes exactly what a Llama checkpoint of this shape means (pre-norm, rotary positions in the half-split layout,
grouped-query attention, SwiGLU, tied embeddings). Projections that read the same input are fused here; `checkpoint.py`
splits them.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Shape:
    """The network's dimensions."""

    vocab_size: int = 1536
    hidden_size: int = 256
    num_layers: int = 4
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 768
    context: int = 2048
    """Longest sequence in tokens."""
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class Layer(nn.Module):
    """Attention, then the gated feed-forward network, each added to the stream. `[rows, tokens, hidden]` in and out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        attention_size = shape.num_heads * shape.head_dim
        self.input_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.qkv = nn.Linear(shape.hidden_size, attention_size + 2 * shape.num_kv_heads * shape.head_dim, bias=False)
        self.out = nn.Linear(attention_size, shape.hidden_size, bias=False)
        self.mlp_norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self.gate_up = nn.Linear(shape.hidden_size, 2 * shape.intermediate_size, bias=False)
        self.down = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        rows, tokens, _ = x.shape
        shape = self.shape
        heads = self.qkv(self.input_norm(x)).view(rows, tokens, -1, shape.head_dim).transpose(1, 2)
        q, k, v = heads.split((shape.num_heads, shape.num_kv_heads, shape.num_kv_heads), dim=1)
        attended = functional.scaled_dot_product_attention(
            rotate(q, rotation), rotate(k, rotation), v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        x = x + self.out(attended.transpose(1, 2).reshape(rows, tokens, -1))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        fed: Tensor = self.down(functional.silu(gate) * up)
        return x + fed


class Network(nn.Module):
    """Token ids to logits at chosen places."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.num_layers))
        self.norm = RMSNorm(shape.hidden_size, shape.rms_norm_eps)
        self._initialise()

    def _initialise(self) -> None:
        nn.init.normal_(self.embedding.weight, std=0.02)
        shrink = 1 / math.sqrt(2 * self.shape.num_layers)  # keeps the stream's size independent of the depth
        for name, weight in self.layers.named_parameters():
            if weight.dim() == 2:
                std = 0.5 / math.sqrt(weight.shape[1])
                nn.init.normal_(weight, std=std * shrink if name.endswith(("out.weight", "down.weight")) else std)

    def forward(self, token_ids: Tensor, positions: Tensor, segments: Tensor, chosen: Tensor) -> Tensor:
        """Logits `[chosen, vocab]` for the next token at the flat indices `chosen`.

        `token_ids`, `positions` and `segments` are `[rows, tokens]`; tokens see only their own segment's past.
        """
        x = self.embedding(token_ids)
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))
        rotation = tuple(part.to(x.dtype) for part in rotations(positions, self.shape))
        mask = visible(segments)
        for layer in self.layers:
            x = layer(x, rotation, mask)
        return functional.linear(self.norm(x.flatten(0, 1)[chosen]), self.embedding.weight)


def rotations(positions: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosines and sines `[rows, 1, tokens, head_dim / 2]` of the rotary position embedding."""
    frequencies = shape.rope_theta ** (-torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim)
    angles = positions[:, None, :, None].float() * frequencies
    return angles.cos(), angles.sin()


def rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotates pairs (i, i + head_dim / 2) of each head by its token's angles."""
    cos, sin = rotation
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def visible(segments: Tensor) -> Tensor | None:
    """Which tokens each token may attend to, `[rows, 1, tokens, tokens]`: the past of its own segment.

    None where every row holds one segment: all of the past then, which attention computes in half the time.
    """
    if int(segments.max()) <= 1:
        return None
    tokens = segments.shape[1]
    same = segments[:, None, :, None] == segments[:, None, None, :]
    return same & torch.ones(tokens, tokens, dtype=torch.bool).tril()
