"""Decoders without a family here: transformers' own modelling code, with our attention over our cache.

Begin at `foreign_decoder.ForeignDecoder`. transformers is imported with the first such model, and never before.
"""
