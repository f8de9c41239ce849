"""What `config.json` says of each family of models; `registry.py` has them by architecture."""
