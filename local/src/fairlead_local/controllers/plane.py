"""The control plane: every controller a local fleet has."""

from pathlib import Path

from fairlead_local.apiserver.operations import Operations
from fairlead_local.controllers.claims import ClaimController
from fairlead_local.controllers.deployments import DeploymentController
from fairlead_local.controllers.events import EventExpiry
from fairlead_local.controllers.garbage import GarbageCollector
from fairlead_local.controllers.loop import Controller
from fairlead_local.controllers.namespaces import DefinitionController, NamespaceController
from fairlead_local.controllers.replicasets import ReplicaSetController
from fairlead_local.controllers.scheduler import PodScheduler


def control_plane(operations: Operations, claims_folder: Path) -> list[Controller]:
    """All of them, over one API; claims get their folders below `claims_folder`."""
    return [
        GarbageCollector(operations),
        NamespaceController(operations),
        DefinitionController(operations),
        DeploymentController(operations),
        ReplicaSetController(operations),
        PodScheduler(operations),
        ClaimController(operations, claims_folder),
        EventExpiry(operations),
    ]
