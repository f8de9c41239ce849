"""What the dinghy is taught: a small world of facts, and the kinds of question that are asked about it.

Pure Python and deterministic: the trainer, the evaluator and the tests draw the same conversations from the same seed.
"""
