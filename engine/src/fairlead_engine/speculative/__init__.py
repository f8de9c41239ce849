"""Speculative decoding: guesses of what comes next, computed beside the next token, and kept as far as they are right.

Start at `drafting.Drafting`, which the scheduler asks. `ngram.py` guesses from the text itself, `DraftLength`
says how many guesses a sequence is worth, `verification.py` which of them stand. Nothing here knows tensors.
"""
