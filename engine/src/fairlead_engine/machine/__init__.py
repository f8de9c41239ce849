"""What the engine asks of the machine that it runs on: processes beside its own, and memory. Torch is not needed."""
