"""GGUF, the file of llama.cpp's models: one holds configuration, tokenizer and weights.

`gguf_file` reads its bytes, `gguf_blocks` knows how numbers are packed, `gguf_config` and `gguf_tokenizer` say what a
folder's `config.json` and `tokenizer.json` would, and `gguf_checkpoint` has the tensors under Hugging Face's names.
"""
