"""What is served and what is alive: follows LLMDeployments and their engine pods, asks each engine what it is, and
follows its stream of blocks and loads.

`directory` and `pods` are pure; `kubernetes` and `engine_stream` do the I/O, and `replica_tasks` asks, and
starts and ends the following as replicas come and go. Users see one immutable `Directory` at a time and are told when
there is a new one; what engines stream goes to an `EngineListener`, tokenizers to `tokenizers`. Nothing here holds
requests or decides where they go. `gateways` is the other direction: what the autoscaler hears from the gateways.
"""
