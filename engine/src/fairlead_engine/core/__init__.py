"""The engine core: decides what each step computes and has it computed.

Read `engine.py` first: `Engine.step()` is the whole story. `scheduler.py` and `block_manager.py` decide, `step_cost.py`
learns what a step costs, `load_gauge.py` says what came of it, and `loop.py` runs the engine behind a channel. A server
reaches it from another thread or process through a client (`client.py`). The core knows token ids only: no text, no
HTTP, and no tensors above the runner.
"""
