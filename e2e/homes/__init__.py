"""Where the scenarios' fleet lives: on this machine alone, or on a Kubernetes cluster.

A scenario drives a `Fleet` and does not ask which home it has; what only one home can do is marked `local_only` or
`kubernetes_only`.
"""

from homes.fleet import Fleet, Load

__all__ = ["Fleet", "Load"]
