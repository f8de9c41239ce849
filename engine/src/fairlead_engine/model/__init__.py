"""Decoder-only language models: configuration, weights, layers. The runner calls it; it knows no requests, no sampling.

Start at `decoder.Decoder.__call__`, the story of one forward pass. transformers is not needed to read a checkpoint,
unless its model has no family here (`fallback/`). `tokenizer_files.py` is for processes without torch, too.
"""
