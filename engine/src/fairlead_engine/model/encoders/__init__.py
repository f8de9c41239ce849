"""Encoders: models in which each token of a prompt sees tokens on both sides. Whole prompts in, hidden states out.

A file for each kind of layer; the families by the architecture in `config.json` are in `registry`.
"""
