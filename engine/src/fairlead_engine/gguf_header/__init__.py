"""What a GGUF file, llama.cpp's, says besides its weights; without torch, so that the HTTP process reads it, too.

`gguf_file` reads its bytes, `gguf_sizes` knows how much room tensors take, and `gguf_tokenizer` says what a folder's
`tokenizer.json` would. The weights are `model/gguf`'s.
"""
