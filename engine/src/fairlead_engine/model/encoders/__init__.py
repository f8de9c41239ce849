"""Encoders: models in which each token of a prompt sees all others; `encoder.Encoder` is one, the rest makes them."""
