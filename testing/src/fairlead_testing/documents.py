"""The fenced blocks of the documentation, for tests that run them."""

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    str(each.relative_to(ROOT))
    for each in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("charts/**/*.md"),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
_BLOCK = re.compile(
    r"^(?P<indent> *)(?:<!-- not run: (?P<reason>.*?) *-->\n *)?```(?P<language>\w+)\n(?P<text>.*?)^ *```\n"
    r"(?:\n(?: *<!-- not compared: (?P<other>.*?) *-->\n)? *```(?:text)?\n(?P<shown>.*?)^ *```$)?",
    re.MULTILINE | re.DOTALL,
)
_SHELLS = frozenset({"sh", "bash", "shell", "console"})


@dataclass(frozen=True)
class Block:
    """A block of commands."""

    page: str
    line: int
    """Of its first command."""
    text: str
    not_run: str | None
    """Why no test can run it, as the comment before it says; None = there is none."""
    shown: str
    """The output that the page shows beneath; empty = none, or one that says why it differs."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def shell_blocks(page: str) -> list[Block]:
    """The blocks that a reader types into a shell."""
    text = (ROOT / page).read_text()
    return [
        Block(
            page,
            line=text.count("\n", 0, found.start("text")) + 1,
            text=textwrap.dedent(found["text"]),
            not_run=found["reason"],
            shown="" if found["other"] else found["shown"] or "",
        )
        for found in _BLOCK.finditer(text)
        if found["language"] in _SHELLS
    ]


def programs(page: str) -> list[str]:
    """The Python programs."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
