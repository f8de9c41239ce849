"""Speculative decoding: drafts are computed beside the next token, and kept up to the first wrong one.

Start at `drafting.Drafting`, the scheduler's interface. `drafting.METHODS` lists the methods: `ngram.py` finds drafts
in the text itself, all others have a `Drafter` in `runner`. No tensors.
"""
