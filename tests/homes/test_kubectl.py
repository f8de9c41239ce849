"""kubectl as the scenarios drive it, whichever of several versions it is."""

import json
from pathlib import Path

import pytest
from homes.kubectl import Kubectl

from fairlead.api.names import CRD_NAME


class Client(Kubectl):
    """A kubectl of some version, which prints the command that it was given."""

    patience = 10.0

    def __init__(self, folder: Path, minor: str) -> None:
        self.kubeconfig = folder / "kubeconfig"
        file = folder / "kubectl"
        version = f'{{"clientVersion": {{"major": "1", "minor": "{minor}"}}}}'
        file.write_text(f"#!/bin/sh\nshift 4\nif [ $1 = version ]; then echo '{version}'; else echo \"$@\"; fi\n")
        file.chmod(0o755)
        self.program = str(file)


@pytest.mark.parametrize(
    ("minor", "asked"),
    [
        ("20", "get events --field-selector involvedObject.kind=LLMDeployment,involvedObject.name=boat"),
        ("26", "events --for llm/boat"),
        ("32+", "events --for llm/boat"),
    ],
)
def test_events_are_listed_as_this_kubectl_can(tmp_path: Path, minor: str, asked: str) -> None:
    assert Client(tmp_path, minor).events("boat").strip() == asked


@pytest.mark.parametrize(("labels", "is_refused"), [({}, True), ({"fairlead.dev/e2e": "true"}, False)])
def test_a_crd_of_somebody_else_ends_the_run_before_anything_is_touched(
    tmp_path: Path, labels: dict[str, str], is_refused: bool
) -> None:
    found = json.dumps({"metadata": {"name": "llmdeployments.fairlead.dev", "labels": labels}})
    client, calls = Client(tmp_path, "32"), tmp_path / "calls"
    Path(client.program).write_text(
        f"#!/bin/sh\nshift 4\necho $1 $2 >> {calls}\n"
        # its objects cannot be listed at the first try
        f"[ $2 != {CRD_NAME} ] || [ $(grep -c 'get {CRD_NAME}' {calls}) = 2 ] || exit 1\n"
        f"[ $1 = get ] && echo '{found}' || cat\n"
    )
    if is_refused:
        with pytest.raises(pytest.exit.Exception, match="not the suite's"):
            client.apply_crd()
    else:
        assert client.apply_crd() is False
    made = ["replace --validate=false", "wait --for=condition=Established", *[f"get {CRD_NAME}"] * 2]
    assert calls.read_text().splitlines() == ["get crd", *made * (not is_refused)]
