"""`fairlead-engine quantize`: from a checkpoint of floats one with quantised weights, in compressed-tensors' layout.
And `fairlead-engine compare`: what quantising a model's weights or cache costs in precision, as a table or as JSON."""

import argparse
import json
import sys
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from fairlead_engine.config import DEVICES, DTYPES, KV_CACHE_DTYPES, QUANTIZATIONS, EngineConfig
from fairlead_engine.errors import ConfigError, ModelLoadError, ModelLoadReason, StartError
from fairlead_engine.host import termination

METHODS = ("rtn", "awq", "gptq")
_FEWEST_TOKENS = 16
_COLUMNS = {
    "mean_logit_error": "logit error",
    "max_logit_error": "worst",
    "mean_kl_divergence": "KL, nats",
    "max_kl_divergence": "worst",
    "top1_agreement_ratio": "same token",
    "weight_bytes": "weights, MiB",
}


def add_quantize_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="FOLDER", help="the checkpoint, of floats; or demo://dinghy")
    parser.add_argument("--out", required=True, metavar="FOLDER", help="where to write; must not exist, or be empty")
    parser.add_argument(
        "--format", required=True, choices=QUANTIZATIONS, metavar="FORMAT", help=f"one of {', '.join(QUANTIZATIONS)}"
    )
    parser.add_argument(
        "--method", choices=METHODS, default="rtn",
        help="how weights are rounded: rtn (each to the nearest), awq (columns are scaled by what their inputs are, "
        "first) or gptq (later columns make good what earlier ones err). Default: rtn",
    )  # fmt: skip
    parser.add_argument(
        "--calibration", metavar="FILE", help="for awq and gptq: text of the kind that the model is for, in UTF-8"
    )
    parser.add_argument(
        "--group-size", type=_positive, metavar="N",
        help="inputs that share a scale, of weight-only formats. Default: 128 of int4-weight-only, else all",
    )  # fmt: skip
    parser.add_argument(
        "--num-samples", type=_positive, default=128, metavar="N", help="pieces of the text that are read, at most"
    )
    parser.add_argument("--sample-tokens", type=_positive, default=512, metavar="N", help="tokens of each")
    parser.add_argument("--device", choices=DEVICES, default="auto", help="where it is computed, as of serve")


def run_quantize(args: argparse.Namespace) -> int:
    """Returns the exit status: 0 written, 1 the model cannot be read, or not be written so."""
    from fairlead_engine.demo import resolve_model
    from fairlead_engine.runner.quantizing import QuantizeOrders, quantize

    orders = QuantizeOrders(format_name=args.format, method=args.method, group_size=args.group_size, device=args.device)
    try:
        folder = resolve_model(args.model)
        if (args.method == "rtn") == bool(args.calibration):
            problem = "is for awq and gptq" if args.calibration else f"is missing, and {args.method} reads a text"
            raise ConfigError("calibration", problem, "name a file for these methods, and for these alone")
        texts = None if args.calibration is None else _pieces(folder, args)
        quantize(folder, Path(args.out), orders, texts, lambda line: print(line, file=sys.stderr, flush=True))
    except StartError as error:
        termination.report(error)
        return 1
    print(f"written: {args.out}")
    return 0


