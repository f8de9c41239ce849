"""Sliding windows: how many tokens, its own included, a token sees in each layer, as `config.json` says it."""

from fairlead_protocol.models.json_fields import JsonFields
from fairlead_protocol.models.load_errors import ModelLoadError, refuse

_WHOLE, _SLIDING = "full_attention", "sliding_attention"


def no_windows(fields: JsonFields) -> tuple[int, ...]:
    """0 for each layer: the whole context. Raises ModelLoadError where the file asks for something else."""
    if partial := sorted({*fields.texts("layer_types")} - {_WHOLE}):
        raise _refused(f"layer_types {', '.join(partial)}")
    if fields.boolean("use_sliding_window", False):
        raise _refused("use_sliding_window")
    return (0,) * fields.positive_int("num_hidden_layers")


def windows_everywhere(fields: JsonFields, default: int = 0) -> tuple[int, ...]:
    """The same window in all layers: `sliding_window`, which may be null; `default` where it is not there at all."""
    window = default if not fields.names("sliding_window") else 0
    if fields.has("sliding_window"):
        window = fields.positive_int("sliding_window")
    return (window,) * fields.positive_int("num_hidden_layers")


def windows_by_layer(fields: JsonFields) -> tuple[int, ...]:
    """Qwen's: none without `use_sliding_window`; with it in the layers that `layer_types` names, or in those from
    `max_window_layers` on."""
    num_layers, kinds = fields.positive_int("num_hidden_layers"), fields.texts("layer_types")
    is_used = fields.boolean("use_sliding_window", False) and (fields.has("sliding_window") or not kinds)
    window = fields.positive_int("sliding_window", 4096) if is_used else 0
    if not kinds:
        first = fields.positive_int("max_window_layers", 28) if fields.has("max_window_layers") else 28
        return tuple(window if index >= first else 0 for index in range(num_layers))
    _check_kinds(fields, kinds, num_layers)
    if _SLIDING in kinds and not window:
        raise fields.invalid("layer_types", "must not name sliding_attention without use_sliding_window")
    return tuple(window if kind == _SLIDING else 0 for kind in kinds)


def windows_alternating(fields: JsonFields, default: int, every: int) -> tuple[int, ...]:
    """One in `every` layers sees all, the last of so many, or those that `layer_types` names; the others
    `sliding_window`."""
    num_layers, kinds = fields.positive_int("num_hidden_layers"), fields.texts("layer_types")
    window = fields.positive_int("sliding_window", default)
    if not kinds:
        return tuple(window if (index + 1) % every else 0 for index in range(num_layers))
    _check_kinds(fields, kinds, num_layers)
    return tuple(window if kind == _SLIDING else 0 for kind in kinds)


def _check_kinds(fields: JsonFields, kinds: list[str], num_layers: int) -> None:
    if unknown := sorted({*kinds} - {_WHOLE, _SLIDING}):
        raise _refused(f"layer_types {', '.join(unknown)}")
    if len(kinds) != num_layers:
        raise fields.invalid("layer_types", f"must name as many as num_hidden_layers ({num_layers})")


def _refused(what: str) -> ModelLoadError:
    return refuse(what, "use a model whose layers all attend to the whole context")
