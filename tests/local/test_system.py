"""The fleet's own programs as local mode runs them."""

from pathlib import Path

import pytest

from fairlead_local.system import Ports, system_deployments


@pytest.mark.parametrize("number", [0, 1])
def test_a_frozen_program_is_not_waited_for_as_long_as_one_that_drains(number: int) -> None:
    deployment = system_deployments(Ports(gateway=1, operator=2), Path("settings.yaml"), num_gateways=1)[number]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    probe = container["livenessProbe"]
    noticed = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert noticed + probe["terminationGracePeriodSeconds"] < 25
