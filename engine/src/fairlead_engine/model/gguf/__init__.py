"""The weights of GGUF files, which `fairlead_engine.gguf_header` finds in them.

`gguf_blocks` knows how numbers are packed, `gguf_config` says what a folder's `config.json` would, and
`gguf_checkpoint` has the tensors under Hugging Face's names.
"""
