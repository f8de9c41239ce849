"""The table of remotes: which module serves a scheme. Each is imported when a source of it is downloaded."""

from collections.abc import Callable
from importlib import import_module
from typing import cast

from fairlead_engine.download.remote import DownloadError, Remote
from fairlead_protocol.downloads import DownloadFailure
from fairlead_protocol.model_sources import Source

REMOTES: dict[str, str] = {
    "hf": "fairlead_engine.download.hub:HubRemote",
    "https": "fairlead_engine.download.web:WebRemote",
    "s3": "fairlead_engine.download.buckets:BucketRemote",
    "gs": "fairlead_engine.download.buckets:BucketRemote",
    "az": "fairlead_engine.download.buckets:BucketRemote",
    "oci": "fairlead_engine.download.oci_registry:OciRemote",
}
"""Scheme → `MODULE:CLASS`; the class is called with the `Source`, and takes credentials from the environment."""


def remote_of(source: Source) -> Remote:
    """The remote of a source. Raises DownloadError where its scheme has none."""
    if (place := REMOTES.get(source.scheme)) is None:
        known = ", ".join(f"{scheme}://" for scheme in REMOTES)
        raise DownloadError(
            DownloadFailure.SOURCE_NOT_SUPPORTED, f"{source.scheme}:// is not downloaded; these are: {known}"
        )
    module, _, name = place.partition(":")
    return cast(Callable[[Source], Remote], getattr(import_module(module), name))(source)
