"""Attention over the paged KV cache. `backend.AttentionBackend` is the door; each backend is one file behind it.

A backend decides the cache's memory layout, a sequence's next free block, and the metadata of a step.
"""
