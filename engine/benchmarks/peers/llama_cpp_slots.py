"""llama.cpp with a slot per request: a loop over `llama_decode` that mixes prefill in chunks with decodes, as its
server does. `--convert` writes a GGUF into the checkpoint's folder, and does nothing else.
"""

import ctypes
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import llama_cpp
import numpy as np
from measurement import Outcome, PeerArguments, measure, peer_arguments, report
from workload import TEMPERATURE, TOP_P, Request

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
"""Of tensors, without `.weight`: transformers' → GGUF's."""


def path_of(args: PeerArguments) -> Path:
    return args.checkpoint / f"model-{args.dtype}.gguf"


def convert(args: PeerArguments) -> None:
    """Matrices in `args.dtype`, vectors in float32; no vocabulary but its size."""
    import gguf
    import torch
    from safetensors.torch import load_file

    config = json.loads((args.checkpoint / "config.json").read_text())
    family = config["model_type"]
    writer = gguf.GGUFWriter(path_of(args), family)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    for name, tensor in load_file(args.checkpoint / "model.safetensors").items():
        stem = name.removesuffix(".weight")
        renamed = NAMES.get(stem)
        if renamed is None:
            _, _, layer, part = stem.split(".", 3)
            renamed = f"blk.{layer}.{NAMES[part]}"
        if family == "llama" and renamed.endswith(("attn_q", "attn_k")):
            # llama.cpp rotates neighbours, transformers the halves of a head.
            halves = tensor.view(-1, 2, config["head_dim"] // 2, tensor.shape[1])
            tensor = halves.transpose(1, 2).reshape(tensor.shape)
        if tensor.dim() == 1 or args.dtype == "float32":
            writer.add_tensor(f"{renamed}.weight", tensor.float().numpy())
        elif args.dtype == "bfloat16":
            raw = tensor.contiguous().view(torch.uint8).numpy()
            writer.add_tensor(f"{renamed}.weight", raw, raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            kind = gguf.GGMLQuantizationType[args.dtype.upper()]
            packed = gguf.quants.quantize(tensor.float().numpy(), kind)
            writer.add_tensor(f"{renamed}.weight", packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Slots:
    """A model and a context with a sequence per request."""

    def __init__(self, args: PeerArguments) -> None:
        workload = args.workload
        llama_cpp.llama_backend_init()
        loading = llama_cpp.llama_model_default_params()
        if "amx" in Path("/proc/cpuinfo").read_text():
            loading.use_extra_bufts = False  # its AMX buffers crash with 8-bit weights
        self.model = llama_cpp.llama_model_load_from_file(str(path_of(args)).encode(), loading)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx = workload.num_requests * (workload.prompt_tokens[1] + workload.output_tokens[1])
        context.n_seq_max = workload.num_requests
        context.n_batch = context.n_ubatch = self.budget = workload.max_batch_tokens
        context.n_threads = context.n_threads_batch = args.threads
        context.kv_unified = True  # faster here than a cache per sequence
        self.context = llama_cpp.llama_init_from_model(self.model, context)
        if not self.model or not self.context:
            raise SystemExit("llama.cpp cannot load the model")
        self.batch = llama_cpp.llama_batch_init(self.budget, 0, 1)
        self.vocab_size = workload.vocab_size
        self.sampler = None
        if args.sampled:
            self.sampler = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
            for part in (
                llama_cpp.llama_sampler_init_top_p(TOP_P, 1),
                llama_cpp.llama_sampler_init_temp(TEMPERATURE),
                llama_cpp.llama_sampler_init_dist(workload.seed),
            ):
                llama_cpp.llama_sampler_chain_add(self.sampler, part)

    def step(self, chunks: list[tuple[int, int, list[int], bool]]) -> list[int]:
        """(slot, start, tokens, whether a token follows) each → the tokens that follow."""
        rows = 0
        wanted = []
        for slot, start, token_ids, follows in chunks:
            for offset, token_id in enumerate(token_ids):
                self.batch.token[rows] = token_id
                self.batch.pos[rows] = start + offset
                self.batch.n_seq_id[rows] = 1
                self.batch.seq_id[rows][0] = slot
                self.batch.logits[rows] = follows and offset == len(token_ids) - 1
                rows += 1
            if follows:
                wanted.append(rows - 1)
        self.batch.n_tokens = rows
        if (status := llama_cpp.llama_decode(self.context, self.batch)) != 0:
            raise SystemExit(f"llama_decode returned {status}")
        return [self._choose(row) for row in wanted]

    def _choose(self, row: int) -> int:
        if self.sampler is not None:
            return int(llama_cpp.llama_sampler_sample(self.sampler, self.context, row))
        logits = llama_cpp.llama_get_logits_ith(self.context, row)
        return int(np.ctypeslib.as_array(logits, (self.vocab_size,)).argmax())

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)


def serve(slots: Slots, requests: list[Request]) -> Outcome:
    outputs: list[list[int]] = [[] for _ in requests]
    token_seconds: list[list[float]] = [[] for _ in requests]
    num_computed = [0] * len(requests)
    started = time.perf_counter()
    while True:
        chunks, budget = [], slots.budget
        running = [index for index, request in enumerate(requests) if len(outputs[index]) < request.num_outputs]
        for index in sorted(running, key=lambda index: not outputs[index]):
            request, start = requests[index], num_computed[index]
            token_ids = outputs[index][-1:] or request.prompt[start : start + budget]
            if not token_ids or budget < len(token_ids):
                break
            num_computed[index] += len(token_ids)
            chunks.append((index, start, token_ids, num_computed[index] >= len(request.prompt)))
            budget -= len(token_ids)
        if not chunks:
            return Outcome(outputs, token_seconds)
        chosen = iter(slots.step(chunks))
        now = time.perf_counter() - started
        for index, _, _, follows in chunks:
            if follows:
                outputs[index].append(next(chosen))
                token_seconds[index].append(now)


def main() -> None:
    args = peer_arguments("Serve a workload with llama.cpp.")
    if args.convert:
        convert(args)
        return
    silence = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(silence, ctypes.c_void_p(0))
    slots = Slots(args)
    serve(slots, [Request(args.workload.requests()[0].prompt[:16], 4)])
    slots.clear()
    report(measure("llama.cpp", llama_cpp.__version__, args, lambda work: serve(slots, work)))
    os._exit(0)


if __name__ == "__main__":
    main()
