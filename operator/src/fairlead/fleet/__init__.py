"""Follows LLMDeployments and their engine pods, asks each engine for its limits, and follows its stream of blocks and
loads.

`directory` and `pods` are pure; `kubernetes` and `engine_stream` do the I/O; `replica_tasks` asks and follows as
replicas come and go. Users see one immutable `Directory` at a time and hear of newer ones; streams go to an
`EngineListener`, tokenizers to a `TokenizerBook`. Requests are unknown here. `gateways` is the other direction: the
gateways' signals for the autoscaler.
"""
