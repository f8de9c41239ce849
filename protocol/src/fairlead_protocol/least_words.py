"""The fewest tokens that a text can have where unknown words become one token, as BERT's tokenizers have it.

Its words are counted: each becomes a token or more, whatever is in it. A word here begins with a letter or a digit that
no such tokenizer drops, and ends with white space or punctuation of ASCII, at which all of them end words; each such
punctuation mark is a token of its own. Words of other scripts are not counted, so that there are never fewer tokens.
"""

import re
import string
from collections.abc import Collection
from unicodedata import ucd_3_2_0

_LETTERS = "".join(char for char in map(chr, range(0x80, 0x530)) if ucd_3_2_0.category(char).startswith("L"))
"""Of Latin, Greek and Cyrillic; those that have been letters for so long are letters to everybody."""
_ENDS = re.escape(" \t\n\r" + string.punctuation)
_WORDS = re.compile(f"[A-Za-z0-9{_LETTERS}][^{_ENDS}]*|[{re.escape(string.punctuation)}]")


class LeastWords:
    """Counts for one tokenizer."""

    def __init__(self, added: Collection[str]) -> None:
        """`added`: texts that become a token each wherever they stand, such as `[SEP]`."""
        longest_first = sorted(filter(None, added), key=len, reverse=True)
        self._added = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._seam = 1 + max(map(len, longest_first), default=0)

    def of(self, piece: str) -> int:
        """At least so many tokens has a piece of a text, which may begin and end within a word or an added token."""
        whole = piece if self._added is None else self._added.sub(" x ", piece)
        return max(0, sum(1 for _ in _WORDS.finditer(whole)) - self._seam)
