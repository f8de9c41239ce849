"""The protocol's messages as classes of protobuf, from the descriptors of `docs/generate_grpc.py`.

The descriptors have a private pool: protobuf refuses two definitions of a name in the default pool, and clients of the
protocol register the same names. Every version of protobuf reads descriptors, unlike generated Python.
"""

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from fairlead.gateway.openai.errors import bad_request

FILE = Path(__file__).with_name("descriptors.binpb")

_pool: Any = DescriptorPool()
for _file in descriptor_pb2.FileDescriptorSet.FromString(FILE.read_bytes()).file:
    _pool.Add(_file)

Message = Any
"""A message of the protocol; protobuf makes the classes at run time."""


def message(name: str) -> Any:
    """The class of messages of this full name, such as `inference.ModelInferRequest`."""
    return GetMessageClass(_pool.FindMessageTypeByName(name))


def methods(service: str) -> dict[str, Any]:
    """The class of each method's requests, by the method's name."""
    found = _pool.FindServiceByName(service).methods
    return {method.name: GetMessageClass(method.input_type) for method in found}


ModelInferRequest = message("inference.ModelInferRequest")
ModelInferResponse = message("inference.ModelInferResponse")
ModelMetadataResponse = message("inference.ModelMetadataResponse")
ModelReadyResponse = message("inference.ModelReadyResponse")
ModelStreamInferResponse = message("inference.ModelStreamInferResponse")
ServerLiveResponse = message("inference.ServerLiveResponse")
ServerMetadataResponse = message("inference.ServerMetadataResponse")
ServerReadyResponse = message("inference.ServerReadyResponse")
HealthCheckResponse = message("grpc.health.v1.HealthCheckResponse")


def decoded(kind: Any, data: bytes) -> Message:
    """A message of this class. Raises OpenAIError (400)."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        name = kind.DESCRIPTOR.full_name
        raise bad_request(f"What came is not a message of the type {name}.") from error
