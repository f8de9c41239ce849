"""Templates that would take for ever, or all memory: each is refused soon, and sound ones are what they were."""

import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead_protocol import template_limits
from fairlead_protocol.chat import ChatTemplate, ChatTemplateError
from fairlead_protocol.template_limits import bounded_work

GROWING = "{%% set n = namespace(x='xx') %%}{%% for i in range(60) %%}{%% set n.x = %s %%}{%% endfor %%}"
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """Who takes gigabytes fails, here and not elsewhere."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + 2**31, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "loops and calls"),
        ("{% for i in range(10 ** 12) %}x{% endfor %}", "Range too big"),
        ("{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}", "loops and"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{% for a in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}", "loops and calls"),
        ("{{ 'x' * 10 ** 10 }}", "text or list"),
        ("{{ [0] * 10 ** 10 }}", "text or list"),
        ("{{ 9 ** (9 ** 9) }}", "4096 bits"),
        ("{{ 10 ** 999 * 10 ** 999 }}", "4096 bits"),
        (GROWING % "n.x ~ n.x", "text or list"),
        (GROWING % "n.x + n.x", "text or list"),
        (GROWING % "n.x.replace('x', n.x)", "text or list"),
        (GROWING % "n.x | replace('x', n.x)", "text or list"),
        (GROWING % "[n.x, n.x] | join(n.x)", "text or list"),
        (GROWING % "n.x.join([n.x, n.x])", "text or list"),
        ("{{ 'a'.ljust(10 ** 10) }}", "text or list"),
        ("{{ 'a' | center(10 ** 10) }}", "text or list"),
        ("{{ 'a\nb' | indent(10 ** 10) }}", "text or list"),
        ("{{ [1] | batch(10 ** 9, 0) | list }}", "text or list"),
        ("{{ [1] | slice(10 ** 9) | list }}", "text or list"),
        ("{{ '%999999999d' % 5 }}", "width"),
        ("{{ '%*d' % (999999999, 5) }}", "width"),
        ("{{ '%999999999d' | format(5) }}", "width"),
        ("{{ '{:>999999999}'.format(5) }}", "width"),
        ("{{ '{:>{}}'.format(5, 999999999) }}", "width"),
        ("{{ messages | tojson(indent=10 ** 9) }}", "indents"),
        ("{{ lipsum(n=10 ** 7) }}", "undefined"),
    ],
)  # fmt: skip
def test_what_takes_too_much_is_refused(template: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "MAX_STEPS", 50_000)  # or it would take seconds to find out
    with pytest.raises(ChatTemplateError, match=says), bounded_work():
        ChatTemplate(template).render(HI)


def test_what_takes_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each of few passes takes long."""
    monkeypatch.setattr(template_limits, "MAX_SECONDS", 0.05)
    slow = "{% for i in range(1000) %}{% set _ = range(99999) | sort(reverse=true) | list %}{% endfor %}"
    with pytest.raises(ChatTemplateError, match=r"takes more than 0\.05 s"), bounded_work():
        ChatTemplate(slow).render(HI)


@pytest.mark.parametrize("template", ["{" * 100_000, "{% if " + "(" * 5000 + "1" + ")" * 5000 + " %}{% endif %}"])
def test_what_is_too_deep_to_compile_is_refused(template: str) -> None:
    with pytest.raises(ChatTemplateError, match="does not compile"):
        ChatTemplate(template)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ ' last' if loop.last }}{% endfor %}", "1/1 last"),
        ("{% for k in {'a': 1, 'b': 2} %}{{ k }}{% endfor %}{% for k in [] %}{% else %}none{% endfor %}", "abnone"),
        ("{% for a, b in {'x': 1}.items() %}{{ a ~ '=' ~ b }}{% endfor %}", "x=1"),
        ("{% for a in [1, [2, [3]]] recursive %}{{ a if a is number else loop(a) }}{% endfor %}", "123"),
        ("{% for i in range(5) if i is odd %}{{ i }}{% endfor %}", "13"),
        ("{{ 2 * 3 }}{{ 'ab' * 2 }}{{ 1 + 1 }}{{ 'a' + 'b' }}{{ 2 ** 3 }}{{ 7 % 4 }}", "6abab2ab83"),
        ("{% for i in [3, 1] | sort | map('string') %}{{ i }}{{ loop.nextitem }}{% endfor %}", "133"),
        ("{{ '%s is %5.1f' % ('a', 2) }}|{{ '%d' | format(7) }}|{{ '{} {a}'.format(1, a=2) }}", "a is   2.0|7|1 2"),
        ("{{ ['a', 'b'] | join(', ') }}{{ 'a-b'.replace('-', '+') }}{{ 'a-b' | replace('-', '') }}", "a, ba+bab"),
        ("{{ 'a\\nb' | indent(2) }}|{{ 'a'.ljust(3) }}|{{ 'a' | center(3) }}", "a\n  b|a  | a "),
        ("{{ [1, 2, 3] | batch(2) | list }}{{ ','.join(['x', 'y']) }}", "[[1, 2], [3]]x,y"),
        ("{{ nothing ~ 'x' }}{% for i in nothing %}{% endfor %}{{ messages[0].content ~ 5 ~ none }}", "xhi5None"),
    ],
)  # fmt: skip
def test_sound_templates_are_what_they_were(template: str, text: str) -> None:
    assert ChatTemplate(template).render(HI) == text
    with bounded_work():
        assert ChatTemplate(template).render(HI) == text
