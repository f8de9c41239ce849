"""What templates may use of jinja2, and what is too deep for it."""

from typing import Any

import pytest

from fairlead_common.openai.chat import ChatTemplate, ChatTemplateError

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for i in range(10 ** 12) %}x{% endfor %}", "Range too big"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "recursion"),
        ("{{ messages | tojson(indent=10 ** 9) }}", "indents"),
        ("{{ lipsum(n=10 ** 7) }}", "needs the variable 'lipsum'"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "is unsafe"),
    ],
)
def test_what_cannot_be_rendered_is_refused(template: str, says: str) -> None:
    with pytest.raises(ChatTemplateError, match=says):
        ChatTemplate(template).render(HI)


DEEP = "{% if " + "(" * 5000 + "1" + ")" * 5000 + " %}{% endif %}"


@pytest.mark.parametrize("template", ["{" * 100_000, DEEP, "{% if %}"], ids=["many braces", "deep", "no condition"])
def test_what_does_not_compile_is_refused_at_once(template: str) -> None:
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
