"""The control plane: every controller a local fleet has."""

from pathlib import Path

from fairlead.local.apiserver.operations import Operations
from fairlead.local.controllers.claims import ClaimController
from fairlead.local.controllers.deployments import DeploymentController
from fairlead.local.controllers.events import EventExpiry
from fairlead.local.controllers.garbage import GarbageCollector
from fairlead.local.controllers.loop import Controller
from fairlead.local.controllers.namespaces import DefinitionController, NamespaceController
from fairlead.local.controllers.replicasets import ReplicaSetController
from fairlead.local.controllers.scheduler import Scheduler


def control_plane(operations: Operations, claims_folder: Path) -> list[Controller]:
    """All of them, over one API; claims get their folders below `claims_folder`."""
    return [
        GarbageCollector(operations),
        NamespaceController(operations),
        DefinitionController(operations),
        DeploymentController(operations),
        ReplicaSetController(operations),
        Scheduler(operations),
        ClaimController(operations, claims_folder),
        EventExpiry(operations),
    ]
