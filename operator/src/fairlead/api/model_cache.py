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
    cache.image nodes pull with it, so it must be of the type kubernetes.io/dockerconfigjson."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCache:
    """Where a downloaded model is kept, so that the next replica finds it."""

    claim: Annotated[str | None, Constraints(pattern=DNS_SUBDOMAIN_PATTERN, max_length=253, default_text="none")] = None
    """A PersistentVolumeClaim of the same namespace that all replicas share; on several nodes it needs the access mode
    ReadWriteMany."""
    node: bool = False
    """Whether each node keeps the model in a folder of its own, which the operator's settings name (nodeModelsFolder).
    """
    image: bool = False
    """Whether nodes pull an oci:// source as they pull images, and keep it among them: pods mount it as an image volume
    (Kubernetes from 1.33 with the feature gate ImageVolume, which is on from 1.35), and download nothing."""
    image_path: Annotated[
        str | None, Constraints(pattern=_IMAGE_PATH, max_length=512, default_text="the image's root")
    ] = None
    """Where in that image the model is, such as models/barge: its folder, or the file that llama.cpp's server reads.
    """
    size: Annotated[Bytes | None, Constraints(default_text="no limit but the volume's own")] = None
    """Most that downloaded models may take there, such as 100Gi. To make room, those go first that were not used for
    longest; never one that an engine runs from."""
