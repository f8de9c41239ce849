"""A hub for models on this machine: the part of the Hugging Face Hub's HTTP API that downloads use, and its CDN.

Like the hub's, large files redirect to another origin with a signed query, which refuses whoever sends it a token too.
It notes what was asked of it, and misbehaves on demand.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from fairlead_engine_testing.file_server import HERE, FileServer, Listening, in_a_thread

LARGE = 4096
"""Bytes from which on a file is in large-file storage, with a SHA-256."""
_SIGNATURE = "sig-5f2e"


@dataclass
class HubModel:
    """A model of the hub: its files by revision."""

    revisions: dict[str, dict[str, bytes]]
    """Branch or tag → path → content."""
    is_private: bool = False
    is_gated: bool = False


@dataclass
class LoopbackHub(FileServer):
    """`endpoint` is for HF_ENDPOINT. What a test changes counts from the next request on."""

    models: dict[str, HubModel] = field(default_factory=dict)
    token: str | None = None
    """That is valid; None = nobody's."""
    endpoint: str = ""
    cdn: str = ""

    def commit(self, name: str, revision: str) -> str:
        content = repr(sorted(self.models[name].revisions[revision].items())).encode()
        return hashlib.sha1(content, usedforsecurity=False).hexdigest()

    def _files(self, name: str, revision: str) -> dict[str, bytes] | None:
        for branch, files in self.models[name].revisions.items():
            if revision in (branch, self.commit(name, branch)):
                return files
        return None

    def _refusal(self, request: web.Request, name: str, *, content: bool) -> web.Response | None:
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if given and given != self.token:
            return _error(401, None, "Invalid credentials in Authorization header")
        model = self.models.get(name)
        if model is None or (model.is_private and not given):
            return _error(404 if given else 401, "RepoNotFound", "Repository not found")
        if content and model.is_gated and not given:
            return _error(401, "GatedRepo", f"Access to model {name} is restricted.")
        return None

    async def _model(self, request: web.Request) -> web.Response:
        if (unwell := self.is_unwell()) is not None:
            return unwell
        name = f"{request.match_info['organisation']}/{request.match_info['model']}"
        if (refusal := self._refusal(request, name, content=False)) is not None:
            return refusal
        revision = request.match_info.get("revision", "main")
        if (files := self._files(name, revision)) is None:
            return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        blobs = "blobs" in request.query
        siblings = [_sibling(path, content, blobs) for path, content in files.items()]
        branch = next(each for each, content in self.models[name].revisions.items() if content is files)
        about = {"_id": "1", "id": name, "modelId": name, "sha": self.commit(name, branch), "siblings": siblings}
        return web.json_response(about)

    async def _tree(self, request: web.Request) -> web.Response:
        """The other listing that the hub has, which its own client asks for."""
        files = self._files(f"{request.match_info['organisation']}/{request.match_info['model']}", "main") or {}
        entries = []
        for path, content in files.items():
            entry: dict[str, object] = {"type": "file", "path": path, "size": len(content), "oid": _blob(content)}
            if len(content) >= LARGE:
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
            entries.append(entry)
        return web.json_response(entries)

    async def _resolve(self, request: web.Request) -> web.StreamResponse:
        if (unwell := self.is_unwell()) is not None:
            return unwell
        name = f"{request.match_info['organisation']}/{request.match_info['model']}"
        if (refusal := self._refusal(request, name, content=True)) is not None:
            return refusal
        revision, path = request.match_info["revision"], request.match_info["path"]
        files = self._files(name, revision)
        if files is None:
            return _error(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        if path not in files:
            return _error(404, "EntryNotFound", "Entry not found")
        content = files[path]
        branch = next(each for each, every in self.models[name].revisions.items() if every is files)
        headers = {"X-Repo-Commit": self.commit(name, branch), "Accept-Ranges": "bytes"}
        if len(content) < LARGE:
            headers["ETag"] = f'"{_blob(content)}"'
            return await self.send(request, path, content, headers)
        digest = hashlib.sha256(content).hexdigest()
        headers |= {"X-Linked-Size": str(len(content)), "X-Linked-ETag": f'"{digest}"'}
        headers["Location"] = f"{self.cdn}/{name}/{digest}?X-Signature={_SIGNATURE}"
        return web.Response(status=302, headers=headers)

    async def _cdn(self, request: web.Request) -> web.StreamResponse:
        if "Authorization" in request.headers:
            self.problems.append(f"a token for {request.path}")
            return web.Response(status=400)
        if request.query.get("X-Signature") != _SIGNATURE:
            return web.Response(status=403)
        model = self.models[f"{request.match_info['organisation']}/{request.match_info['model']}"]
        for files in model.revisions.values():
            for path, content in files.items():
                if hashlib.sha256(content).hexdigest() == request.match_info["digest"]:
                    return await self.send(request, path, content, {"ETag": f'"{request.match_info["digest"]}"'})
        return web.Response(status=404)


@contextmanager
def loopback_hub(hub: LoopbackHub, listening: Listening = HERE) -> Iterator[LoopbackHub]:
    """Runs the hub and its CDN in a thread."""
    api, cdn = web.Application(), web.Application()
    api.router.add_get("/api/models/{organisation}/{model}", hub._model)
    api.router.add_get("/api/models/{organisation}/{model}/revision/{revision:.+}", hub._model)
    api.router.add_get("/api/models/{organisation}/{model}/tree/{revision:.+}", hub._tree)
    api.router.add_get("/{organisation}/{model}/resolve/{revision}/{path:.+}", hub._resolve)
    cdn.router.add_get("/{organisation}/{model}/{digest}", hub._cdn)
    with in_a_thread(hub, {"endpoint": api, "cdn": cdn}, listening):
        yield hub


def _sibling(path: str, content: bytes, blobs: bool) -> dict[str, object]:
    if not blobs:
        return {"rfilename": path}
    found: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": _blob(content)}
    if len(content) >= LARGE:
        digest = hashlib.sha256(content).hexdigest()
        found |= {"blobId": "0" * 40, "lfs": {"sha256": digest, "size": len(content), "pointerSize": 134}}
    return found


def _blob(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _error(status: int, code: str | None, message: str) -> web.Response:
    headers = {"X-Error-Message": message} | ({"X-Error-Code": code} if code else {})
    return web.json_response({"error": message}, status=status, headers=headers)
