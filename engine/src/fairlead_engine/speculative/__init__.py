"""Speculative decoding: guesses of what comes next, computed beside the next token, and kept as far as they are right.

Start at `drafting.Drafting`, which the scheduler asks. `methods.METHODS` lists the ways of guessing: `ngram.py` guesses
from the text itself, others have a `Guesser` in `runner`. `DraftLength` says how many guesses a sequence is worth,
`verified` which of them stand. Nothing here knows tensors.
"""
