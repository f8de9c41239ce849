"""Programs of a local fleet: the system's own, and images that stand for a command of this machine."""

from pathlib import Path

import pytest

from fairlead_local.command import add_arguments
from fairlead_local.kubelet.environment import OWN_IMAGES, ImageNotFound, find_program, stand_in, words_of
from fairlead_local.system import Ports, system_deployments


@pytest.mark.parametrize("number", [0, 1])
def test_a_frozen_program_is_not_waited_for_as_long_as_one_that_drains(number: int) -> None:
    deployment = system_deployments(Ports(gateway=1, operator=2), Path("settings.yaml"), num_gateways=1)[number]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    probe = container["livenessProbe"]
    noticed = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert noticed + probe["terminationGracePeriodSeconds"] < 25


def test_an_images_containers_run_the_program_that_stands_in_for_it() -> None:
    name, program = stand_in("docker.io/vllm/vllm-openai:v0.22.0=python -m 'a fake'")
    images = {**OWN_IMAGES, name: program}
    found = find_program(images, "vllm/vllm-openai@sha256:00")
    assert found.entrypoint == ("python", "-m", "a fake")
    assert words_of(found, {"image": "vllm/vllm-openai", "command": ["vllm"], "args": ["serve", "x"]}) == ["serve", "x"]
    with pytest.raises(ImageNotFound):
        find_program(OWN_IMAGES, "vllm/vllm-openai")


@pytest.mark.parametrize("text", ["vllm", "=vllm", "vllm/vllm-openai=", "x='"])
def test_what_is_no_stand_in_is_refused_with_an_example(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["up", "--stand-in", text])
    assert "--stand-in" in capsys.readouterr().err
