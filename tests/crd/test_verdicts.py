"""An API server's answers, made comparable."""

from typing import Any

import httpx
from crd.verdicts import WHOLE_OBJECT, verdict


def refusal(*causes: tuple[str, str], message: str = "", code: int = 422, **headers: str) -> httpx.Response:
    details = {"causes": [{"field": field, "message": text} for field, text in causes]} if causes else {}
    body: dict[str, Any] = {"kind": "Status", "message": message, "details": details}
    return httpx.Response(code, json=body, headers=headers)


def test_an_object_that_was_taken_says_what_was_dropped() -> None:
    reply = httpx.Response(201, json={"spec": {}}, headers={"Warning": '299 - "unknown field \\"spec.typo\\""'})
    found = verdict(reply)
    assert (found.accepted, found.fields, found.warned, found.object) == (
        True,
        frozenset(),
        {"spec.typo"},
        {"spec": {}},
    )


def test_causes_are_fields_without_the_remark_that_rules_were_not_checked() -> None:
    found = verdict(
        refusal(
            ("spec.engine.dtype", "Unsupported value"),
            (".spec.replicas", "accessor error"),
            (WHOLE_OBJECT, "Checked value must be of type integer with format int32 in spec.drain.seconds"),
            (WHOLE_OBJECT, "some validation rules were not checked because the object was invalid; correct …"),
        )
    )
    assert found.fields == {"spec.engine.dtype", "spec.replicas", "spec.drain.seconds"}
    assert len(found.sentences) == 3


def test_a_rule_on_the_whole_object_has_no_field() -> None:
    assert verdict(refusal((WHOLE_OBJECT, "metadata.name must be short"))).fields == {WHOLE_OBJECT}


def test_strict_refusals_name_their_fields_in_the_message() -> None:
    message = 'strict decoding error: unknown field "spec.a", unknown field "spec.b.c"'
    found = verdict(refusal(message=message, code=400))
    assert (found.code, found.fields, found.sentences) == (400, {"spec.a", "spec.b.c"}, (message,))
