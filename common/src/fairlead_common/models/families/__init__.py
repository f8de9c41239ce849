"""The reading of `config.json` for each family of models; `registry.py` lists families by architecture."""
