"""One file for each family of models: what differs from the shared layers, and how its `config.json` is read."""
