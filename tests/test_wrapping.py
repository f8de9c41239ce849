"""docs/wrap.py: lines get short, and what a page means stays."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from markdown_it import MarkdownIt

WRAP = Path(__file__).parent.parent / "docs" / "wrap.py"
LONG = "one two `a code span` three, " * 12


@pytest.fixture(scope="module")
def wrap() -> ModuleType:
    spec = importlib.util.spec_from_file_location("wrap", WRAP)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def meaning(text: str) -> str:
    return " ".join(MarkdownIt("commonmark").enable("table").render(text).split())


@pytest.mark.parametrize(
    "text",
    [
        LONG,
        f"short\n{LONG}\nshort",
        f"- {LONG}\n- {LONG}\n  1. {LONG}\n     {LONG}\n",
        f"> {LONG}\n> {LONG}\n\n{LONG}",
        "word " * 22 + "plus seven - eight 1. Add + nine # ten > " + LONG,
        f"# {LONG}\n\n| a | b |\n| --- | --- |\n| {LONG} | {LONG} |\n\n{LONG}",
        f"```sh\n{LONG}\n- {LONG}\n```\n{LONG}",
        f"**Bold** [a link with words](a/b.md) {LONG}",
    ],
)
def test_lines_get_short_and_mean_the_same(wrap: ModuleType, text: str) -> None:
    wrapped = wrap.wrap(text)
    assert meaning(wrapped) == meaning(text)
    assert wrap.wrap(wrapped) == wrapped
    for is_prose, block in wrap.blocks(wrapped):
        assert not is_prose or max(map(len, block)) <= wrap.WIDTH


def test_what_is_short_stays_as_its_author_wrote_it(wrap: ModuleType) -> None:
    text = "short\nlines,\n- one\n  item\n\n> quoted\n> twice\n"
    assert wrap.wrap(text) == text


def test_no_code_span_is_broken(wrap: ModuleType) -> None:
    assert "`a code\n" not in wrap.wrap(LONG)
