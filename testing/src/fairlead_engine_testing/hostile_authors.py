"""Models that load and mean harm: tokenizers and chat templates that take all the time or memory there is."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

_TIMES = "aaaaaaaaaa"
_DOUBLED = "{% set ns = namespace(x=[0]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
"""Lists in lists: few bytes, and 2^40 of them to whoever looks at each."""
_BOMBS = (
    "{% for i in range(900) %}{% set x = ('ab' * 8000000)|upper %}{% endfor %}",
    _DOUBLED + "{{ ns.x == ns.x|list }}",
    _DOUBLED + "{{ 1 in ns.x }}",
    _DOUBLED + "{{ [ns.x, ns.x]|sort }}",
    _DOUBLED + "{{ ns.x }}",
    _DOUBLED + "{{ ns.x|tojson }}",
    _DOUBLED + "{{ ns.x|pprint }}",
    "{% set ns = namespace(x=['a']) %}{% for i in range(40) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
    "{{ ([[1] * 3000] * 3000)|sum(start=[])|length }}",
    "{% for i in range(10 ** 9) %}{% endfor %}",
    "{% set x = 10 ** 4000 %}{% for i in range(9999) %}{% set y = x ** 99 %}{% endfor %}",
    "{{ ('a' * 9000000).translate({97: 'b' * 900}) }}",
    "{{ '%09999999999d' % 1 }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
)
"""Templates, each of which would take minutes or gigabytes."""
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a" * 40}], "max_tokens": 2}
"""What makes each of these models do its worst; the same text does as a prompt."""


Write = Callable[[random.Random, Path], str]


def hostile_author(draw: random.Random, sound: Path, target: Path) -> str:
    """Writes any of these models to `target`, which is not there; what is wrong with it."""
    return write(draw.choice(AUTHORS), draw, sound, target)


def write(spoil: Write, draw: random.Random, sound: Path, target: Path) -> str:
    """The same, of one kind."""
    shutil.copytree(sound, target)
    return spoil(draw, target)


def expanding_normalizer(draw: random.Random, folder: Path) -> str:
    """Of each "a" a million."""
    steps = [_replace("a", _TIMES)] * draw.randint(4, 6)
    return _tokenizer(folder, "normalizer", {"type": "Sequence", "normalizers": steps})


def backtracking_pre_tokenizer(draw: random.Random, folder: Path) -> str:
    """It takes twice the time for each "a" more."""
    pattern = draw.choice(["(a+)+$", "(a|aa)+$", "(.*a){20}$"])
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return _tokenizer(folder, "pre_tokenizer", split)


def expanding_decoder(draw: random.Random, folder: Path) -> str:
    """Of each letter of an answer a million."""
    steps = [_replace("e", "eeeeeeeeee")] * draw.randint(4, 6)
    return _tokenizer(folder, "decoder", {"type": "Sequence", "decoders": [{"type": "Fuse"}, *steps]})


def endless_template(draw: random.Random, folder: Path) -> str:
    """One of `_BOMBS`."""
    bomb = draw.choice(_BOMBS)
    (folder / "chat_template.jinja").write_text(bomb)
    return f"chat_template.jinja: {bomb}"


AUTHORS: tuple[Write, ...] = (expanding_normalizer, backtracking_pre_tokenizer, expanding_decoder, endless_template)


def _replace(text: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def _tokenizer(folder: Path, part: str, value: dict[str, Any]) -> str:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), part: value}))
    return f"tokenizer.json: {part} = {json.dumps(value)[:200]}"