def _pieces(folder: Path, args: argparse.Namespace) -> Any:
    """int64 [samples, tokens] of the text. Raises ConfigError where it cannot be read or is too short."""
    import torch

    from fairlead_common.tokens.tokenizing import PromptTokenizer, TokenizerError
    from fairlead_engine.model.loading import read_config

    try:
        text = Path(args.calibration).read_text(encoding="utf-8")
        token_ids = PromptTokenizer.from_folder(folder).encode(text, add_special_tokens=False)
    except OSError as error:
        raise ConfigError("calibration", f"{args.calibration} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError("calibration", f"{args.calibration} is no text in UTF-8: {error}") from error
    except TokenizerError as error:
        raise ModelLoadError(ModelLoadReason.TOKENIZER_INVALID, str(error)) from error
    config = read_config(folder)
    size = min(args.sample_tokens, config.max_position_embeddings, len(token_ids))
    if size < _FEWEST_TOKENS:
        problem = f"there are {size} tokens to read at a time"
        raise ConfigError("calibration", problem, f"give {_FEWEST_TOKENS} at least, better some ten thousand")
    count = min(args.num_samples, len(token_ids) // size)
    return torch.tensor(token_ids[: count * size]).view(count, size)


def add_compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="FOLDER", help="the model, as of serve; or demo://dinghy")
    parser.add_argument(
        "--quantization", nargs="+", choices=QUANTIZATIONS, metavar="FORMAT",
        help=f"formats to compare: {', '.join(QUANTIZATIONS)}. Default: all; none where --reference, "
        "--kv-cache-dtype or --head-quantization is given, and the model is compared as it is stored",
    )  # fmt: skip
    parser.add_argument(
        "--kv-cache-dtype", nargs="+", choices=KV_CACHE_DTYPES, metavar="FORMAT",
        help=f"formats of the KV cache, each with each of --quantization: {', '.join(KV_CACHE_DTYPES)}. Default: auto, "
        "which the reference has too",
    )  # fmt: skip
    parser.add_argument(
        "--head-quantization", choices=QUANTIZATIONS, metavar="FORMAT",
        help=f"format of the output projection, with each of --quantization: {', '.join(QUANTIZATIONS)}. Default: as "
        "it is stored",
    )  # fmt: skip
    parser.add_argument("--reference", metavar="FOLDER", help="the model to compare with. Default: --model as stored")
    parser.add_argument("--dtype", choices=DTYPES, default="auto", help="number format of both, as of serve")
    parser.add_argument("--device", choices=DEVICES, default="auto", help="where both run, as of serve")
    parser.add_argument("--num-prompts", type=_positive, default=8, metavar="N", help="prompts of random tokens")
    parser.add_argument("--prompt-tokens", type=_positive, default=64, metavar="N", help="tokens of each")
    parser.add_argument("--num-threads", type=_positive, metavar="N", help="CPU threads, as of serve")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the random tokens")
    parser.add_argument("--json", action="store_true", help="print JSON: settings, and an object for each format")


def run_compare(args: argparse.Namespace) -> int:
    """Returns the exit status: 0 done, 1 a model cannot be loaded or the two do not belong together."""
    from fairlead_engine.demo import resolve_model
    from fairlead_engine.runner.comparison import LogitModel, compare, random_prompts

    settings = {"dtype": args.dtype, "device": args.device}
    as_stored = args.reference or args.kv_cache_dtype or args.head_quantization
    formats: list[str | None] = args.quantization or ([None] if as_stored else list(QUANTIZATIONS))
    results = {}
    try:
        of_model = EngineConfig(model=str(resolve_model(args.model)), num_threads=args.num_threads, **settings)
        folder = str(resolve_model(args.reference)) if args.reference else of_model.model
        reference = LogitModel(replace(of_model, model=folder))
        vocab_size, longest = reference.config.vocab_size, reference.config.max_position_embeddings
        if args.prompt_tokens > longest:
            raise ConfigError("prompt_tokens", f"{args.prompt_tokens} is more than the model's context of {longest}")
        prompts = random_prompts(vocab_size, args.num_prompts, args.prompt_tokens, args.seed)
        rounded = replace(of_model, head_quantization=args.head_quantization)
        for name, kv_cache in product(formats, args.kv_cache_dtype or ["auto"]):
            model = LogitModel(replace(rounded, quantization=name, kv_cache_dtype=kv_cache))
            if model.config.vocab_size != vocab_size:
                raise ConfigError(
                    "reference",
                    f"it has {vocab_size} tokens and the model has {model.config.vocab_size}",
                    "name the model that this one was made of",
                )
            told = name or "as stored" if kv_cache == "auto" else f"{name or 'as stored'}, KV {kv_cache}"
            told += f", head {args.head_quantization}" if args.head_quantization else ""
            results[told] = asdict(compare(model, reference, prompts))
            del model
    except StartError as error:
        termination.report(error)
        return 1
    facts = {name: getattr(args, name) for name in ("model", "reference", "num_prompts", "prompt_tokens", "seed")}
    print(json.dumps({**facts, **settings, "formats": results}, indent=2) if args.json else _table(results))
    return 0


def _table(results: dict[str, dict[str, float]]) -> str:
    first = next(iter(results.values()))
    width = max(18, *(len(name) + 2 for name in results))
    lines = [f"{'':{width}}" + "".join(f"{title:>14}" for title in _COLUMNS.values())]
    for name, figures in results.items():
        cells = dict(figures, weight_bytes=figures["weight_bytes"] / 2**20)
        percent = f"{100 * cells.pop('top1_agreement_ratio'):.1f} %"
        written = {key: f"{value:.4g}" for key, value in cells.items()} | {"top1_agreement_ratio": percent}
        lines.append(f"{name:{width}}" + "".join(f"{written[key]:>14}" for key in _COLUMNS))
    lines += [
        "",
        f"{first['num_positions']} positions; the reference's logits deviate by {first['logit_deviation']:.3g} from "
        f"their mean, and its weights take {first['reference_weight_bytes'] / 2**20:.4g} MiB",
    ]
    return "\n".join(lines)


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
