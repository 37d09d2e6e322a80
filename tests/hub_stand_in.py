"""A stand-in on loopback for the part of the Hugging Face hub that an upload calls."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Hub(ThreadingHTTPServer):
    """What it was sent. Files that end in safetensors go to the large file storage, as on the hub."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.created: list[dict[str, Any]] = []
        self.authorized: set[str | None] = set()
        self.stored: dict[str, bytes] = {}
        self.files: dict[str, bytes] = {}


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *_: object) -> None:
        """Not on the terminal."""

    def do_PUT(self) -> None:
        self.server.stored[self.path.rsplit("/", 1)[1]] = self._body()
        self._answer({})

    def do_POST(self) -> None:
        hub, body = self.server, self._body()
        hub.authorized.add(self.headers.get("Authorization"))
        if self.path.endswith("/repos/create"):
            hub.created.append(json.loads(body))
            name = hub.created[-1]
            self._answer({"url": f"{hub.url}/{name.get('organization', 'me')}/{name['name']}"})
        elif "/preupload/" in self.path:
            paths = [file["path"] for file in json.loads(body)["files"]]
            modes = {path: "lfs" if path.endswith(".safetensors") else "regular" for path in paths}
            self._answer({"files": [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()]})
        elif self.path.endswith("/info/lfs/objects/batch"):
            wanted = json.loads(body)["objects"]
            actions = [{"upload": {"href": f"{hub.url}/storage/{one['oid']}"}} for one in wanted]
            self._answer({"objects": [{**one, "actions": act} for one, act in zip(wanted, actions, strict=True)]})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    hub.files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    hub.files[value["path"]] = hub.stored[value["oid"]]
            repository = self.path.removeprefix("/api/models/").partition("/commit/")[0]
            self._answer({"commitUrl": f"{hub.url}/{repository}/commit/0", "commitOid": "0", "success": True})
        else:  # validate-yaml, which finds nothing
            self._answer({"errors": [], "warnings": []})

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving() -> Iterator[Hub]:
    """The stand-in, as long as it is needed."""
    with Hub() as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        yield hub
        hub.shutdown()
