"""GGUF files of random checkpoints of every family in llama.cpp's conventions, with names by the `gguf` package's
table."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import MODEL_ARCH, MODEL_ARCH_NAMES
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file

from fairlead_engine_testing.gguf_files import finish, write_meant
from fairlead_engine_testing.quantized_checkpoints import TRANSPOSED, WEIGHTS, is_quantized
from fairlead_engine_testing.tiny_families import FAMILIES

Json = dict[str, Any]
ARCHITECTURES = {
    **{family()["model_type"]: MODEL_ARCH[family.gguf] for family in FAMILIES.values() if family.gguf},
}
"""By `model_type`."""
_NEWER = {"cohere2_moe": ("cohere2moe", MODEL_ARCH.GLM4_MOE), "deepseek_v32": ("deepseek32", MODEL_ARCH.GLM_DSA)}
"""Architectures that llama.cpp has and the package does not, and one with the same names of tensors."""
WRITTEN = tuple(name for name, family in FAMILIES.items() if family.gguf or name in _NEWER)
"""Families of which llama.cpp has files."""
_PERMUTED = (
    "llama", "mistral", "mixtral", "ministral3", "smollm3", "granite", "granitemoe", "granitemoehybrid", "bamba",
    "nemotron_h", "arcee",
)  # fmt: skip
_QWEN_NORMS = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text")
_GEMMA4_TOLD = {
    "layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
    "router.per_expert_scale": "ffn_down_exps.scale", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}  # fmt: skip
_OF_MIXER = ("A_log", ".D", "dt_bias", "conv1d.weight", "mixer.norm.weight")
_LFM2_EXPERTS = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_EXPERT = re.compile(r"(.*\.experts\.)(\d+)\.(\w+)\.weight")


def architecture_of(config: Json) -> tuple[str, MODEL_ARCH]:
    """By the fields of `config.json`: the name, and the package's table of names."""
    if config["model_type"] in _NEWER:
        return _NEWER[config["model_type"]]
    found = ARCHITECTURES[config["model_type"]]
    if config["model_type"] == "nemotron_h" and "E" not in config["hybrid_override_pattern"]:
        found = MODEL_ARCH.NEMOTRON_H
    return MODEL_ARCH_NAMES[found], found


def write_family(folder: Path, target: Path, meant: Path, kind: Kind = Kind.F32, *, are_fused: bool = False) -> Path:
    """The checkpoint as a file whose linear layers are stored as `kind`; `meant` gets the floats that are left.
    `are_fused`: projections of Qwen3-Next's recurrent layers lie together, as in the first files of it."""
    config = json.loads((folder / "config.json").read_text())
    name, architecture = architecture_of(config)
    writer = gguf.GGUFWriter(target, name)
    _write_fields(writer, config)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{index}" for index in range(config["vocab_size"])])
    names = gguf.get_tensor_name_map(architecture, config["num_hidden_layers"])
    left: dict[str, torch.Tensor] = {}
    experts: dict[str, list[tuple[np.ndarray, Kind]]] = {}
    _write_activations(writer, load_file(folder / WEIGHTS))
    for name, weight in load_file(folder / WEIGHTS).items():
        if ".act_fn." in name:
            left[name] = weight
            continue
        is_turned = weight.ndim == 3 and config["model_type"] in TRANSPOSED
        rows = weight.transpose(1, 2) if is_turned else weight
        order, factors = _order_of_values(config, name, rows), _factors_within(config, name, rows)
        rows = rows[..., order] * factors
        own = kind if is_quantized(name) and not name.endswith("kv_b_proj.weight") else Kind.F32
        packed = gguf.quants.quantize(rows.float().contiguous().numpy(), own)
        floats = torch.from_numpy(np.array(gguf.quants.dequantize(packed, own))).view(rows.shape)
        floats = (floats / factors)[..., order.argsort()]
        left[name] = (floats.transpose(1, 2) if is_turned else floats).contiguous()
        if found := _EXPERT.fullmatch(name):
            place = re.sub(r"^backbone\.(.*)\.mixer\.", r"model.\1.mlp.", found[1])
            kind_of = _LFM2_EXPERTS.get(found[3], found[3]) if config["model_type"] == "lfm2_moe" else found[3]
            experts.setdefault(f"{place}{kind_of}.weight", []).append((packed, own))
            continue
        parts = [(name, packed)] if are_fused and ".in_proj_qkvz." in name else _parts(config, name, packed)
        for told, part in parts:
            writer.add_tensor(_told(names, told), np.ascontiguousarray(part), raw_dtype=own)
    for name, each in experts.items():
        stack = np.stack([packed for packed, _ in each])
        writer.add_tensor(_told(names, name), stack, raw_dtype=each[0][1])
    finish(writer)
    write_meant(meant, config, left)
    return target


