"""Models of hostile authors that the fleet serves beside the one that is soaked: none of them may be felt there."""

import random
from pathlib import Path
from typing import Any

from homes.kubectl import Json
from homes.local import HOSTILE_IMAGE

import fairlead_engine.demo
from fairlead_engine_testing import hostile_authors

AUTHORS = {f"soak-{write.__name__.replace('_', '-')}": write for write in hostile_authors.AUTHORS}
"""By the name under which its model is served."""
ENGINE = "soak-hostile-engine"
NAMES = (*AUTHORS, ENGINE)
DINGHY = Path(fairlead_engine.demo.__file__).parent / "dinghy"


def deployments(folder: Path, draw: random.Random) -> list[Json]:
    """One of each kind; their models are written to `folder`."""
    found = []
    for name, write in AUTHORS.items():
        hostile_authors.write(write, draw, DINGHY, folder / name)
        found.append(_deployment(name, f"file://{folder / name}", {"maxModelLen": 512, "kvCache": {"memory": "4Mi"}}))
    return [*found, _deployment(ENGINE, "demo://dinghy", {"image": f"{HOSTILE_IMAGE}:1"})]


def _deployment(name: str, source: str, engine: dict[str, Any]) -> Json:
    return {
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "LLMDeployment",
        "metadata": {"name": name},
        "spec": {
            "model": {"source": source},
            "engine": engine,
            "resources": {"requests": {"cpu": "50m", "memory": "512Mi"}},
            "routing": {"maxQueueTime": "5s", "coldStartTimeout": "15s"},  # of one that is refused when it is loaded
        },
    }
