"""Adapters of linear layers: small products beside the model's own, for the rows of requests with an adapter."""
