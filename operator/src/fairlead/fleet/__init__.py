"""What is served and what is alive: follows LLMDeployments and their engine pods, and asks each engine for its limits.

`pool`, `directory`, `models` and `pods` are pure; `kubernetes` and `model_info` do the I/O. Users see one immutable
`Directory` at a time and are told when there is a new one. Nothing here holds requests or decides where they go.
`gateways` and `gateway_metrics` are the other direction: what the autoscaler hears from the gateways.
"""
