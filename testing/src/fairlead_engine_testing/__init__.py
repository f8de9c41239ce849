"""Fakes for testing code that uses the engine: no weights, no tensors.

`ScriptedEngine` stands in for a whole engine behind a server, `FakeRunner` for the model below the core, and
`FakeClock` for time. `fake_engine.py` puts a real engine on a fake runner, here or in a child process.
"""

from fairlead_engine_testing.fake_clock import FakeClock
from fairlead_engine_testing.fake_runner import FakeModelConfig, FakeRunner
from fairlead_engine_testing.requests import make_request
from fairlead_engine_testing.scripted_engine import Script, ScriptedEngine, answer, echo, scripted_info

__all__ = [
    "FakeClock",
    "FakeModelConfig",
    "FakeRunner",
    "Script",
    "ScriptedEngine",
    "answer",
    "echo",
    "make_request",
    "scripted_info",
]
