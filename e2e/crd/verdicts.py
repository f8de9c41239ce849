"""What an API server says about an object, in a form in which two servers can be compared."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

Json = dict[str, Any]

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
_NOT_CHECKED = "some validation rules were not checked because the object was invalid"
_FORMAT = re.compile(r"Checked value must be of type \w+ with format \w+ in (?P<field>\S+)$")
_UNKNOWN = re.compile(r'unknown field "(?P<field>[^"]+)"')
_VALUE = re.compile(r'(?<=^Invalid value: )"(?:[^"\\]|\\.)*": ')
"""The value that broke a rule, or its kind; servers before 1.35 say it."""
WHOLE_OBJECT = "<nil>"
"""The field of a cause that is about the object as a whole."""


@dataclass(frozen=True)
class Verdict:
    """Whether an object was taken, and the fields that speak against it."""

    accepted: bool
    code: int
    fields: frozenset[str]
    """Of every cause; of unknown fields where strict validation refused."""
    sentences: tuple[str, ...] = field(compare=False, default=())
    """What each cause says. Wording is no part of the comparison."""
    warned: frozenset[str] = frozenset()
    """Unknown fields that were dropped with a warning."""
    object: Mapping[str, Any] = field(compare=False, default_factory=dict)
    """The object as it was taken; the Status where it was not."""


def verdict(reply: httpx.Response) -> Verdict:
    """Reads the answer to a request that writes."""
    body = reply.json()
    warned = frozenset(_UNKNOWN.findall(reply.headers.get("Warning", "").replace('\\"', '"')))
    if reply.status_code < 400:
        return Verdict(True, reply.status_code, frozenset(), (), warned, body)
    causes = [_cause(c) for c in body.get("details", {}).get("causes", []) if _NOT_CHECKED not in c["message"]]
    sentences = tuple(message for _, message in causes) or (body["message"],)
    fields = {name for name, _ in causes} | set(_UNKNOWN.findall(body["message"]))
    return Verdict(False, reply.status_code, frozenset(fields), sentences, warned, body)


def _cause(cause: Mapping[str, str]) -> tuple[str, str]:
    """Field and message. The real server names the field of a wrong number format in its sentence alone, and begins the
    paths of the scale subresource, which it checks on every write, with a dot; admission policies name none."""
    in_sentence = _FORMAT.search(cause["message"])
    where = in_sentence["field"] if in_sentence else cause.get("field", "").removeprefix(".")
    return where, _VALUE.sub("", cause["message"])


class Collection:
    """The objects of one custom kind in one namespace, at one server."""

    def __init__(self, client: httpx.Client, path: str) -> None:
        self._client = client
        self.path = path

    def judge(self, body: Json, **query: str) -> Verdict:
        """What a creation would come to; nothing is stored."""
        return verdict(self._client.post(self.path, json=body, params={"dryRun": "All"} | query))

    def create(self, body: Json, **query: str) -> Verdict:
        return verdict(self._client.post(self.path, json=body, params=query))

    def apply(self, name: str, body: Json, manager: str, part: str = "", *, force: bool = False) -> Verdict:
        """Server-side apply, of the object or of a part of it such as `status`."""
        query = {"fieldManager": manager, "force": str(force).lower()}
        headers = {"Content-Type": "application/apply-patch+yaml"}
        return verdict(self._client.patch(self._one(name, part), json=body, params=query, headers=headers))

    def merge(self, name: str, patch: Json, part: str = "", **query: str) -> Verdict:
        """A merge patch, of the object or of a part of it such as `status` or `scale`."""
        headers = {"Content-Type": "application/merge-patch+json"}
        return verdict(self._client.patch(self._one(name, part), json=patch, params=query, headers=headers))

    def replace(self, name: str, body: Json, part: str = "") -> Verdict:
        return verdict(self._client.put(self._one(name, part), json=body))

    def get(self, name: str, part: str = "") -> Json:
        found: Json = self._client.get(self._one(name, part)).raise_for_status().json()
        return found

    def delete(self, name: str) -> None:
        self._client.delete(self._one(name, "")).raise_for_status()

    def table(self) -> Json:
        """The list as kubectl asks for it."""
        accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
        found: Json = self._client.get(self.path, headers=accept).raise_for_status().json()
        return found

    def _one(self, name: str, part: str) -> str:
        return f"{self.path}/{name}" + (f"/{part}" if part else "")
