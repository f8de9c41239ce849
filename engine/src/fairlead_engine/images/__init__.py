"""From a client's bytes to the pixels of a model; only HTTP processes of models with vision import it."""
