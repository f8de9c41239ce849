"""The engine core: plans each step and hands the batch to the runner.

Read `engine.py` first: `Engine.step()` is the whole story. `scheduler.py` and `block_manager.py` decide, `step_cost.py`
learns the cost of steps, `load_gauge.py` reports, and `loop.py` runs the engine behind a channel. A server reaches the
core from another thread or process through a client (`client.py`). Token ids only: no text, no HTTP, no tensors above
the runner.
"""
