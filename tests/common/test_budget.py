"""check_json counts what is outside of strings, and nothing else."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_common.openai import budget
from fairlead_common.openai.budget import OverBudget, check_json

VALUES = st.recursive(
    st.none() | st.integers() | st.text(alphabet='"\\[]{},:aé', max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text('"\\[{,', max_size=3), inner, max_size=5),
    max_leaves=40,
)


def counted(value: object) -> tuple[int, int, int]:
    """Texts, containers, and commas outside of texts."""
    if isinstance(value, str):
        return 1, 0, 0
    if not isinstance(value, list | dict):
        return 0, 0, 0
    inner = list(value) + (list(value.values()) if isinstance(value, dict) else [])
    parts = [counted(each) for each in inner]
    sums = [sum(part[place] for part in parts) for place in range(3)]
    return sums[0], sums[1] + 1, sums[2] + max(0, len(value) - 1)


@given(VALUES, st.booleans())
@settings(max_examples=80)
def test_it_refuses_exactly_what_has_more_parts_than_it_may(value: object, ascii: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii).encode()
    texts, containers, commas = counted(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "MAX_CONTAINERS", 0)  # so that nothing is too short to be looked at
        patch.setattr(budget, "MAX_TEXTS", texts)
        if containers:
            with pytest.raises(OverBudget, match="lists and objects"):
                check_json(body)
        for limit, refused in ((containers, False), (max(0, containers - 1), containers > 0)):
            patch.setattr(budget, "MAX_CONTAINERS", limit)
            if refused and len(body) > 2 * limit:
                with pytest.raises(OverBudget, match="lists and objects"):
                    check_json(body)
            elif not refused:
                check_json(body)
        patch.setattr(budget, "MAX_CONTAINERS", containers)
        patch.setattr(budget, "MAX_ITEMS", commas)
        check_json(body)


@given(st.lists(st.text(alphabet='"\\a', max_size=6), min_size=4, max_size=40))
def test_twice_as_many_texts_as_may_be_are_refused_and_no_fewer(texts: list[str]) -> None:
    body = json.dumps(texts).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "MAX_CONTAINERS", 1)
        patch.setattr(budget, "MAX_TEXTS", len(texts))
        check_json(body)
        patch.setattr(budget, "MAX_TEXTS", (len(texts) - 1) // 2)
        with pytest.raises(OverBudget, match="texts"):
            check_json(body)


@pytest.mark.parametrize("body", [b'"' * 500_001, b"[" * 500_000, b"\\" * 500_001, b'"[' * 300_000, b"\xff" * 300_000])
def test_what_is_no_json_raises_nothing_else(body: bytes) -> None:
    try:
        check_json(body)
    except OverBudget:
        pass
