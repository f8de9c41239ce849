"""Label and field selectors."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_local.apiserver.selectors import from_object, parse_fields, parse_labels
from fairlead_local.apiserver.status import StatusError

Keys = st.sampled_from(["app", "example.com/tier", "x"])
Values = st.sampled_from(["", "a", "b-1", "C_2"])
Labels = st.dictionaries(Keys, Values)


@given(Labels, Keys, st.lists(Values, min_size=1, max_size=3))
@settings(deadline=None, max_examples=50)
def test_in_and_notin_are_opposites(labels: dict[str, str], key: str, values: list[str]) -> None:
    chosen = ",".join(values)
    assert parse_labels(f"{key} in ({chosen})").matches(labels) != parse_labels(f"{key} notin ({chosen})").matches(
        labels
    )


@given(Labels, Keys)
@settings(deadline=None, max_examples=40)
def test_exists_and_absent_are_opposites(labels: dict[str, str], key: str) -> None:
    assert parse_labels(key).matches(labels) != parse_labels(f"!{key}").matches(labels)


@given(Labels, Labels)
@settings(deadline=None, max_examples=50)
def test_equalities_select_exactly_the_supersets(wanted: dict[str, str], labels: dict[str, str]) -> None:
    text = ",".join(f"{key}={value}" for key, value in wanted.items())
    assert parse_labels(text).matches(labels) is (wanted.items() <= labels.items())
    assert from_object({"matchLabels": wanted}).matches(labels) is (wanted.items() <= labels.items())


@pytest.mark.parametrize("text", ["a b", "=x", "app in a", "app=(x", "a=b c", "app in (a", "-x", "a==b=c"])
def test_a_bad_label_selector_is_refused(text: str) -> None:
    with pytest.raises(StatusError) as refused:
        parse_labels(text)
    assert refused.value.code == 400


def test_expressions_of_a_workload() -> None:
    selector = from_object(
        {
            "matchExpressions": [
                {"key": "app", "operator": "In", "values": ["a", "b"]},
                {"key": "x", "operator": "DoesNotExist"},
            ]
        }
    )
    assert selector.matches({"app": "b"})
    assert not selector.matches({"app": "b", "x": ""})
    assert not selector.matches({})


def test_fields_compare_as_text_and_absent_ones_as_empty() -> None:
    obj = {"metadata": {"name": "a"}, "spec": {"unschedulable": True}}
    allowed = {"metadata.name", "spec.unschedulable", "spec.nodeName"}.__contains__
    assert parse_fields("metadata.name=a,spec.unschedulable=true,spec.nodeName=", allowed).matches(obj)
    assert not parse_fields("metadata.name!=a", allowed).matches(obj)


@pytest.mark.parametrize("text", ["spec.colour=red", "metadata.name", "metadata.name=a=b"])
def test_a_bad_field_selector_is_refused(text: str) -> None:
    with pytest.raises(StatusError) as refused:
        parse_fields(text, lambda path: path == "metadata.name")
    assert refused.value.code == 400
