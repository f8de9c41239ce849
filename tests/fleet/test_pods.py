"""What pods say about themselves."""

from typing import Any

import pytest

from fairlead.fleet.pods import control_url


def gateway(address: str, *ports: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "sidecar"}, {"ports": list(ports)}]}, "status": {"podIP": address}}


@pytest.mark.parametrize(
    ("pod", "url"),
    [
        (gateway("10.0.0.1", {"name": "control", "containerPort": 9}), "http://10.0.0.1:9/metrics"),
        (gateway("10.0.0.1", {"name": "http", "containerPort": 9}), "http://10.0.0.1:8081/metrics"),
        (gateway("fd00::1", {"name": "control", "containerPort": 9}), "http://[fd00::1]:9/metrics"),
    ],
)
def test_a_gateway_is_asked_on_the_port_that_is_named_for_control(pod: dict[str, Any], url: str) -> None:
    assert control_url(pod, "/metrics") == url
