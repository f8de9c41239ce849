"""Paths of servers that are not ours, beside those that every engine has.

Gateways and fronts pass their requests on as they are, to any replica, since the prompts are not read.
"""

from collections.abc import Mapping

FORM_PATHS = ("/v1/audio/transcriptions", "/v1/audio/translations")
"""Bodies are forms with a file; those of the others are JSON."""
OWN_PATHS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("/pooling", *FORM_PATHS),
    "sglang": ("/v1/audio/transcriptions",),
    "llama-cpp": (),
}
"""By the front's name of the server."""
ALL_OWN_PATHS = tuple(sorted({path for paths in OWN_PATHS.values() for path in paths}))
