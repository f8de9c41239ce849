"""Which commands `fairlead` has: its own, and those of other distributions that are installed beside it."""

from importlib.metadata import entry_points
from typing import NamedTuple

GROUP = "fairlead.commands"
"""Entry points of this group are `Command`s, named as they are typed."""


class Command(NamedTuple):
    """A module with `add_arguments(parser)` and `run(args) -> exit status`, and one line for the help."""

    module: str
    summary: str


OWN = {
    "operator": Command("fairlead.controller.operator_command", "reconcile LLMDeployments on a Kubernetes cluster"),
    "gateway": Command(
        "fairlead.gateway.gateway_command", "serve every LLMDeployment behind one OpenAI-compatible address"
    ),
    "chat": Command("fairlead.cli.chat", "talk to a model through a gateway"),
    "bench": Command("fairlead.cli.bench", "put a load on a gateway and measure what comes of it"),
    "status": Command(
        "fairlead.cli.status_command", "what is served and how it is, who looks after it, and what nobody looks after"
    ),
    "top": Command(
        "fairlead.cli.top", "watch fleets live: replicas, queues, first tokens, and what the autoscaler says"
    ),
    "completion": Command(
        "fairlead.cli.completion", "print what makes a shell complete these commands: bash, zsh or fish"
    ),
}
"""A command's module is imported only when it is chosen."""


def find_commands() -> dict[str, Command]:
    """Every command by its name. Ours cannot be replaced."""
    others = {point.name: point for point in entry_points(group=GROUP) if point.name not in OWN}
    return OWN | {name: point.load() for name, point in others.items()}
