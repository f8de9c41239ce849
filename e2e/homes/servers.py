"""A pod in which a program serves HTTP. Pure: objects only."""

from collections.abc import Mapping, Sequence

from homes.kubectl import OURS, Json

PORT = 9000
USER = 65532


def server(name: str, image: str, program: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Json:
    """`python -c program 0.0.0.0 PORT arguments…`; ready once it listens. It keeps the Pod Security Standard
    `restricted`, so any namespace takes it."""
    security = {
        "runAsNonRoot": True,
        "runAsUser": USER,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {
        "name": "server",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", program, "0.0.0.0", str(PORT), *arguments],
        "env": [{"name": key, "value": value} for key, value in environment.items()],
        "securityContext": security,
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
    }
    spec = {
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "containers": [container],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": OURS}, "spec": spec}
