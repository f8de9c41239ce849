"""Whether a model fits what a replica gets, by arithmetic on its `config.json` alone. Pure: nothing is asked of any
network, disk or engine, and the engine's own code is never imported; tests hold this to what the engine measures."""
