"""Quantised weights: one file for each format in which a linear layer can hold them, and what checkpoints store.

`weights` asks which format a layer has (`source`), gets its integers and scales, and lets the format make the layer.
"""
