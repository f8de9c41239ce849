"""LLMDeployment → Kubernetes objects. Pure: no I/O, no clock; the same input gives the same dicts.

Who calls it: the operator's `desired`. It does not know what exists on the cluster.
"""
