"""The controllers a Kubernetes control plane runs: workloads, garbage collection, namespaces, claims."""
