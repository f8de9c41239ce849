"""Where an image or a chart comes from: an in-toto statement with SLSA's provenance 1.0. It is not signed.

https://slsa.dev/spec/v1.0/provenance
"""

import json
import os
from collections.abc import Mapping
from typing import Any

TYPE = "application/vnd.in-toto+json"
"""Of the document."""
_OURS = "https://fairlead.dev/provenance"
"""Beginning of names, under which nothing is served."""


def provenance(
    name: str,
    digest: str,
    kind: str,
    parameters: Mapping[str, Any],
    sources: Mapping[str, str],
    environment: Mapping[str, str] = os.environ,
) -> bytes:
    """The document. `name`: with registry and repository. `kind`: `images` or `chart`. `sources`: URI → digest with its
    algorithm before a colon."""
    named = [
        {"uri": uri, "digest": {algorithm: value}}
        for uri, (algorithm, _, value) in ((uri, each.partition(":")) for uri, each in sources.items())
    ]
    told = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": f"{_OURS}/{kind}/v1",
                "externalParameters": dict(parameters),
                "resolvedDependencies": named,
            },
            "runDetails": {"builder": {"id": builder(environment)}},
        },
    }
    return json.dumps(told, indent=1).encode()


def builder(environment: Mapping[str, str]) -> str:
    """The run of GitHub's that does it; elsewhere a person."""
    names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
    server, repository, number = (environment.get(each, "") for each in names)
    if server and repository and number:
        return f"{server}/{repository}/actions/runs/{number}"
    return f"{_OURS}/by-hand"
