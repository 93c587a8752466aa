"""A server on this machine that speaks the HTTP of Hugging Face's hub.

Written by the hub's documentation and by what `huggingface_hub` asks. Large
files lie under another host's name, as there. `faults` spoil answers.
"""

import base64
import dataclasses
import hashlib
import http.server
import json
import os
import re
import threading
import urllib.parse
from typing import Any, Callable

import pytest

TOKEN = "hf_abcdefghijklmnop"
LARGE = (".safetensors", ".bin")
JSON = "application/json"
NAME = r"([\w.-]+/[\w.-]+)"


def blob_id(content):
    """Git's name of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def etag(name, content):
    large = name.endswith(LARGE)
    return hashlib.sha256(content).hexdigest() if large else blob_id(content)


@dataclasses.dataclass
class Repository:
    """Commits of a repository, the last of which is `main`."""

    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = dataclasses.field(
        default_factory=dict
    )
    messages: list[str] = dataclasses.field(default_factory=list)

    def commit(self, contents, message=""):
        """Adds a commit of these files; returns its hash."""
        number = len(self.commits) + 1
        name = hashlib.sha1(b"%d" % number).hexdigest()
        self.commits[name] = dict(contents)
        self.messages.append(message)
        return name

    def find(self, revision):
        """The hash and the files of a revision, or None."""
        if revision in ("", "main"):
            revision = list(self.commits)[-1]
        for name, contents in self.commits.items():
            if revision in (name, f"v{list(self.commits).index(name) + 1}"):
                return name, contents
        return None


class HubServer(http.server.ThreadingHTTPServer):
    """The hub; a context in which it answers.

    Attributes:
        repositories: by name.
        faults: for a part of a path a status, or a function of a file's
            content that gives the bytes that are sent.
        requests: method and path of every request.
        blobs: large files by SHA-256.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, Repository] = {}
        self.faults: dict[str, Any] = {}
        self.requests: list[tuple[str, str]] = []
        self.blobs: dict[str, bytes] = {}
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        # Of the hub's storage.
        self.elsewhere = f"http://localhost:{self.server_port}"
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request, client_address):
        """Says nothing of connections that are cut."""

    def add(self, name, folder, **kind):
        """Makes a repository of a folder's files; returns it and a commit."""
        repository = self.repositories.setdefault(name, Repository(**kind))
        return repository, repository.commit(contents_of(folder))


