"""The engine core: decides what each step computes and has it computed.

Read `engine.py` first: `Engine.step()` is the whole story. `scheduler.py` and `block_manager.py` decide, `step_cost.py`
learns what a step costs, `step_outputs.py` and `load_gauge.py` tell what came of it, `loop.py` runs the engine behind a
channel, and the clients are how a server reaches it from another thread or process. The core knows token ids only: no
text, no HTTP; and no tensors above the runner.
"""
