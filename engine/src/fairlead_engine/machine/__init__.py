"""The machine below the engine: child processes and memory. No torch."""
