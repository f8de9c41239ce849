"""FakeVllm: vLLM's server as others see it, with no model behind it.

It has vLLM's OpenAI API, `/tokenize`, `/health`, `/version` and metrics, its KV events over ZMQ with replay, a prefix
cache, steps that take time, and a SIGTERM that cuts everything.

`python -m fairlead_testing.fake_vllm serve MODEL --…` takes vLLM's flags and is one as a process of its own.
"""

from fairlead_testing.block_publisher import Encoding
from fairlead_testing.fake_vllm.vllm_api import FakeVllm

__all__ = ["Encoding", "FakeVllm"]
