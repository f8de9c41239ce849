"""Shapes of draft trees: several drafts for each position; a step verifies all and accepts one path.

A *static* tree lists its drafts as paths such as `[[0], [0, 0], [1]]`, the notation of Medusa's `medusa_choices` (Cai
et al., 2024): the likeliest token, the likeliest behind it, and the second likeliest. A *dynamic* tree is
`WIDTHxNODES`: at each position the WIDTH likeliest drafts are followed by their WIDTH likeliest, and the NODES
likeliest of all are verified (Li et al., EAGLE-2, 2024).
"""

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

MOST_GUESSES = 63
"""Drafts of one tree: with the root, the last known token, as many as attention has bits for."""
MOST_WIDTH = 16
_DYNAMIC = re.compile(r"([0-9]{1,3})x([0-9]{1,3})")
_HINT = "a list of paths such as [[0],[0,0],[1]], or WIDTHxNODES such as 4x24"


class TreeError(ValueError):
    """A setting that describes no tree; the text says why."""


@dataclass(frozen=True)
class StaticTree:
    """Paths, each the choice at every position up to a draft; parents come before their children."""

    paths: tuple[tuple[int, ...], ...]

    @cached_property
    def depth(self) -> int:
        """Length of the longest path."""
        return max(map(len, self.paths))

    @cached_property
    def width(self) -> int:
        """Drafts behind one token that paths choose from."""
        return 1 + max(path[-1] for path in self.paths)

    def num_nodes(self, depth: int) -> int:
        """Drafts up to that position."""
        return sum(len(path) <= depth for path in self.paths)

    def first(self, depth: int, most: int) -> tuple[tuple[int, ...], ...]:
        """The first `most` paths no longer than `depth`."""
        return tuple(path for path in self.paths if len(path) <= depth)[:most]


@dataclass(frozen=True)
class DynamicTree:
    """The likeliest drafts, as many as `most_nodes`."""

    width: int
    """Drafts behind one token, and drafts of one position that are continued."""
    most_nodes: int
    depth: int

    def num_nodes(self, depth: int) -> int:
        """Drafts of a tree of `depth` positions: its share of `most_nodes`, from one level up to all that exist."""
        share = max(self.width, -(-self.most_nodes * depth // self.depth))
        return min(self.most_nodes, share, self.width + self.width**2 * (depth - 1))


TreeShape = StaticTree | DynamicTree


def parse_tree(text: str, depth: int | None, default_depth: int) -> TreeShape:
    """The tree of a setting, `depth` positions at most; None = the paths' own or `default_depth`. Raises TreeError."""
    if (found := _DYNAMIC.fullmatch(text)) is not None:
        return _dynamic(int(found[1]), int(found[2]), depth or default_depth)
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        read = None
    paths = _paths(read)
    tree = StaticTree(paths)
    return tree if depth is None else StaticTree(tree.first(depth, len(paths)))


def _dynamic(width: int, most_nodes: int, depth: int) -> DynamicTree:
    if not 2 <= width <= MOST_WIDTH:
        raise TreeError(f"is {width} guesses wide; from 2 to {MOST_WIDTH} make a tree")
    if not width <= most_nodes <= MOST_GUESSES:
        raise TreeError(
            f"has {most_nodes} guesses; from its width, {width}, to {MOST_GUESSES} can be verified at a time"
        )
    if width * (depth - 1) > most_nodes:
        problem = f"follows {width} guesses at each of {depth} places, more than its {most_nodes} in all have room for"
        raise TreeError(f"{problem}: lower num-speculative-tokens or the width, or raise the guesses")
    return DynamicTree(width, most_nodes, depth)


def _paths(read: Any) -> tuple[tuple[int, ...], ...]:
    """The paths of a list, sorted stably with parents before children."""
    if not isinstance(read, list) or not read or not all(_is_path(path) for path in read):
        raise TreeError(f"is neither {_HINT}")
    paths = [tuple(path) for path in read]
    if len(paths) > MOST_GUESSES:
        raise TreeError(f"has {len(paths)} guesses; at most {MOST_GUESSES} can be verified at a time")
    if len(set(paths)) < len(paths):
        raise TreeError(f"names {list(next(path for path in paths if paths.count(path) > 1))} twice")
    for path in paths:
        if len(path) > 1 and path[:-1] not in paths:
            raise TreeError(f"names {list(path)} without {list(path[:-1])}, which is on the way to it")
    found: list[tuple[int, ...]] = []
    left = paths
    while left:  # children whose parents come later wait for them
        there = set(found)
        found += [path for path in left if len(path) == 1 or path[:-1] in there]
        left = [path for path in left if path not in set(found)]
    return tuple(found)


def _is_path(path: Any) -> bool:
    return (
        isinstance(path, list)
        and 0 < len(path) <= 32
        and all(isinstance(each, int) and not isinstance(each, bool) and 0 <= each < MOST_GUESSES for each in path)
    )
