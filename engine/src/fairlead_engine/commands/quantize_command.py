"""`fairlead-engine quantize`: from a checkpoint of floats one with quantised weights, in compressed-tensors' layout."""

import argparse
import sys
from pathlib import Path
from typing import Any

from fairlead_engine.config import DEVICES, QUANTIZATIONS
from fairlead_engine.errors import ConfigError, ModelLoadError, ModelLoadReason, StartError
from fairlead_engine.server import termination

METHODS = ("rtn", "awq", "gptq")
_FEWEST_TOKENS = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
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


def run(args: argparse.Namespace) -> int:
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

    from fairlead_engine.model.loading import read_config
    from fairlead_protocol.tokenizing import PromptTokenizer, TokenizerError

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


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
