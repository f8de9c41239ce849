"""Whether a model fits its replica, by arithmetic on `config.json` alone. Pure: no network, disk or engine, and no
import of the engine's code; tests compare with the engine's own measurements."""
