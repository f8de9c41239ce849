"""Writes the descriptors of the gateway's gRPC services from their .proto files.

`make grpc` calls it, and `tests/gateway/test_open_inference.py` compares.
"""

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

FOLDER = Path(__file__).parent.parent / "operator" / "src" / "fairlead" / "gateway" / "open_inference"
FILES = ("open_inference.proto", "health.proto")
DESCRIPTORS = FOLDER / "descriptors.binpb"


def descriptors() -> bytes:
    """A FileDescriptorSet. Raises RuntimeError where protoc refuses a file, and has said why."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / DESCRIPTORS.name
        if protoc.main(["protoc", f"--proto_path={FOLDER}", f"--descriptor_set_out={out}", *FILES]):
            raise RuntimeError("protoc failed")
        return out.read_bytes()


if __name__ == "__main__":
    DESCRIPTORS.write_bytes(descriptors())
    sys.stdout.write(f"{DESCRIPTORS}\n")
