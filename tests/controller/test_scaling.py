"""How a status is written to an API server whose CRD is older than the operator."""

import re
from collections.abc import Mapping
from typing import Any

import pytest

from fairlead.controller.scaling import UNKNOWN_SECONDS, SubresourceWriter, unknown_fields, without
from fairlead.kube.client import KubeError

BODY = {"metadata": {"name": "dinghy", "namespace": "ns", "uid": "u-1"}}
STATUS = {
    "replicas": 1,
    "url": "http://gateway",
    "startup": {"total": "3s", "pod": "a"},
    "conditions": [{"type": "Ready", "observedGeneration": 1}, {"type": "Fits", "observedGeneration": 1}],
}


class OldServer:
    """Names one field that it does not know, of each refusal, as API servers do of the fields of one object."""

    def __init__(self, *unknown: str) -> None:
        self.unknown = set(unknown)
        self.written: list[Mapping[str, Any]] = []
        self.num_asked = 0

    async def apply(self, resource: object, obj: Mapping[str, Any], *_: object, **options: object) -> None:
        self.num_asked += 1
        for field in sorted(self.unknown):
            if without(obj["status"], {field}) != obj["status"]:
                path = field.replace("conditions.", 'conditions[type="Ready"].')
                message = f"failed to create typed patch object (ns/dinghy): .{path}: field not declared in schema"
                raise KubeError(500, "Unknown", message)
        self.written.append(obj["status"])


async def test_fields_that_the_crd_has_not_are_left_out_told_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    server, now = OldServer("status.url", "status.startup.pod", "status.conditions.observedGeneration"), [0.0]
    writer = SubresourceWriter(server, clock=lambda: now[0])  # type: ignore[arg-type]
    await writer.write_status(BODY, STATUS)
    rest = {"replicas": 1, "startup": {"total": "3s"}, "conditions": [{"type": "Ready"}, {"type": "Fits"}]}
    assert server.written == [rest]
    assert set(writer.left_out) == server.unknown
    told = " ".join(record.message for record in caplog.records)
    assert all(field in told for field in server.unknown)
    assert "The CRD is older than this operator" in told

    asked, lines = server.num_asked, len(caplog.records)
    await writer.write_status(BODY, STATUS)
    assert server.num_asked == asked + 1, "it is known meanwhile"
    now[0] += UNKNOWN_SECONDS
    await writer.write_status(BODY, STATUS)
    assert server.written == [rest] * 3
    assert len(caplog.records) == lines, "told once"

    server.unknown.clear()
    now[0] += UNKNOWN_SECONDS
    await writer.write_status(BODY, {"replicas": 2})
    assert len(writer.left_out) == 3, "a status without these fields says nothing of them"
    await writer.write_status(BODY, STATUS)
    assert (server.written[-1], writer.left_out) == (STATUS, ())


async def test_other_refusals_are_raised() -> None:
    class Refusing(OldServer):
        async def apply(self, *_: object, **options: object) -> None:
            raise KubeError(500, "InternalError", "oops")

    with pytest.raises(KubeError, match="oops"):
        await SubresourceWriter(Refusing()).write_status(BODY, STATUS)  # type: ignore[arg-type]


def test_each_field_is_found_in_a_list_of_errors() -> None:
    message = """failed to create typed patch object (ns/dinghy; fairlead.dev/v1alpha1, Kind=LLMDeployment): errors:
  .status.conditions[type="Ready"].observedGeneration: field not declared in schema
  .status.conditions[type="Fits"].observedGeneration: field not declared in schema
  .status.adapters[name="a"].progress: field not declared in schema"""
    assert unknown_fields(message) == {"status.conditions.observedGeneration", "status.adapters.progress"}
    assert not unknown_fields(re.sub("not declared", "of the wrong type", message))
