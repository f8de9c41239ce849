"""Folders and files that are no models, made of a sound one: cut off, of other shapes, full of nonsense, or traps."""

import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

_WEIGHTS = "model.safetensors"
_NONSENSE: tuple[Any, ...] = (
    0, -1, 2**31, 2**63, 10**400, 1e308, float("nan"), "x", None, [], {}, True, [[[]]] * 3, "\ud800",
)  # fmt: skip


def hostile_model(draw: random.Random, sound: Path, target: Path) -> str:
    """Writes one to `target`, which is not there; what was done to it."""
    shutil.copytree(sound, target)
    spoil: Callable[[random.Random, Path], str] = draw.choice([_config, _cut, _header, _bytes, _tokenizer, _trap])
    return spoil(draw, target)


def _config(draw: random.Random, folder: Path) -> str:
    name = draw.choice(["config.json", "config.json", "tokenizer_config.json"])
    path = folder / name
    fields = json.loads(path.read_text())
    key, value = draw.choice(sorted(fields)), draw.choice(_NONSENSE)
    fields[key] = value
    path.write_text(json.dumps(fields))
    return f"{name}: {key} = {str(value)[:30]!r}"


def _cut(draw: random.Random, folder: Path) -> str:
    path = draw.choice(sorted(each for each in folder.iterdir() if each.is_file()))
    whole = path.read_bytes()
    path.write_bytes(whole[: draw.randrange(len(whole))])
    return f"{path.name} is cut off"


def _header(draw: random.Random, folder: Path) -> str:
    """Safetensors whose header lies."""
    path = folder / _WEIGHTS
    whole = path.read_bytes()
    (size,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + size])
    name = draw.choice([each for each in header if each != "__metadata__"])
    match draw.randrange(5):
        case 0:
            header[name]["shape"] = header[name]["shape"][::-1] + [1]
        case 1:
            header[name]["data_offsets"] = [0, 2**60]
        case 2:
            header[name]["dtype"] = draw.choice(["I64", "F8_E4M3", "X"])
        case 3:
            del header[name]
        case _:
            header[name]["shape"] = [2**40, 2**40]
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + size :])
    return f"{_WEIGHTS}: the header lies of {name}"


def _bytes(draw: random.Random, folder: Path) -> str:
    """Some others anywhere: in weights they may be numbers as good as any."""
    path = draw.choice([folder / _WEIGHTS, folder / "tokenizer.json", folder / "config.json"])
    whole = bytearray(path.read_bytes())
    first = draw.randrange(len(whole))
    whole[first : first + 64] = draw.randbytes(64)
    path.write_bytes(whole)
    return f"{path.name}: other bytes at {first}"


def _tokenizer(draw: random.Random, folder: Path) -> str:
    path = folder / "tokenizer.json"
    fields = json.loads(path.read_text())
    part = draw.choice(["model", "pre_tokenizer", "decoder", "added_tokens", "normalizer", "post_processor"])
    odd = {"type": "BPE", "vocab": {"a": 2**31}, "merges": []}
    value: Any = draw.choice([None, {}, [], {"type": "Nothing"}, "[" * 9, odd])
    fields[part] = value
    path.write_text(json.dumps(fields))
    return f"tokenizer.json: {part} = {str(value)[:60]}"


def _trap(draw: random.Random, folder: Path) -> str:
    name = draw.choice(["config.json", _WEIGHTS, "tokenizer.json", "chat_template.jinja", "generation_config.json"])
    path = folder / name
    path.unlink(missing_ok=True)
    match draw.randrange(4):
        case 0:
            os.mkfifo(path)
        case 1:
            path.mkdir()
        case 2:
            path.symlink_to(path)
        case _:
            path.write_text("[" * 200_000)
    return f"{name} is a trap"
