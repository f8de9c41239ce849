"""From a client's bytes to the pixels that a model takes: only HTTP processes of a model that sees need it."""
