"""Quantised weights: one file for each format of a linear layer, and the checkpoints' stored layouts.

`weights` asks `source` for a layer's format, reads integers and scales, and lets the format make the layer.
"""
