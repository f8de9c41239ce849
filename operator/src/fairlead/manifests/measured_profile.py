"""The profile named in `engine.profile`, measured by `fairlead-engine characterise`. Pure.

It is copied into the engine pods' ConfigMap under a name made from its content: another profile is another
configuration, and the operator finds the engines' profile there.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from fairlead.api import names
from fairlead.api.conditions import Reason
from fairlead.api.llmdeployment import LLMDeployment
from fairlead.manifests.common import fingerprint
from fairlead.manifests.source import CannotBuild
from fairlead_common.wire.profiles import EngineProfile, ProfileUnreadable, decode_profile

_PREFIX = "profile-"


class ProfileFile(NamedTuple):
    """Of the engine's ConfigMap."""

    key: str
    text: str

    @property
    def path(self) -> str:
        """Where engines find it."""
        return f"{names.ENGINE_CONFIG_FOLDER}/{self.key}"


def profile_file(deployment: LLMDeployment, config_map: Mapping[str, Any] | None) -> ProfileFile | None:
    """The engines' profile; None = none is named. `config_map`: named in `engine.profile`, None = missing. Raises
    CannotBuild for a ConfigMap without a profile, or one that contradicts `engine`; engines check model and device."""
    wanted = deployment.spec.engine.profile
    if wanted is None:
        return None
    name = f"the ConfigMap {wanted.config_map!r}"
    if config_map is None:
        namespace = deployment.metadata.namespace
        advice = f"kubectl create configmap {wanted.config_map} -n {namespace} --from-file={wanted.key} makes it"
        raise _not_usable(f"there is no {name.removeprefix('the ')} in the namespace {namespace!r}: {advice}")
    text = (config_map.get("data") or {}).get(wanted.key)
    if not isinstance(text, str):
        found = ", ".join(sorted({**(config_map.get("data") or {}), **(config_map.get("binaryData") or {})}))
        raise _not_usable(f"{name} has no text under {wanted.key!r}, but {found or 'nothing'}: set engine.profile.key")
    try:
        profile = decode_profile(text.encode(), f"{wanted.key} of {name}")
    except ProfileUnreadable as error:
        raise _not_usable(f"{error}: write one with `fairlead-engine characterise`") from error
    _check_formats(deployment, profile)
    return ProfileFile(f"{_PREFIX}{fingerprint(text)}.json", text)


def mounted_profile(config_map: Mapping[str, Any]) -> EngineProfile | None:
    """The one in a ConfigMap that engines read; None = they have none."""
    for key, text in (config_map.get("data") or {}).items():
        if key.startswith(_PREFIX):
            try:
                return decode_profile(text.encode(), key)
            except ProfileUnreadable:  # of another version, in the middle of an upgrade
                return None
    return None


def _check_formats(deployment: LLMDeployment, profile: EngineProfile) -> None:
    engine = deployment.spec.engine
    for field, asked, measured in (
        ("dtype", engine.dtype, profile.dtype),
        ("quantization", engine.quantization, profile.quantization),
        ("kvCache.dtype", engine.kv_cache.dtype, profile.kv_cache_dtype),
    ):
        if asked is not None and asked not in ("auto", measured):
            raise _not_usable(
                f"it was measured with {field} {measured}, and engine.{field} is {asked}: measure this one with "
                "`fairlead-engine characterise`, or leave engine.profile out"
            )


def _not_usable(why: str) -> CannotBuild:
    return CannotBuild(f"engine.profile: {why}", Reason.PROFILE_NOT_USABLE)
