"""Attention over the paged KV cache. `backend.AttentionBackend` is the door; each backend is one file behind it.

A backend decides how the cache lies in memory, which free block a sequence gets, and what a step needs to know.
"""
