"""A fleet on one machine: a small Kubernetes API, its controllers, and a kubelet that runs containers as processes."""
