"""Common knowledge of operator and engine about models, each fact once: settings by name, defaults, shapes, sizes.

Nothing here imports torch, and nothing here reads a weight.
"""
