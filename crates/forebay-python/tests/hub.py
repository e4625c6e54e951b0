"""A small Hugging Face Hub of datasets on loopback, which the package huggingface_hub accepts as one."""

from __future__ import annotations

import base64
import hashlib
import http.server
import itertools
import json
import threading
import urllib.parse
from collections.abc import Callable
from typing import Any

TOKEN = "hf_atokenoftests"


def oid(data: bytes) -> str:
    """The hash that Git has of a file."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repository:
    """Commits of a dataset, each with all of its files."""

    def __init__(self, access: str = "public") -> None:
        self.access = access
        self.commits: dict[str, dict[str, bytes]] = {}
        self.branches: dict[str, str] = {}

    def commit(self, files: dict[str, bytes], branch: str = "main") -> str:
        name = hashlib.sha1(repr((branch, sorted(files.items()))).encode()).hexdigest()
        self.commits[name] = files
        self.branches[branch] = name
        return name


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # Header and body in one packet: a second one would wait for an acknowledgement.
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.answer(b"")

    def do_GET(self) -> None:
        self.answer(b"")

    def do_POST(self) -> None:
        self.answer(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def answer(self, sent: bytes) -> None:
        url = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(url.query))
        parts = [urllib.parse.unquote(part) for part in url.path.strip("/").split("/")]
        is_known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        with self.server.lock:
            self.server.asked.append(f"{self.command} {self.path}")
            if self.server.limited:
                self.server.limited -= 1
                return self.send(429, b"", {"RateLimit": '"api";r=0;t=1'})
        if self.server.echoes:
            said = f"no access with {self.headers.get('Authorization')}"
            body = json.dumps({"error": said, "message": said} if self.server.echoes == "body" else {}).encode()
            return self.send(403, body, {"X-Error-Message": said} if self.server.echoes == "header" else {})
        if parts[0] == "cdn" and self.server.refuses:
            return self.send(self.server.refuses, b"<Error><Code>AccessDenied</Code></Error>", {})
        if parts[0] == "cdn":
            used = self.server.used[self.path] = self.server.used.get(self.path, 0) + 1
            if self.server.expires and used > 2:
                return self.fail(403, "Expired")
            return self.bytes_of(*self.server.blobs[parts[1]])
        if self.server.strict and self.headers.get("Authorization") not in (None, f"Bearer {TOKEN}"):
            return self.send(401, b"", {"X-Error-Message": "Invalid credentials in Authorization header"})
        is_api = parts[0] == "api"
        parts = parts[1:] if is_api else parts
        if parts[:2] == ["repos", "create"]:
            asked = json.loads(sent)
            name = f"{asked.get('organization', 'me')}/{asked['name']}"
            made = {"url": f"{self.server.url}/datasets/{name}"}
            if name in self.server.repositories:
                return self.send(409, json.dumps(made).encode(), {})
            self.server.repositories[name] = Repository("private" if asked.get("private") else "public")
            self.server.repositories[name].commit({})
            return self.json(made)
        if parts[0] == "validate-yaml":
            return self.json({"errors": [], "warnings": []})
        if parts[0] == "whoami-v2":
            return self.json({"name": "me", "type": "user", "orgs": []})
        if parts[0] != "datasets":
            return self.fail(404, "EntryNotFound")
        name = "/".join(parts[1:3])
        if new := self.server.renamed.get(name):
            return self.send(307, b"", {"Location": self.path.replace(name, new)})
        repository = self.server.repositories.get(name)
        if repository is None or (repository.access == "private" and not is_known):
            return self.fail(404 if is_known else 401, "RepoNotFound")
        call, rest = (parts[3:4] or ["revision"])[0], parts[4:]
        revision = rest[0] if rest else "main"
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            return self.fail(404, "RevisionNotFound")
        files, path = repository.commits[commit], "/".join(rest[1:])
        if not is_api:
            if repository.access == "gated" and not is_known:
                return self.fail(403, "GatedRepo")
            return self.resolve(files, commit, path) if call == "resolve" else self.fail(404, "EntryNotFound")
        if call == "revision":
            known = {"id": name, "sha": commit, "lastModified": "2026-01-02T03:04:05.000Z", "private": False, "siblings": []}
            return self.json(known)
        if call == "paths-info":
            wanted = urllib.parse.parse_qs(sent.decode()).get("paths", [])
            return self.json([entry for entry in entries(files) if entry["path"] in wanted])
        if call in ("preupload", "commit") and not is_known:
            return self.fail(403, "Forbidden")
        if call == "preupload":
            asked = json.loads(sent)["files"]
            return self.json({"files": [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in asked]})
        if call == "commit":
            return self.commit(repository, revision, sent)
        if call == "tree":
            if self.server.spoil is not None:
                return self.json(self.server.spoil(self.path))
            return self.tree(files, path, query)
        return self.fail(404, "EntryNotFound")

    def commit(self, repository: Repository, branch: str, sent: bytes) -> None:
        files = dict(repository.commits[repository.branches[branch]])
        for line in sent.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "deletedFile":
                del files[value["path"]]
        name = repository.commit(files, branch)
        self.json({"commitOid": name, "commitUrl": f"{self.server.url}/datasets/x/y/commit/{name}", "hookOutput": ""})

    def tree(self, files: dict[str, bytes], path: str, query: dict[str, str]) -> None:
        prefix = f"{path}/" if path else ""
        is_deep = query.get("recursive", "").lower() == "true"
        below = [entry for entry in entries(files) if entry["path"].startswith(prefix)]
        below = [entry for entry in below if is_deep or "/" not in entry["path"][len(prefix) :]]
        if path and not below:
            return self.fail(404, "EntryNotFound")
        first = int(query.get("cursor", 0))
        last = first + self.server.page
        headers = {}
        if last < len(below) or self.server.endless:
            more = urllib.parse.urlencode({**query, "cursor": last % len(below)})
            here = self.path.split("?")[0]
            headers["Link"] = f'<{self.server.url}{here}?{more}>; rel="next"'
        self.json(below[first:last], headers)

    def resolve(self, files: dict[str, bytes], commit: str, path: str) -> None:
        if path not in files:
            return self.fail(404, "EntryNotFound")
        data = self.server.damaged.get(path, files[path])
        headers = {"X-Repo-Commit": commit}
        if path.endswith((".parquet", ".tar")):
            digest = hashlib.sha256(data).hexdigest()
            self.server.blobs[digest] = data, {"X-Repo-Commit": commit}
            headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(data)), "Location": f"{self.server.url}/cdn/{digest}?signed={next(self.server.numbers)}"}
            return self.send(302, b"", headers)
        self.bytes_of(data, headers | {"ETag": f'"{oid(data)}"'})

    def bytes_of(self, data: bytes, headers: dict[str, str]) -> None:
        headers = {"Accept-Ranges": "bytes", "ETag": '"of-the-cdn"', **headers}
        status = 200
        if wanted := self.headers.get("Range"):
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            end = min(int(last or len(data) - 1), len(data) - 1)
            headers["Content-Range"] = f"bytes {first}-{end}/{len(data)}"
            data, status = data[int(first) : end + 1], 206
        self.send(status, data, headers)

    def fail(self, status: int, code: str) -> None:
        self.send(status, b'{"error":"no"}', {"X-Error-Code": code, "X-Error-Message": "no"})

    def json(self, value: Any, headers: dict[str, str] | None = None) -> None:
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def entries(files: dict[str, bytes]) -> list[dict[str, Any]]:
    """The files and directories of a commit, as the Hub's API lists them."""
    found: dict[str, dict[str, Any]] = {}
    for path, data in sorted(files.items()):
        parts = path.split("/")
        for end in range(1, len(parts)):
            directory = "/".join(parts[:end])
            found[directory] = {"type": "directory", "oid": oid(directory.encode()), "size": 0, "path": directory}
        found[path] = {"type": "file", "oid": oid(data), "size": len(data), "path": path}
        if path.endswith((".parquet", ".tar")):
            found[path]["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
    return list(found.values())


class Hub(http.server.ThreadingHTTPServer):
    """Repositories by name. `page` is the number of entries of a page; the next `limited` requests are refused with 429.
    With `expires` each redirect works twice; a `strict` one refuses tokens that it does not know; `spoil` makes other listings.
    Files in `damaged` have other bytes than are listed. With `endless` the last page of a listing names the first. The targets of redirects answer with the status `refuses`. One that `echoes` refuses all requests, and repeats their token in the "header" or the "body"."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.lock = threading.Lock()
        self.repositories: dict[str, Repository] = {}
        self.renamed: dict[str, str] = {}
        self.blobs: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.asked: list[str] = []
        self.numbers = itertools.count()
        self.used: dict[str, int] = {}
        self.page = 3
        self.expires = False
        self.strict = False
        self.spoil: Callable[[str], Any] | None = None
        self.limited = 0
        self.echoes = ""
        self.damaged: dict[str, bytes] = {}
        self.endless = False
        self.refuses = 0
        threading.Thread(target=self.serve_forever, daemon=True).start()
