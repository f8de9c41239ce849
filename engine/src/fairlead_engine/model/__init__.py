"""Decoder-only language models: configuration, weights, layers. Called by the runner; knows no requests, no sampling.

Start at `decoder.Decoder.__call__`, the story of one forward pass. Checkpoints are read without transformers, except
for models without a family here (`fallback/`). `tokenizer_files.py` is for processes without torch, too.
"""
