"""One model at every kind of source that downloads know, each on this machine, with credentials that it wants."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from fairlead_engine_testing.file_server import HERE, FileServer, Listening
from fairlead_engine_testing.loopback_buckets import LoopbackBuckets, loopback_buckets
from fairlead_engine_testing.loopback_hub import HubModel, LoopbackHub, loopback_hub
from fairlead_engine_testing.loopback_registry import TITLE, Layer, LoopbackRegistry, loopback_registry
from fairlead_engine_testing.loopback_web import LoopbackWeb, loopback_web

SCHEMES = ("hf", "https", "s3", "gs", "az", "oci")
PASSWORD = "hidden-word-of-a-test"


@dataclass
class Place:
    """Where a model is."""

    source: str
    environment: Mapping[str, str]
    """Credentials and addresses, as a Secret would have them."""
    server: FileServer | LoopbackWeb

    @property
    def num_asked(self) -> int:
        """Requests for files so far, listings apart."""
        if isinstance(self.server, LoopbackWeb):
            return sum(method == "GET" and path.endswith(".safetensors") for method, path, _ in self.server.asked)
        return len(self.server.asked)


@contextmanager
def model_place(scheme: str, files: Mapping[str, bytes], listening: Listening) -> Iterator[Place]:
    """The files as `models/barge` of a source of this scheme. `listening`: with a certificate for `https`, which others
    use as well where they have one; but registries on this machine are spoken to without TLS."""
    if scheme == "oci" and listening.address == HERE.address:
        listening = replace(listening, certificate=None)
    sums = "".join(f"{hashlib.sha256(content).hexdigest()}  {path}\n" for path, content in files.items())
    below = {f"models/barge/{path}": content for path, content in files.items()}
    below["models/barge/SHA256SUMS"] = sums.encode()
    certificate = listening.certificate
    trust = {} if certificate is None else {"ca.crt": certificate.authority.read_text()}
    if scheme == "hf":
        hub = LoopbackHub({"models/barge": HubModel({"main": dict(files)}, is_private=True)}, token=PASSWORD)
        with loopback_hub(hub, listening):
            yield Place("hf://models/barge", trust | {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": PASSWORD}, hub)
    elif scheme == "https":
        web = LoopbackWeb(below, authorization=f"Bearer {PASSWORD}")
        with loopback_web(web, listening):
            variables = trust | {"HTTPS_AUTHORIZATION": f"Bearer {PASSWORD}"}
            yield Place(f"https://{web.host}/models/barge", variables, web)
    elif scheme == "oci":
        registry = LoopbackRegistry(login="bearer", pair=f"me:{PASSWORD}")
        layers = [Layer(content, annotations={TITLE: path}) for path, content in files.items()]
        registry.push("models/barge", "v1", layers)
        with loopback_registry(registry, listening):
            config = {"auths": {registry.host: {"username": "me", "password": PASSWORD}}}
            variables = trust | {".dockerconfigjson": json.dumps(config)}
            yield Place(f"oci://{registry.host}/models/barge:v1", variables, registry)
    else:
        buckets = LoopbackBuckets(buckets={"weights": below}, secret=PASSWORD)
        with loopback_buckets(buckets, listening):
            yield Place(f"{scheme}://weights/models/barge", trust | _variables(scheme, buckets.endpoint), buckets)


def _variables(scheme: str, endpoint: str) -> dict[str, str]:
    if scheme == "s3":
        return {"AWS_ENDPOINT_URL": endpoint, "AWS_ACCESS_KEY_ID": PASSWORD, "AWS_SECRET_ACCESS_KEY": "a"}
    if scheme == "gs":
        return {"GOOGLE_BASE_URL": endpoint, "GOOGLE_BEARER_TOKEN": PASSWORD}
    signature = f"sv=2022-11-02&sr=c&sp=rl&sig={PASSWORD}"
    return {
        "AZURE_ENDPOINT": endpoint,
        "AZURE_STORAGE_ACCOUNT_NAME": "acme",
        "AZURE_STORAGE_SAS_TOKEN": signature,
    }
