"""The bound: a continuous-batching loop written by hand for one model and one workload, in plain torch.

It shows what this machine can do with torch when nothing has to be general: one contiguous cache slot per request, no
paging, no prefix cache, no sampling, no way to add a request later, only the Llama and Qwen3 architectures. Chunked
prefill is mixed with decode, tokens are flattened, weights are fused and packed for oneDNN.
"""

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from measurement import Outcome, measure, peer_arguments, report
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention, silu
from workload import Request


@dataclass
class Active:
    """A request in its slot of the cache."""

    slot: int
    request: Request
    index: int
    num_computed: int = 0
    output: list[int] = field(default_factory=list)

    def next_tokens(self, budget: int) -> list[int]:
        if self.output:
            return self.output[-1:]
        return self.request.prompt[self.num_computed : self.num_computed + budget]


@dataclass
class Chunk:
    """The tokens of one request in a step."""

    active: Active
    start: int
    token_ids: list[int]
    mask: Tensor | None


class Model:
    """Llama or Qwen3 with fused, packed weights and one cache slot per request."""

    def __init__(self, folder: Path, num_slots: int, slot_tokens: int, dtype: torch.dtype, *, int8: bool) -> None:
        """`dtype`: of activations, cache, norms, embedding and output projection. `int8`: the layers' matrices are
        8-bit per output, and activations are rounded as they come (W8A8)."""
        config = json.loads((folder / "config.json").read_text())
        weights = {name: tensor.to(dtype) for name, tensor in load_file(folder / "model.safetensors").items()}
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.head_dim, self.eps = config["head_dim"], config["rms_norm_eps"]
        self.embedding = weights["model.embed_tokens.weight"]
        self.norm = weights["model.norm.weight"]
        self.head = pack(weights.get("lm_head.weight", self.embedding))
        self.pack, self.linear = (pack_int8, linear_int8) if int8 else (pack, linear)
        self.layers = [self._layer(weights, f"model.layers.{i}.") for i in range(config["num_hidden_layers"])]
        frequencies = config["rope_theta"] ** -(torch.arange(0, self.head_dim, 2).float() / self.head_dim)
        angles = torch.outer(torch.arange(slot_tokens).float(), frequencies)
        self.cosines, self.sines = angles.cos().to(dtype), angles.sin().to(dtype)
        shape = (len(self.layers), num_slots, self.kv_heads, slot_tokens, self.head_dim)
        self.keys, self.values = torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)

    def _layer(self, weights: dict[str, Tensor], prefix: str) -> tuple[Tensor, ...]:
        def weight(name: str) -> Tensor:
            return weights[f"{prefix}{name}.weight"]

        has_head_norms = f"{prefix}self_attn.q_norm.weight" in weights
        qkv = torch.cat([weight(f"self_attn.{name}_proj") for name in "qkv"])
        gate_up = torch.cat([weight("mlp.gate_proj"), weight("mlp.up_proj")])
        return (
            weight("input_layernorm"),
            self.pack(qkv),
            self.pack(weight("self_attn.o_proj")),
            weight("post_attention_layernorm"),
            self.pack(gate_up),
            self.pack(weight("mlp.down_proj")),
            *(weights[f"{prefix}self_attn.{name}_norm.weight"] for name in "qk" if has_head_norms),
        )

    def step(self, chunks: list[Chunk]) -> list[int]:
        """Computes all chunks and returns the likeliest token after each."""
        token_ids = torch.tensor([token_id for chunk in chunks for token_id in chunk.token_ids])
        positions = torch.tensor([chunk.start + i for chunk in chunks for i in range(len(chunk.token_ids))])
        cosines, sines = self.cosines[positions][:, None], self.sines[positions][:, None]
        decodes = [chunk for chunk in chunks if len(chunk.token_ids) == 1]
        decode_slots = torch.tensor([chunk.active.slot for chunk in decodes])
        x = embedding(token_ids, self.embedding)
        for layer, (norm1, qkv, out, norm2, gate_up, down, *head_norms) in enumerate(self.layers):
            heads = self.linear(rms_norm(x, norm1.shape, norm1, self.eps), qkv)
            heads = heads.view(len(token_ids), self.heads + 2 * self.kv_heads, self.head_dim)
            query, key, value = torch.split(heads, [self.heads, self.kv_heads, self.kv_heads], dim=1)
            if head_norms:
                query, key = (
                    rms_norm(heads, norm.shape, norm, self.eps)
                    for heads, norm in zip((query, key), head_norms, strict=True)
                )
            query, key = rotate(query, cosines, sines), rotate(key, cosines, sines)
            keys, values = self.keys[layer], self.values[layer]
            if decodes:
                keys[decode_slots, :, positions[: len(decodes)]] = key[: len(decodes)]
                values[decode_slots, :, positions[: len(decodes)]] = value[: len(decodes)]
            x = x + self.linear(self.attend(chunks, query, key, value, keys, values), out)
            gate, up = self.linear(rms_norm(x, norm2.shape, norm2, self.eps), gate_up).chunk(2, dim=-1)
            x = x + self.linear(silu(gate) * up, down)
        last = torch.tensor([len(chunk.token_ids) for chunk in chunks]).cumsum(0) - 1
        logits = linear(rms_norm(x[last], self.norm.shape, self.norm, self.eps), self.head)
        return logits.float().max(dim=-1).indices.tolist()

    def attend(
        self, chunks: list[Chunk], query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """One product per request; a decode's query heads act as queries of the key head they share."""
        attended, row = torch.empty_like(query), 0
        for chunk in chunks:
            slot, num_tokens = chunk.active.slot, len(chunk.token_ids)
            end = chunk.start + num_tokens
            if num_tokens == 1:
                grouped = query[row].view(1, self.kv_heads, -1, self.head_dim)
                output = scaled_dot_product_attention(
                    grouped, keys[slot : slot + 1, :, :end], values[slot : slot + 1, :, :end]
                )
                attended[row] = output.view(self.heads, self.head_dim)
            else:
                rows = slice(row, row + num_tokens)
                keys[slot, :, chunk.start : end] = key[rows].transpose(0, 1)
                values[slot, :, chunk.start : end] = value[rows].transpose(0, 1)
                output = scaled_dot_product_attention(
                    query[rows].transpose(0, 1)[None],
                    keys[slot : slot + 1, :, :end],
                    values[slot : slot + 1, :, :end],
                    attn_mask=chunk.mask,
                    is_causal=chunk.mask is None,
                    enable_gqa=True,
                )
                attended[rows] = output[0].transpose(0, 1)
            row += num_tokens
        return attended.view(len(query), -1)


def pack(weight: Tensor) -> Tensor:
    """As oneDNN wants it; as it is where this CPU has nothing for its numbers."""
    try:
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    except RuntimeError:
        return weight
    return packed


def linear(x: Tensor, packed: Tensor) -> Tensor:
    if not packed.is_mkldnn:
        return functional.linear(x, packed)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return product


def pack_int8(weight: Tensor) -> Any:
    scales = weight.float().abs().amax(dim=1).clamp(min=1e-9) / 127
    zeros = torch.zeros(len(weight), dtype=torch.long)
    rounded = torch.quantize_per_channel(weight.float(), scales.double(), zeros, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(rounded, None)


def linear_int8(x: Tensor, packed: Any) -> Tensor:
    product: Tensor = torch.ops.quantized.linear_dynamic(x.float(), packed)
    return product.to(x.dtype)


def rotate(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosines - second * sines, second * cosines + first * sines), dim=-1)


def schedule(active: list[Active], budget: int) -> list[Chunk]:
    """Decodes first, then as much prefill as the budget leaves."""
    chunks = []
    for item in sorted(active, key=lambda item: not item.output):
        token_ids = item.next_tokens(budget)
        if not token_ids:
            break
        end = item.num_computed + len(token_ids)
        looks_back = len(token_ids) > 1 and item.num_computed > 0
        mask = torch.arange(end) <= torch.arange(item.num_computed, end)[:, None] if looks_back else None
        chunks.append(Chunk(item, item.num_computed, token_ids, mask))
        budget -= len(token_ids)
    return chunks


@torch.no_grad()
def serve(model: Model, requests: list[Request], budget: int) -> Outcome:
    active = [Active(index, request, index) for index, request in enumerate(requests)]
    outputs: list[list[int]] = [[] for _ in requests]
    token_seconds: list[list[float]] = [[] for _ in requests]
    started = time.perf_counter()
    while active:
        chunks = schedule(active, budget)
        for chunk, token_id in zip(chunks, model.step(chunks), strict=True):
            item = chunk.active
            item.num_computed += len(chunk.token_ids)
            if item.num_computed < len(item.request.prompt):
                continue
            item.output.append(token_id)
            outputs[item.index].append(token_id)
            token_seconds[item.index].append(time.perf_counter() - started)
        active = [item for item in active if len(item.output) < item.request.num_outputs]
    return Outcome(outputs, token_seconds)


def main() -> None:
    args = peer_arguments("Serve a workload with a loop written by hand for it.")
    torch.set_num_threads(args.threads)
    requests = args.workload.requests()
    slot_tokens = args.workload.prompt_tokens[1] + args.workload.output_tokens[1]
    torch.backends.quantized.engine = "onednn"
    dtype = getattr(torch, args.floats)
    model = Model(args.checkpoint, len(requests), slot_tokens, dtype, int8=args.dtype == "int8")
    budget = args.workload.max_batch_tokens
    serve(model, [Request(requests[0].prompt[:16], 4)], budget)
    report(measure("hand loop", torch.__version__, args, lambda work: serve(model, work, budget)))


if __name__ == "__main__":
    main()
