"""Wraps the prose of Markdown files at 120 columns: `python docs/wrap.py` for every page, or with the files' names.

For whoever writes documentation, and for the generated reference. Paragraphs and list items in which no line is too
long stay as they are. Code, tables, headings and the inside of `code spans` are never wrapped.
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

WIDTH = 120
ROOT = Path(__file__).parent.parent
_ITEM = re.compile(r"( *)([-*+]|\d+[.)])( +)")
_QUOTE = re.compile(r" *> ?")
_NEVER_FIRST = re.compile(r"[-+*>#|=]+|\d+[.)]")
"""Words that would begin a list, a quotation or a heading at the beginning of a line."""
_WORD = re.compile(r"(?:`+[^`]*`+|[^\s`])+|\S")


def pages() -> list[Path]:
    """The Markdown files whose lines are held to the width. The changelog, which everybody writes to, is not."""
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.splitlines() if name != "CHANGELOG.md"]


def blocks(text: str) -> Iterator[tuple[bool, list[str]]]:
    """The lines in their order, as blocks: (whether it is prose, its lines). Each paragraph and each list item, up to
    where the next one begins, is a block of prose."""
    prose: list[str] = []
    fence = ""
    for line in text.splitlines():
        mark = re.match(r" *(```+|~~~+)", line)
        is_prose = not (fence or mark or not line.strip() or re.match(r" *(\||#|<|---)", line) or line.endswith("  "))
        if prose and (not is_prose or _ITEM.match(line)):
            yield True, prose
            prose = []
        if is_prose:
            prose.append(line)
        else:
            yield False, [line]
        if mark and (not fence or mark[1].startswith(fence)):
            fence = "" if fence else mark[1]
    if prose:
        yield True, prose


def wrap(text: str) -> str:
    """The text with no line of prose too long, where that can be."""
    lines: list[str] = []
    for is_prose, block in blocks(text):
        lines += _wrapped(block) if is_prose and max(map(len, block)) > WIDTH else block
    return "\n".join(lines) + "\n"


def _wrapped(block: list[str]) -> list[str]:
    begin = _ITEM.match(block[0]) or _QUOTE.match(block[0]) or re.match(" *", block[0])
    assert begin is not None
    first = begin[0]
    is_quote = first.lstrip().startswith(">")
    later = first if is_quote else " " * len(first)
    texts = (_QUOTE.sub("", line) if is_quote else line for line in block[1:])
    lines: list[str] = []
    current = first
    for word in _words(" ".join([block[0][len(first) :], *(text.strip() for text in texts)])):
        if len(current) + len(word) >= WIDTH and current.strip() and current not in (first, later):
            lines.append(current.rstrip())
            current = later
        current += word + " "
    return [*lines, current.rstrip()]


def _words(text: str) -> Iterator[str]:
    """What must stay on one line: words, code spans, and what may not begin a line with the word before it."""
    held = ""
    for word in _WORD.findall(text):
        if held and _NEVER_FIRST.fullmatch(word):
            held += f" {word}"
        else:
            if held:
                yield held
            held = word
    if held:
        yield held


def main() -> None:
    """Wraps the files named by the arguments, or every page."""
    for path in [Path(name) for name in sys.argv[1:]] or pages():
        before = path.read_text(encoding="utf-8")
        path.write_text(wrap(before) if before.strip() else before, encoding="utf-8")


if __name__ == "__main__":
    main()
