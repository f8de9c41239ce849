"""The weights of GGUF files, which `fairlead_protocol.models.gguf_file` finds in them.

`gguf_blocks` knows how numbers are packed, `gguf_config` says what a folder's `config.json` would, and
`gguf_checkpoint` has the tensors under Hugging Face's names.
"""
