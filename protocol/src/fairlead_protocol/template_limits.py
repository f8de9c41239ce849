"""jinja2's sandbox with limits of work and memory: templates come with models, and gateways serve many of them.

The sandbox keeps a template from Python; nothing of it keeps one from looping for ever, or from making a text of ten
gigabytes. Passes through loops and calls are counted, in each the time that was taken is looked at, and what would make
something long is refused before it does.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fairlead_protocol.budget import MAX_RENDERED_CHARACTERS

MAX_STEPS = 1_000_000
"""For one request: passes through loops, and calls, each of which counts as a few. A template may look at every message
and tool for each of them."""
_STEPS_PER_CALL = 4
MAX_SECONDS = 20.0
"""Of a processor's time; what a request may ask for takes a hundredth of it."""
_MOST_BITS = 4096
"""Of a number."""
_COUNTED, _JOINED = "counted items", "joined texts"
"""Names of filters that no template can write."""
_WIDTH = re.compile(r"%[^a-zA-Z%]*(\*|\d{5})|\{[^{}]*(:[^{}]*\{|\d{5})")
"""Of a format: a width that is given beside it, or of five digits."""
_PADDING = ("ljust", "rjust", "center", "zfill", "expandtabs")


class TemplateTooLong(ValueError):
    """A template takes more than it may; the text says what."""


class _Work:
    """What one rendering has left."""

    def __init__(self, max_seconds: float) -> None:
        self._num_left = MAX_STEPS
        self._max_seconds = max_seconds
        self._end = time.thread_time() + max_seconds

    def take(self, num_steps: int) -> None:
        self._num_left -= num_steps
        if self._num_left < 0:
            raise TemplateTooLong(f"it loops and calls more than {MAX_STEPS:,} times in all")
        if time.thread_time() > self._end:
            raise TemplateTooLong(f"it takes more than {self._max_seconds:g} s")


_work: ContextVar[_Work | None] = ContextVar("_work", default=None)


@contextmanager
def bounded_work(max_seconds: float | None = None) -> Iterator[None]:
    """What templates of a `BoundedEnvironment` do within raises `TemplateTooLong` where that is too much: more than
    `MAX_SECONDS`, or fewer. Within another it counts there: all that is rendered shares the limits."""
    if _work.get() is not None:
        yield
        return
    before = _work.set(_Work(MAX_SECONDS if max_seconds is None else max_seconds))
    try:
        yield
    finally:
        _work.reset(before)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox, for templates that are rendered under `bounded_work`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.filters |= {_COUNTED: _counted, _JOINED: _joined}
        for name in ("center", "indent", "batch", "slice"):
            self.filters[name] = _with_small_numbers(self.filters[name])
        self.filters["format"] = _with_small_widths(self.filters["format"])
        for name in ("join", "replace"):
            self.filters[name] = _with_short_results(name, self.filters[name])
        del self.globals["lipsum"]

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _COUNTED, [], [], None, None, lineno=loop.lineno)
        _without_concat(tree)
        tree.set_environment(self)
        return tree

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        if (work := _work.get()) is not None:
            is_loop = isinstance(__obj, LoopContext) and args and hasattr(args[0], "__len__")
            work.take(_STEPS_PER_CALL + (len(args[0]) if is_loop else 0))
        text, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(text, str):
            if name in _PADDING:
                _check_numbers(args)
            elif name in ("replace", "join"):
                _check_result(name, text, args)
        elif name in ("format", "format_map"):  # the sandbox has put its own around the text's
            _check_format(getattr(getattr(__obj, "__wrapped__", None), "__self__", None))
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            _check_length(len(left) + len(right))
        elif operator == "*":
            for many, times in ((left, right), (right, left)):
                if hasattr(many, "__len__") and isinstance(times, int):
                    _check_length(len(many) * times)
            if isinstance(left, int) and isinstance(right, int):
                _check_bits(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_bits(left.bit_length() * max(0, right))
        return super().call_binop(context, operator, left, right)


def _without_concat(tree: nodes.Template) -> None:
    """`a ~ b` as a filter, which looks before it makes one text of them."""

    def changed(node: nodes.Node) -> nodes.Node:
        for name, value in node.iter_fields():
            if isinstance(value, nodes.Node):
                setattr(node, name, changed(value))
            elif isinstance(value, list):
                setattr(node, name, [changed(each) if isinstance(each, nodes.Node) else each for each in value])
        if isinstance(node, nodes.Concat):
            parts = nodes.List(node.nodes, lineno=node.lineno)
            return nodes.Filter(parts, _JOINED, [], [], None, None, lineno=node.lineno)
        return node

    changed(tree)


def _counted(items: Any) -> Any:
    work = _work.get()
    if work is None:
        return items
    if hasattr(items, "__len__"):
        work.take(len(items))
        return items
    return _one_by_one(items, work)


def _one_by_one(items: Iterable[Any], work: _Work) -> Iterator[Any]:
    for item in items:
        work.take(1)
        yield item


def _joined(parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    _check_length(sum(map(len, texts)))
    return "".join(texts)


def _with_small_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def bounded(value: Any, *args: Any, **kwargs: Any) -> Any:
        _check_numbers((*args, *kwargs.values()))
        return function(value, *args, **kwargs)

    return bounded


def _with_small_widths(function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def bounded(value: Any, *args: Any, **kwargs: Any) -> Any:
        _check_format(value)
        return function(value, *args, **kwargs)

    return bounded


def _with_short_results(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Of a filter that gets jinja2's own first argument before the value."""

    @wraps(function)
    def bounded(own: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if name == "join":
            value = list(value)
            between = str(given[0]) if given else ""
            _check_length(sum(len(str(each)) for each in value) + len(between) * len(value))
        else:
            _check_result(name, str(value), tuple(map(str, given)))
        return function(own, value, *args, **kwargs)

    return bounded


def _check_result(name: str, text: str, args: tuple[Any, ...]) -> None:
    """Of `text.replace(old, new)` or `text.join(parts)`."""
    if name == "join" and args and hasattr(args[0], "__len__"):
        _check_length(sum(len(each) for each in args[0] if isinstance(each, str)) + len(text) * len(args[0]))
    if name == "replace" and len(args) > 1 and isinstance(args[0], str) and isinstance(args[1], str):
        _check_length(len(text) + text.count(args[0]) * len(args[1]))


def _check_format(text: Any) -> None:
    if isinstance(text, str) and _WIDTH.search(text):
        raise TemplateTooLong("it formats with a width that is too large, or given beside the format")


def _check_numbers(values: Iterable[Any]) -> None:
    for value in values:
        if isinstance(value, int):
            _check_length(value)


def _check_length(length: int) -> None:
    if length > MAX_RENDERED_CHARACTERS:
        raise TemplateTooLong(f"it makes a text or list of more than {MAX_RENDERED_CHARACTERS:,} entries")


def _check_bits(num_bits: int) -> None:
    if num_bits > _MOST_BITS:
        raise TemplateTooLong(f"it makes a number of more than {_MOST_BITS} bits")
