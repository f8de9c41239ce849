"""A small Kubernetes API server: enough of the real HTTP API for kopf, the official Python client and kubectl."""
