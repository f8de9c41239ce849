"""The operations on the paged KV cache, one per file. These are in plain torch and run on any device.

They know tensors and slots, not requests. Keys and values of a layer lie in slabs [kv_heads, slots, head_dim], where
block b owns the slots from b x block size on: consecutive blocks are one stretch of memory, read in place.
"""
