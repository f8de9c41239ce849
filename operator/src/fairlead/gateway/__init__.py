"""The gateway: one OpenAI-compatible address in front of every LLMDeployment.

A request's way: app → parse → director → admission (queue, hold) → routing → proxy → upstream → client, observed at
the end. `Director.handle` is the file to read first. The gateway renders no prompts and stores nothing: several run
side by side.
"""
