"""Decoders that have no family of ours: transformers' own modelling code, with our attention over our cache.

Begin at `foreign_decoder.ForeignDecoder`. transformers is imported when such a model is read, and never before.
"""