def contents_of(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def log_message(self, *_):
        """Logs nothing."""

    def _answer(self, status, content=b"", **headers):
        if not isinstance(content, bytes):
            content = json.dumps(content).encode()
        self.send_response(status)
        length = headers.pop("length", len(content))
        for name, value in {**headers, "Content-Length": length}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _refuse(self, status, code=""):
        self._answer(status, X_Error_Code=code, X_Error_Message=code)

    def _handle(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        self.server.requests.append((self.command, path))
        for part, fault in self.server.faults.items():
            if part in path and fault == "cut":
                self.close_connection = True
                return
            if part in path and isinstance(fault, int):
                self._answer(fault, {"error": "out of order"})
                return
        for method, pattern, function in ROUTES:
            match = re.fullmatch(pattern, path)
            if match and self.command in method.split():
                function(self, *match.groups(), body)
                return
        self._refuse(404)

    do_GET = do_HEAD = do_POST = do_PUT = _handle

    def _has_token(self):
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _find(self, name, revision, is_file=False):
        """A repository, a hash and files; answers if there are none."""
        repository = self.server.repositories.get(name)
        hidden = repository is None or repository.private
        commit = (0, {})
        if repository is not None and repository.commits:
            commit = repository.find(revision)
        if hidden and not self._has_token():
            self._refuse(401, "RepoNotFound")
        elif repository is None:
            self._refuse(404, "RepoNotFound")
        elif is_file and repository.gated and not self._has_token():
            self._refuse(401, "GatedRepo")
        elif commit is None:
            self._refuse(404, "RevisionNotFound")
        else:
            return (repository, *commit)
        return None

    def _info(self, name, revision, _):
        place = self._find(name, revision or "")
        if place:
            repository, commit, contents = place
            siblings = [{"rfilename": file} for file in contents]
            self._answer(
                200,
                {
                    "_id": "1",
                    "id": name,
                    "sha": commit or None,
                    "private": repository.private,
                    "siblings": siblings,
                },
                Content_Type=JSON,
            )

    def _tree(self, name, revision, _):
        commit = self._find(name, revision)
        if commit:
            entries = []
            for file, content in commit[2].items():
                entry = {"type": "file", "path": file, "size": len(content)}
                entry["oid"] = blob_id(content)
                if file.endswith(LARGE):
                    sha256 = etag(file, content)
                    large = {"size": len(content), "pointerSize": 1}
                    entry["lfs"] = {"oid": sha256, **large}
                entries.append(entry)
            self._answer(200, entries, Content_Type=JSON)

    def _file(self, name, revision, file, _):
        place = self._find(name, revision, is_file=True)
        if not place:
            return
        _, commit, contents = place
        if file not in contents:
            self._refuse(404, "EntryNotFound")
            return
        content = contents[file]
        if not file.endswith(LARGE):
            tag = {"ETag": f'"{etag(file, content)}"'}
            self._send(file, content, X_Repo_Commit=commit, **tag)
            return
        sha256 = etag(file, content)
        self.server.blobs[sha256] = content
        self._answer(
            302,
            Location=f"{self.server.elsewhere}/lfs/{sha256}/{file}",
            X_Repo_Commit=commit,
            X_Linked_ETag=f'"{sha256}"',
            X_Linked_Size=len(content),
        )

    def _large(self, sha256, file, _):
        # What belongs to the hub must not reach another host.
        assert "Authorization" not in self.headers
        self._send(file, self.server.blobs[sha256])

    def _send(self, file, content, **headers):
        """A file, or a part of it; `faults` may spoil it."""
        length = len(content)
        # A content that is too short ends with the connection.
        headers["Connection"] = "close"
        for part, fault in self.server.faults.items():
            if part == file and callable(fault):
                content = fault(content)
        start = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if start:
            start = int(start.group(1))
            content_range = f"bytes {start}-{length - 1}/{length}"
            self._answer(
                206,
                content[start:],
                length=length - start,
                Content_Range=content_range,
                **headers,
            )
        else:
            self._answer(200, content, length=length, **headers)

    def _create(self, body):
        settings = json.loads(body)
        name = f"{settings['organization']}/{settings['name']}"
        if not self._has_token():
            self._refuse(401)
        elif name in self.server.repositories:
            self._answer(409, {"url": f"{self.server.endpoint}/{name}"})
        else:
            private = settings.get(
                "private", settings.get("visibility") == "private"
            )
            self.server.repositories[name] = Repository(private)
            self._answer(200, {"url": f"{self.server.endpoint}/{name}"})

    def _card(self, body):
        base = re.search('base_model: "(.*)"', json.loads(body)["content"])
        if base and not re.fullmatch(r"([\w.-]+/)?[\w.-]+", base[1]):
            fault = f'"base_model" with value "{base[1]}" is not valid.'
            self._answer(400, {"errors": [{"message": fault}]})
        else:
            self._answer(200, {"warnings": [], "errors": []})

    def _modes(self, name, _, body):
        modes = [
            {
                "path": file["path"],
                "uploadMode": "lfs"
                if file["path"].endswith(LARGE)
                else "regular",
                "shouldIgnore": False,
            }
            for file in json.loads(body)["files"]
        ]
        self._answer(200, {"files": modes})

    def _batch(self, name, body):
        objects = [
            {
                **large,
                "actions": {
                    "upload": {
                        "href": f"{self.server.elsewhere}/lfs/{large['oid']}/x"
                    }
                },
            }
            for large in json.loads(body)["objects"]
        ]
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _store(self, sha256, _, body):
        assert hashlib.sha256(body).hexdigest() == sha256
        self.server.blobs[sha256] = body
        self._answer(200)

    def _commit(self, name, _, body):
        if not self._has_token():
            self._refuse(401)
            return
        repository = self.server.repositories[name]
        commits = list(repository.commits.values())
        contents = dict(commits[-1]) if commits else {}
        message = ""
        for line in body.splitlines():
            step = json.loads(line)
            value = step["value"]
            if step["key"] == "header":
                message = value["summary"]
            elif step["key"] == "file":
                contents[value["path"]] = base64.b64decode(value["content"])
            else:
                contents[value["path"]] = self.server.blobs[value["oid"]]
        commit = repository.commit(contents, message)
        url = f"{self.server.endpoint}/{name}/commit/{commit}"
        self._answer(200, {"commitUrl": url, "commitOid": commit})


# Methods, path, and what answers.
ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("GET", rf"/api/models/{NAME}(?:/revision/(.+))?", _Handler._info),
    ("GET", rf"/api/models/{NAME}/tree/([^/]+)", _Handler._tree),
    ("GET HEAD", r"/lfs/(\w+)/(.+)", _Handler._large),
    ("PUT", r"/lfs/(\w+)/(.+)", _Handler._store),
    ("GET HEAD", rf"/{NAME}/resolve/([^/]+)/(.+)", _Handler._file),
    ("POST", "/api/repos/create", _Handler._create),
    ("POST", "/api/validate-yaml", _Handler._card),
    ("POST", rf"/api/models/{NAME}/preupload/(.+)", _Handler._modes),
    ("POST", rf"/{NAME}\.git/info/lfs/objects/batch", _Handler._batch),
    ("POST", rf"/api/models/{NAME}/commit/(.+)", _Handler._commit),
]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub without repositories; the library asks it, with an empty cache."""
    from huggingface_hub import constants

    with HubServer() as server:
        cache = tmp_path / "hub_cache"
        template = f"{server.endpoint}/{{repo_id}}/resolve/{{revision}}/"
        for name, value in {
            "ENDPOINT": server.endpoint,
            "HUGGINGFACE_CO_URL_TEMPLATE": template + "{filename}",
            "HF_HUB_CACHE": str(cache),
            "HF_HUB_OFFLINE": False,
            # Else large files go to servers with another protocol.
            "HF_HUB_DISABLE_XET": True,
            "HF_TOKEN_PATH": str(tmp_path / "no_token"),
        }.items():
            assert hasattr(constants, name)
            monkeypatch.setattr(constants, name, value)
        for name in [name for name in os.environ if name.startswith("HF_")]:
            monkeypatch.delenv(name)
        # Between tries.
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        server.cache = cache
        yield server
