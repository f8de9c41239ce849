"""kubectl as the scenarios drive it."""

import json
from pathlib import Path

import pytest
from homes.kubectl import Kubectl

from fairlead.api.names import CRD_NAME


class Client(Kubectl):
    """A kubectl that is a script."""

    patience = 10.0

    def __init__(self, folder: Path, script: str) -> None:
        self.kubeconfig = folder / "kubeconfig"
        file = folder / "kubectl"
        file.write_text(f"#!/bin/sh\nshift 4\n{script}")
        file.chmod(0o755)
        self.program = str(file)


@pytest.mark.parametrize(("labels", "is_refused"), [({}, True), ({"fairlead.dev/e2e": "true"}, False)])
def test_a_crd_of_somebody_else_ends_the_run_before_anything_is_touched(
    tmp_path: Path, labels: dict[str, str], is_refused: bool
) -> None:
    found = json.dumps({"metadata": {"name": "llmdeployments.fairlead.dev", "labels": labels}})
    calls = tmp_path / "calls"
    client = Client(
        tmp_path,
        f"echo $1 $2 >> {calls}\n"
        # its objects cannot be listed at the first try
        f"[ $2 != {CRD_NAME} ] || [ $(grep -c 'get {CRD_NAME}' {calls}) = 2 ] || exit 1\n"
        f"[ $1 = get ] && echo '{found}' || cat\n",
    )
    if is_refused:
        with pytest.raises(pytest.exit.Exception, match="not the suite's"):
            client.apply_crd()
    else:
        assert client.apply_crd() is False
    made = ["replace --validate=strict", *[f"get {CRD_NAME}"] * 2]
    assert calls.read_text().splitlines() == ["get crd", *made * (not is_refused)]