def _told(names: gguf.TensorNameMap, name: str) -> str:
    """The file's name of a tensor: that of the package, unless it is one already."""
    if name.startswith("blk."):
        return name
    told = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert told is not None, name
    return told


def _order_of_values(config: Json, name: str, weight: torch.Tensor) -> torch.Tensor:
    """Columns of Qwen3.5's value heads lie by turns of key heads."""
    columns = torch.arange(weight.shape[-1])
    if not config["model_type"].startswith("qwen3_5") or not name.endswith("linear_attn.out_proj.weight"):
        return columns
    return torch.from_numpy(_by_turns(config, columns.numpy()))


def _by_turns(config: Json, heads: np.ndarray) -> np.ndarray:
    """The value heads of `heads` [heads x size, ...], which lie by key head, by turns of key heads."""
    groups, num = config["linear_num_key_heads"], config["linear_num_value_heads"]
    return heads.reshape(groups, num // groups, -1, *heads.shape[1:]).swapaxes(0, 1).reshape(heads.shape)


def _factors_within(config: Json, name: str, weight: torch.Tensor) -> torch.Tensor:
    """Falcon-H1's factors, which files have in the weights: of each row, or one."""
    if config["model_type"] != "falcon_h1":
        return torch.ones(())
    gate, down = config["mlp_multipliers"]
    entering, state = config["attention_in_multiplier"], config["ssm_in_multiplier"]
    found = {
        "down_proj": down, "gate_proj": gate, "q_proj": entering, "k_proj": entering * config["key_multiplier"],
        "v_proj": entering, "o_proj": config["attention_out_multiplier"], "out_proj": config["ssm_out_multiplier"],
        "lm_head": config["lm_head_multiplier"], "embed_tokens": config["embedding_multiplier"],
    }  # fmt: skip
    layer = name.split(".")[-2]
    if layer != "in_proj":
        return torch.tensor(found.get(layer, 1.0))
    keys, heads = config["mamba_n_groups"] * config["mamba_d_state"], config["mamba_n_heads"]
    sizes = torch.tensor([config["mamba_d_ssm"]] * 2 + [keys] * 2 + [heads])
    factors: torch.Tensor = state * torch.tensor(config["ssm_multipliers"])
    return factors.repeat_interleave(sizes).unsqueeze(1)


def _of_recurrent_layer(config: Json, block: str, name: str, packed: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The same as `_parts`, of a layer with states."""
    turns: Callable[[np.ndarray], np.ndarray] = np.asarray
    if config["model_type"].startswith("qwen3_5"):
        turns = partial(_by_turns, config)
    if name.endswith("A_log"):
        values = -np.exp(turns(packed))
        yield name, values if "linear_attn" in name else values.reshape(-1, 1)
    elif name.endswith(".D"):
        yield name, packed.reshape(-1, 1)
    elif name.endswith("dt_bias"):
        yield f"{block}.ssm_dt.bias", turns(packed)
    elif name.endswith(("conv1d.weight", "in_proj_qkv.weight")) and "linear_attn" in name:
        keys = 2 * config["linear_num_key_heads"] * config["linear_key_head_dim"]
        rows = packed.reshape(len(packed), -1)
        yield name, np.concatenate((rows[:keys], turns(rows[keys:])))
    elif name.endswith("conv1d.weight"):
        yield name, packed.reshape(len(packed), -1)
    elif ".in_proj_qkvz." in name:
        groups, key, num = (config[f"linear_{each}"] for each in ("num_key_heads", "key_head_dim", "num_value_heads"))
        values = num // groups * config["linear_value_head_dim"]
        parts = np.split(packed.reshape(groups, -1, packed.shape[1]), [key, 2 * key, 2 * key + values], axis=1)
        query, keys, value, gate = (part.reshape(-1, packed.shape[1]) for part in parts)
        yield f"{block}.attn_qkv.weight", np.concatenate((query, keys, value))
        yield f"{block}.attn_gate.weight", gate
    elif any(f".in_proj_{each}." in name for each in "zab"):
        yield name, turns(packed)
    elif name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        yield name, packed.reshape(config.get("n_groups") or config["mamba_n_groups"], -1)
    else:
        yield name, packed


def _parts(config: Json, name: str, packed: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """The tensors that the file has of one, by Hugging Face's or the file's names."""
    family, block = config["model_type"], f"blk.{(name.split('.') + ['', '', ''])[2]}"
    if any(f".{each}." in name for each in ("linear_attn", "mamba")) or name.endswith(_OF_MIXER):
        yield from _of_recurrent_layer(config, block, name, packed)
    elif family in _PERMUTED and re.search(r"\.[qk]_proj\.", name):
        heads = config["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
        halves = packed.reshape(heads, 2, len(packed) // heads // 2, *packed.shape[1:])
        yield name, halves.swapaxes(1, 2).reshape(packed.shape)
    elif (family in ("gemma2", "gemma3_text") or family in _QWEN_NORMS) and name.endswith("norm.weight"):
        yield name, packed + np.float32(1.0)
    elif name.endswith("shared_mlp.input_linear.weight"):
        end = "_shexp" if config["num_local_experts"] else ""
        yield f"{block}.ffn_gate{end}.weight", packed[: len(packed) // 2]
        yield f"{block}.ffn_up{end}.weight", packed[len(packed) // 2 :]
    elif name.endswith("shared_mlp.output_linear.weight") and not config["num_local_experts"]:
        yield f"{block}.ffn_down.weight", packed
    elif name.endswith("input_linear.weight"):
        half = packed.shape[1] // 2
        yield f"{block}.ffn_gate_exps.weight", packed[:, :half]
        yield f"{block}.ffn_up_exps.weight", packed[:, half:]
    elif family == "gemma4_text" and (own := ".".join(name.split(".")[3:])) in _GEMMA4_TOLD:
        yield f"{block}.{_GEMMA4_TOLD[own]}", packed
    elif ".experts.gate_up_proj" in name:
        half, kind = packed.shape[1] // 2, "bias" if name.endswith("_bias") else "weight"
        gate, up = (packed[:, ::2], packed[:, 1::2]) if family == "gpt_oss" else (packed[:, :half], packed[:, half:])
        yield f"{block}.ffn_gate_exps.{kind}", gate
        yield f"{block}.ffn_up_exps.{kind}", up
    elif ".experts.down_proj" in name:
        yield f"{block}.ffn_down_exps.{'bias' if name.endswith('_bias') else 'weight'}", packed
    elif name.endswith(("e_score_correction_bias", ".expert_bias")):
        yield f"{block}.exp_probs_b.bias", packed.reshape(-1)
    elif name.endswith("conv.conv.weight"):
        yield name, packed.reshape(len(packed), -1)
    elif name.endswith(".sinks"):
        yield f"{name}.weight", packed
    elif name.endswith("kv_b_proj.weight"):
        plain, value = config["qk_nope_head_dim"], config["v_head_dim"]
        up = packed.reshape(config["num_attention_heads"], plain + value, -1)
        yield f"{block}.attn_k_b.weight", up[:, :plain].swapaxes(1, 2)
        yield f"{block}.attn_v_b.weight", up[:, plain:]
    elif name.endswith("shared_expert_gate.weight"):
        yield name, packed.reshape(-1)
    else:
        yield name, packed


def _write_fields(writer: gguf.GGUFWriter, config: Json) -> None:
    family, heads = config["model_type"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    is_latent = "kv_lora_rank" in config
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    if "intermediate_size" in config:
        writer.add_feed_forward_length(config.get("intermediate_size_mlp") or config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(1 if is_latent else config["num_key_value_heads"])
    if any(name in config for name in ("mamba_n_heads", "mamba_num_heads", "linear_num_key_heads")):
        _write_states(writer, config)
    if family.startswith("lfm2"):
        _write_convolutions(writer, config)
    if is_latent:
        _write_latents(writer, config)
    else:
        if config.get("head_dim"):
            writer.add_key_length(head_dim)
        share = config.get("partial_rotary_factor", 1.0)
        writer.add_rope_dimension_count(config.get("rotary_dim") or int(head_dim * share))
    if family.startswith("cohere2"):
        writer.add_layer_norm_eps(config["layer_norm_eps"])
    else:
        writer.add_layer_norm_rms_eps(
            config.get("layer_norm_epsilon") or config.get("norm_eps") or config["rms_norm_eps"]
        )
    if config.get("sliding_window") and family not in ("mistral", "qwen2"):
        writer.add_sliding_window(config["sliding_window"])
    if family == "gemma4_text":
        _write_gemma4(writer, config)
    if family == "cohere2_moe":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)
        writer.add_expert_shared_count(config["num_shared_experts"])
        writer.add_leading_dense_block_count(config["mlp_layer_types"].count("dense"))
    if family in ("exaone4", "exaone_moe", "olmo3", "gemma4_text", "cohere2_moe"):
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    _write_rope(writer, config, head_dim)
    _write_factors(writer, config)
    _write_experts(writer, config)


def _write_states(writer: gguf.GGUFWriter, config: Json) -> None:
    family, num, layers = config["model_type"], config["num_key_value_heads"], range(config["num_hidden_layers"])
    if family in _QWEN_NORMS:
        names = ["num_key_heads", "num_value_heads", "key_head_dim", "conv_kernel_dim", "value_head_dim"]
        groups, heads, key, kernel, value = (config[f"linear_{name}"] for name in names)
        inner = heads * value
        writer.add_full_attention_interval(config.get("full_attention_interval", 4))
    elif family == "nemotron_h":
        names = ["n_groups", "mamba_num_heads", "ssm_state_size", "conv_kernel", "mamba_head_dim"]
        groups, heads, key, kernel, value = (config[name] for name in names)
        inner, pattern = heads * value, config["hybrid_override_pattern"]
        writer.add_head_count_kv([num if letter == "*" else 0 for letter in pattern])
        writer.add_feed_forward_length([config["intermediate_size"] if letter == "-" else 0 for letter in pattern])
        writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
        writer.add_expert_weights_norm(config.get("norm_topk_prob", True))
        writer.add_expert_group_count(config["n_group"])
    else:
        names = ["n_groups", "n_heads", "d_state", "d_conv"]
        groups, heads, key, kernel = (config[f"mamba_{name}"] for name in names)
        inner = config.get("mamba_d_ssm") or 2 * config["hidden_size"]
        if family == "granitemoehybrid":
            attends = [kind == "attention" for kind in config["layer_types"]]
            writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
        else:
            attends = [layer in config.get("attn_layer_indices", layers) for layer in layers]
        if family != "falcon_h1":
            writer.add_head_count_kv([num if each else 0 for each in attends])
            writer.add_rope_scaling_finetuned(family == "bamba")
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(key)
    writer.add_ssm_time_step_rank(heads)
    writer.add_ssm_group_count(groups)


def _write_activations(writer: gguf.GGUFWriter, tensors: dict[str, torch.Tensor]) -> None:
    """Of xIELU, a number for each layer."""
    for name in ("alpha_p", "alpha_n", "beta", "eps"):
        found = {key: float(each) for key, each in tensors.items() if key.endswith(f".act_fn.{name}")}
        if found:
            in_order = sorted(found, key=lambda key: (len(key), key))
            getattr(writer, f"add_xielu_{name}")([found[key] for key in in_order])


def _write_convolutions(writer: gguf.GGUFWriter, config: Json) -> None:
    """The width of feed-forwards is that of their tensors."""
    num, inner = config["num_key_value_heads"], config["intermediate_size"]
    writer.add_head_count_kv([0 if kind == "conv" else num for kind in config["layer_types"]])
    writer.add_shortconv_l_cache(config.get("conv_L_cache", 3))
    if config["model_type"] == "lfm2":
        multiple = config["block_multiple_of"]
        writer.add_feed_forward_length(-(-int(2 * inner / 3) // multiple) * multiple)
    else:
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def _write_gemma4(writer: gguf.GGUFWriter, config: Json) -> None:
    layers, readers = config["layer_types"], config["num_kv_shared_layers"]
    local, whole, inner = config["head_dim"], config["global_head_dim"], config["intermediate_size"]
    writer.add_shared_kv_layers(readers)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_key_length(whole)
    writer.add_key_length_swa(local)
    writer.add_rope_dimension_count(whole)
    writer.add_rope_dimension_count_swa(local)
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    if config["use_double_wide_mlp"]:
        first = len(layers) - readers
        writer.add_feed_forward_length([inner if each < first else 2 * inner for each in range(len(layers))])
    if (num := config.get("num_global_key_value_heads")) is not None:
        own = config["num_key_value_heads"]
        writer.add_head_count_kv([own if kind.startswith("sliding") else num for kind in layers])
    turned = int(whole * 0.25 / 2)
    factors = [1.0] * turned + [1e30] * (whole // 2 - turned)
    writer.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))


def _write_latents(writer: gguf.GGUFWriter, config: Json) -> None:
    latent, turned, value = config["kv_lora_rank"], config["qk_rope_head_dim"], config["v_head_dim"]
    if config["q_lora_rank"]:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_kv_lora_rank(latent)
    writer.add_key_length(latent + turned)
    writer.add_value_length(latent)
    writer.add_key_length_mla(config["qk_nope_head_dim"] + turned)
    writer.add_value_length_mla(value)
    writer.add_rope_dimension_count(turned)
    if config["model_type"] != "deepseek_v2":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])
    if "index_topk" in config:
        writer.add_indexer_head_count(config["index_n_heads"])
        writer.add_indexer_key_length(config["index_head_dim"])
        writer.add_indexer_top_k(config["index_topk"])


def _write_rope(writer: gguf.GGUFWriter, config: Json, head_dim: int) -> None:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    plain = 1e6 if config["model_type"] == "gemma4_text" else 10000.0
    theta = rope.get("rope_theta") or config.get("rope_theta", plain)
    kind = rope.get("rope_type") or rope.get("type")
    if "alpha" in rope:
        theta *= rope["alpha"] ** (head_dim / (head_dim - 2))
    writer.add_rope_freq_base(theta)
    if "rope_local_base_freq" in config:
        writer.add_float32(f"{writer.arch}.rope.freq_base_swa", config["rope_local_base_freq"])
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if "mscale_all_dim" in rope:
        tenth = 0.1 if "kv_lora_rank" in config else 1.0
        writer.add_rope_scaling_yarn_log_mul(tenth * rope["mscale_all_dim"])
    if "llama_4_scaling_beta" in rope:
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if kind == "longrope":
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
        for told in ("long", "short"):
            factors = np.array(rope[f"{told}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{told}.weight", factors)


def _write_factors(writer: gguf.GGUFWriter, config: Json) -> None:
    for name, write in {
        "attention_multiplier": writer.add_attention_scale,
        "embedding_multiplier": writer.add_embedding_scale,
        "residual_multiplier": writer.add_residual_scale,
        "logits_scaling": writer.add_logit_scale,
        "logit_scale": writer.add_logit_scale,
        "routed_scaling_factor": writer.add_expert_weights_scale,
    }.items():
        if name in config:
            write(config[name])
    if config["model_type"] == "gemma2":
        writer.add_attn_logit_softcapping(config.get("attn_logit_softcapping", 50.0))
        writer.add_final_logit_softcapping(config.get("final_logit_softcapping", 30.0))


def _write_experts(writer: gguf.GGUFWriter, config: Json) -> None:
    found = {name: config[name] for name in config if "expert" in name or "moe" in name}
    for name in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"):
        if name in found:
            writer.add_expert_count(found[name])
    for name in ("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts"):
        if name in found:
            writer.add_expert_used_count(found[name])
    for name in ("n_shared_experts", "moe_num_shared_experts"):
        if name in found:
            writer.add_expert_shared_count(found[name])
    if "moe_intermediate_size" in found:
        writer.add_expert_feed_forward_length(found["moe_intermediate_size"])
    elif config["model_type"] in ("gpt_oss", "llama4_text", "minimax_m2", "cohere2_moe"):
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if "shared_expert_intermediate_size" in found:
        writer.add_expert_shared_feed_forward_length(found["shared_expert_intermediate_size"])
    if config.get("norm_topk_prob") and "n_routed_experts" in config:
        writer.add_expert_weights_norm(True)
    if "interleave_moe_layer_step" in config:
        writer.add_interleave_moe_layer_step(config["interleave_moe_layer_step"])
    for name in ("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers"):
        if name in config:
            writer.add_leading_dense_block_count(config[name])
