"""FakeEngine: a server on a real socket that speaks the engine's side of the model-server protocol, with no model
behind it.

For tests of whatever stands in front of engines. It answers chats and completions with given tokens, has the slots, the
queue and the prefix cache of a real engine and tells of them as one does, can take the time that real steps would take,
records what it was sent, notices clients that leave, and misbehaves on request: full, draining, silent, slow, dying,
forgetful. `python -m fairlead_testing.fake_engine` is one as a process of its own.

Its modules: `core` (what it computes, an `EngineModel` of the simulator), `blocks_stream` and `loads` (what it tells
of it), `prompts` and `answers` (tokens in and out), `engine` (HTTP and all misbehaviour).
"""

from fairlead_testing.fake_engine.engine import DEFAULT_LIMITS, Death, FakeEngine, Pace, Refusal

__all__ = ["DEFAULT_LIMITS", "Death", "FakeEngine", "Pace", "Refusal"]
