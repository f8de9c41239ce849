"""What a checkpoint's `config.json` says about the model, checked and under one name per fact.

Everything that would make the model compute something else than it was trained to is refused here, before any weight is
read. Rotary scaling is read in both spellings: `rope_theta` with `rope_scaling`, and the newer `rope_parameters`.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from fairlead_engine.errors import ModelLoadError, ModelLoadReason
from fairlead_engine.model.architectures import Architecture, find_architecture
from fairlead_engine.model.json_fields import JsonFields
from fairlead_engine.model.rope import RopeConfig, RopeKind
from fairlead_protocol.chat import ChatTemplateError
from fairlead_protocol.tokenizing import PromptTokenizer, TokenizerError

DEFAULT_ROPE_THETA = 10000.0
DEFAULT_RMS_NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The shape of a model. Sizes count elements; nothing here depends on how it will be run."""

    architecture: str
    """Name of the architecture, such as LlamaForCausalLM."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Width of the feed-forward layer."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    """Key and value heads; `num_heads / num_kv_heads` query heads share one."""
    head_dim: int
    """Elements per head; not always `hidden_size / num_heads`."""
    max_position_embeddings: int
    """Longest context, in tokens, that the model was made for."""
    rms_norm_eps: float
    rope: RopeConfig
    attention_bias: bool
    """Whether the four attention projections add a bias."""
    mlp_bias: bool
    """Whether the three feed-forward projections add a bias."""
    qk_norm: bool
    """Whether each query and key head is normalised before the rotation."""
    tie_word_embeddings: bool
    """Whether the output projection is the embedding table."""
    dtype: str
    """Number format the checkpoint was saved in: float32, bfloat16 or float16."""
    eos_token_ids: tuple[int, ...]
    """Tokens that end an output; empty when neither checkpoint nor tokenizer names any."""

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelConfig":
        """Reads `config.json` and, for the end-of-sequence tokens, `generation_config.json` where there is one.

        Where neither names any, the tokenizer's `eos_token` is the only one.

        Raises ModelLoadError: ModelNotFound, ModelConfigInvalid or UnsupportedArchitecture.
        """
        if not folder.is_dir():
            raise ModelLoadError(
                ModelLoadReason.MODEL_NOT_FOUND,
                f"{folder} is not a folder; give the folder that holds the model's config.json and safetensors files",
            )
        fields = JsonFields.read(folder / "config.json")
        generation_path = folder / "generation_config.json"
        generation = JsonFields.read(generation_path) if generation_path.exists() else None
        config = cls.from_fields(fields, generation)
        return config if config.eos_token_ids else replace(config, eos_token_ids=_tokenizer_end(folder, config))

    @classmethod
    def from_fields(cls, fields: JsonFields, generation: JsonFields | None = None) -> "ModelConfig":
        """The same from files already read. Raises ModelLoadError."""
        architecture = find_architecture(fields.texts("architectures"), fields.text("model_type"))
        _refuse_unsupported(fields)
        hidden_size = fields.positive_int("hidden_size")
        num_heads = fields.positive_int("num_attention_heads")
        num_kv_heads = fields.positive_int("num_key_value_heads", num_heads)
        if num_heads % num_kv_heads:
            raise fields.invalid("num_key_value_heads", f"must divide num_attention_heads ({num_heads})")
        max_position_embeddings = fields.positive_int("max_position_embeddings")
        config = cls(
            architecture=architecture.name,
            vocab_size=fields.positive_int("vocab_size"),
            hidden_size=hidden_size,
            intermediate_size=fields.positive_int("intermediate_size"),
            num_layers=fields.positive_int("num_hidden_layers"),
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=_head_dim(fields, architecture, hidden_size, num_heads),
            max_position_embeddings=max_position_embeddings,
            rms_norm_eps=fields.positive_number("rms_norm_eps", DEFAULT_RMS_NORM_EPS),
            rope=_rope(fields),
            attention_bias=fields.boolean("attention_bias", False),
            mlp_bias=architecture.has_mlp_bias and fields.boolean("mlp_bias", False),
            qk_norm=architecture.qk_norm,
            tie_word_embeddings=fields.boolean("tie_word_embeddings", False),
            dtype=_dtype(fields),
            eos_token_ids=_eos_token_ids(fields, generation),
        )
        if any(token_id >= config.vocab_size for token_id in config.eos_token_ids):
            raise fields.invalid("eos_token_id", f"must be below vocab_size ({config.vocab_size})")
        return config


def _refuse_unsupported(fields: JsonFields) -> None:
    """Options that change what the model computes and that no layer here implements."""
    activation = fields.text("hidden_act") or "silu"
    if activation != "silu":
        raise _unsupported(f"hidden_act {activation}", "silu is supported")
    if fields.section("quantization_config"):
        raise _unsupported("quantization_config", "use the model's unquantised checkpoint")
    layer_types = {*fields.texts("layer_types"), *(["sliding_attention"] * fields.boolean("use_sliding_window", False))}
    if unknown := sorted(layer_types - {"full_attention"}):
        raise _unsupported(
            f"layer_types {', '.join(unknown)}", "use a model whose layers all attend to the whole context"
        )


def _head_dim(fields: JsonFields, architecture: Architecture, hidden_size: int, num_heads: int) -> int:
    if fields.has("head_dim") or architecture.default_head_dim is not None:
        head_dim = fields.positive_int("head_dim", architecture.default_head_dim)
    elif hidden_size % num_heads:
        raise fields.invalid(
            "num_attention_heads", f"must divide hidden_size ({hidden_size}) when head_dim is left out"
        )
    else:
        head_dim = hidden_size // num_heads
    if head_dim % 2:
        raise fields.invalid("head_dim", "must be even: rotary positions turn pairs of elements")
    return head_dim


def _rope(fields: JsonFields) -> RopeConfig:
    """Newer checkpoints keep the base in `rope_parameters`, older ones beside `rope_scaling`."""
    scaling = fields.section("rope_parameters") or fields.section("rope_scaling") or JsonFields.empty(fields.path)
    partial = scaling.positive_number("partial_rotary_factor", fields.positive_number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise _unsupported(f"partial_rotary_factor {partial:g}", "use a model whose heads are rotated whole")
    theta = scaling.positive_number("rope_theta", fields.positive_number("rope_theta", DEFAULT_ROPE_THETA))
    name = scaling.text("rope_type") or scaling.text("type") or RopeKind.DEFAULT
    if name not in set(RopeKind):
        known = ", ".join(RopeKind)
        raise _unsupported(f"rotary scaling {name}", f"supported are {known}")
    kind = RopeKind(name)
    if kind is RopeKind.DEFAULT:
        return RopeConfig(theta=theta)
    if kind is RopeKind.LINEAR:
        return RopeConfig(theta=theta, kind=kind, factor=scaling.positive_number("factor"))
    low, high = scaling.positive_number("low_freq_factor"), scaling.positive_number("high_freq_factor")
    if low >= high:
        raise scaling.invalid("low_freq_factor", f"must be below high_freq_factor ({high})")
    return RopeConfig(
        theta=theta,
        kind=kind,
        factor=scaling.positive_number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position_embeddings=scaling.positive_int("original_max_position_embeddings"),
    )


def _dtype(fields: JsonFields) -> str:
    name = fields.text("dtype") or fields.text("torch_dtype") or "float32"
    if name not in ("float32", "bfloat16", "float16"):
        raise _unsupported(f"dtype {name}", "supported are float32, bfloat16 and float16")
    return name


def _eos_token_ids(fields: JsonFields, generation: JsonFields | None) -> tuple[int, ...]:
    """Chat models often list more ends in `generation_config.json`, which therefore wins."""
    if generation is not None and (token_ids := generation.token_ids("eos_token_id")):
        return token_ids
    return fields.token_ids("eos_token_id")


def _tokenizer_end(folder: Path, config: ModelConfig) -> tuple[int, ...]:
    """Without any end every answer would run to its token limit. A broken tokenizer is the server's to refuse."""
    try:
        tokenizer = PromptTokenizer.from_folder(folder)
    except (TokenizerError, ChatTemplateError):
        return ()
    token_id = tokenizer.token_id(tokenizer.special_tokens.get("eos_token", ""))
    return () if token_id is None or token_id >= config.vocab_size else (token_id,)


def _unsupported(what: str, remedy: str) -> ModelLoadError:
    return ModelLoadError(
        ModelLoadReason.UNSUPPORTED_ARCHITECTURE, f"config.json asks for {what}, which this engine lacks; {remedy}"
    )
