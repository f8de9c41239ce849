"""A fleet on one machine: a small Kubernetes API, its controllers, and a kubelet that runs containers as processes."""

from fairlead.cli.main import Command

__version__ = "0.1.0"
LOCAL = Command("fairlead_local.command", "a whole fleet on this machine, without a cluster")
DEMO = Command(
    "fairlead_local.demo.story", "show a local fleet from `kubectl apply` to an answer, and take it down again"
)
