"""How a model that is elsewhere comes into pods: with which credentials, and where it is kept."""

from dataclasses import dataclass
from typing import Annotated

from fairlead.api.names import DNS_SUBDOMAIN_PATTERN
from fairlead.api.schema import Bytes, Constraints

_IMAGE_PATH = r"^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCredentials:
    """A Secret for downloads."""

    secret_name: Annotated[str, Constraints(pattern=DNS_SUBDOMAIN_PATTERN, max_length=253)]
    """Name of a Secret in the same namespace. Its keys become environment variables of downloads alone: HF_TOKEN,
    AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, OCI_USERNAME and OCI_PASSWORD, HTTPS_AUTHORIZATION, and the like. With
    cache.image, nodes pull with this Secret, so its type must be kubernetes.io/dockerconfigjson."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCache:
    """Where a downloaded model is kept for the next replica."""

    claim: Annotated[str | None, Constraints(pattern=DNS_SUBDOMAIN_PATTERN, max_length=253, default_text="none")] = None
    """A PersistentVolumeClaim of the same namespace, shared by all replicas; on several nodes it needs the access mode
    ReadWriteMany."""
    node: bool = False
    """Whether each node keeps the model in its own folder, named in the operator's settings (nodeModelsFolder)."""
    image: bool = False
    """Whether nodes pull an oci:// source like other images, and keep it: pods mount the source as an image volume
    (Kubernetes from 1.33 with the feature gate ImageVolume, on by default from 1.35), and download nothing."""
    image_path: Annotated[
        str | None, Constraints(pattern=_IMAGE_PATH, max_length=512, default_text="the image's root")
    ] = None
    """Path of the model in the image, such as models/barge: its folder, or the file for llama.cpp's server."""
    size: Annotated[Bytes | None, Constraints(default_text="no limit but the volume's own")] = None
    """Most space for downloaded models, such as 100Gi. Models unused for longest make room; never a model that an
    engine runs from."""
