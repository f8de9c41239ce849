"""The gateway: one OpenAI-compatible address in front of every LLMDeployment.

The way of a request: app → parse → director → prompts (tokenise) → admission (queue, hold) → routing → proxy → HTTP
client, with observers on the way. Read `Director.handle` first. Gateways share no state: several run side by side, and
each learns the engines' blocks and loads from the engines' own streams.
"""
