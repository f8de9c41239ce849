"""A genuine single-node Kubernetes for tests: built once from Debian's source package, started and stopped in seconds.

`python -m cluster` is the command line, `cluster.node.Node` the same for Python. Nothing here knows what
is tested on it.
"""
