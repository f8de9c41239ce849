"""The gateway: one OpenAI-compatible address in front of every LLMDeployment.

A request's way: app → parse → director → prompts (tokenise) → admission (queue, hold) → routing → proxy → HTTP
client, observed as it goes. `Director.handle` is the file to read first. The gateway keeps nothing that another one
would need: several run side by side, and each learns from the engines' own streams what they hold.
"""
