"""Speculative decoding: guesses of what comes next, computed beside the next token, and kept as far as they are right.

Start at `drafting.Drafting`, which the scheduler asks. `drafting.METHODS` lists the ways of guessing: `ngram.py` finds
drafts in the text itself, the others have a `Drafter` in `runner`. Nothing here knows tensors.
"""
