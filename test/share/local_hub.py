"""A small hub on this machine: what huggingface_hub's client needs of dataset repos, and failures on demand."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

WRITER = "hf_" + "writerWRITER" * 3
READER = "hf_" + "readerREADER" * 3
PAGE = 7
LFS_SUFFIXES = (".slm", ".pt", ".safetensors", ".png", ".mp4", ".js")
COMMIT = "1" * 40
REPO_NOT_FOUND = {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"}
BAD_TOKEN = {"X-Error-Message": "Invalid credentials in Authorization header"}


@dataclass
class Fault:
    """At a step, a number of times: a status, a connection cut half-way, or no answer."""

    step: str
    kind: int | str
    times: int = 1
    # requests of the step that succeed before
    after: int = 0
    retry_after: str | None = None


@dataclass
class LocalHub:
    """What the server knows; tests look into it and change it."""

    root: Path
    url: str = ""
    faults: list[Fault] = field(default_factory=list)
    # (step, bytes of content received or sent)
    log: list[tuple[str, int]] = field(default_factory=list)
    private: set[str] = field(default_factory=set)
    # replaces the listing of a repo
    listing: Callable[[str, int], list[dict[str, Any]]] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    stop: threading.Event = field(default_factory=threading.Event)

    def reset(self, root: Path) -> None:
        """Forget all of another test."""
        self.stop.set()
        self.root, self.listing, self.stop = root, None, threading.Event()
        for each in (self.faults, self.log, self.private):
            each.clear()

    def repo(self, name: str) -> Path:
        """The folder with a repo's files."""
        return self.root / "repos" / name

    def count(self, step: str) -> int:
        """How often a step was asked for."""
        return sum(1 for name, _ in self.log if name == step)

    def traffic(self, step: str) -> int:
        """Bytes of content that went at a step."""
        return sum(num for name, num in self.log if name == step)

    def take_fault(self, step: str) -> Fault | None:
        """The failure that is due."""
        with self.lock:
            for fault in self.faults:
                if fault.step == step and fault.times > 0:
                    if fault.after > 0:
                        fault.after -= 1
                        return None
                    fault.times -= 1
                    return fault
        return None

    def entries(self, repo: str, folder: str, is_recursive: bool) -> list[dict[str, Any]]:
        """The tree as the hub lists it."""
        top = self.repo(repo) / folder
        items: list[dict[str, Any]] = []
        for path in sorted(top.rglob("*") if is_recursive else top.glob("*")):
            name = path.relative_to(self.repo(repo)).as_posix()
            if path.is_dir():
                items.append({"type": "directory", "path": name, "oid": "2" * 40, "size": 0})
                continue
            data = path.read_bytes()
            oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            item: dict[str, Any] = {"type": "file", "path": name, "oid": oid, "size": len(data)}
            if path.suffix in LFS_SUFFIXES:
                item["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            items.append(item)
        return items


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # head and content in one packet: in two, each answer waits 40 ms for an acknowledgement
    wbufsize = -1
    disable_nagle_algorithm = True
    hub: LocalHub
    step, size = "", 0
    fault: Fault | None = None

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def _serve(self) -> None:
        url = urlsplit(self.path)
        path, query = unquote(url.path), parse_qs(url.query)
        self.token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        for step, method, pattern, handler in ROUTES:
            if self.command in method and (match := re.fullmatch(pattern, path)):
                self.step, self.size = step, 0
                if not self._fails(step):
                    handler(self, *match.groups(), query=query)
                return
        self._answer(404, {"error": f"no such address {path}"})

    do_GET = do_HEAD = do_POST = do_PUT = _serve  # noqa: N815

    # --- failures

    def _fails(self, step: str) -> bool:
        self.fault = fault = self.hub.take_fault(step)
        if fault is None:
            return False
        if isinstance(fault.kind, int):
            self.step = f"{step}:{fault.kind}"
            self._read_body()
            headers = {"Retry-After": fault.retry_after} if fault.retry_after is not None else {}
            self._answer(fault.kind, {"error": "on demand"}, headers | (BAD_TOKEN if fault.kind == 401 else {}))
            return True
        self.hub.log.append((f"{step}:{fault.kind}", 0))
        if fault.kind == "stall":
            self.hub.stop.wait(600)
        elif step == "get":
            return False  # cut while the content goes out
        else:
            self.rfile.read(int(self.headers.get("Content-Length", 0)) // 2)
        self._hang_up()
        return True

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.close()

    # --- answers

    def _read_body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        self._write(status, json.dumps(content).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _write(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        self.hub.log.append((self.step, self.size))
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            is_cut = self.fault is not None and self.fault.kind == "cut"
            data = data[: len(data) // 2] if is_cut else data
            self.wfile.write(data)
            if is_cut:
                self.wfile.flush()
                self._hang_up()

    def _may(self, repo: str, write: bool) -> bool:
        """Whether the caller may; the answer is sent where not."""
        status, headers = 0, {}
        if self.token and self.token not in (WRITER, READER):
            status, headers = 401, BAD_TOKEN
        elif not self.hub.repo(repo).exists() or (repo in self.hub.private and not self.token):
            status, headers = 404 if self.token else 401, REPO_NOT_FOUND
        elif write and self.token != WRITER:
            status, headers = 403 if self.token else 401, {"X-Error-Message": "no write access"}
        if status:
            self._read_body()
            self._answer(status, {"error": "x"}, headers)
        return not status

    # --- what the hub does

    def create(self, query: Any) -> None:
        body = json.loads(self._read_body())
        if self.token != WRITER:
            self._answer(403 if self.token == READER else 401, {"error": "x"})
            return
        name = f"{body['organization']}/{body['name']}"
        url = f"{self.hub.url}/datasets/{name}"
        if body.get("type") != "dataset":
            name, url = f"models/{name}", f"{self.hub.url}/{name}"
        self.hub.repo(name).mkdir(parents=True)
        if body.get("visibility") == "private":
            self.hub.private.add(name)
        self._answer(200, {"url": url})

    def auth(self, repo: str, write: str | None, query: Any) -> None:
        if self._may(repo, write=bool(write)):
            self._answer(200, {})

    def info(self, repo: str, query: Any) -> None:
        if self._may(repo, write=False):
            self._answer(200, {"id": repo, "sha": COMMIT, "private": False, "tags": [], "siblings": []})

    def tree(self, repo: str, folder: str | None, query: Any) -> None:
        if not self._may(repo, write=False):
            return
        start = int(query.get("cursor", ["0"])[0])
        if self.hub.listing is not None:
            page, more = self.hub.listing(folder or "", start), True
        else:
            if not (self.hub.repo(repo) / (folder or "")).is_dir():
                self._answer(404, {"error": "x"}, {"X-Error-Code": "EntryNotFound"})
                return
            recursive = query.get("recursive", ["false"])[0].lower() in ("true", "1")
            entries = self.hub.entries(repo, folder or "", recursive)
            page, more = entries[start : start + PAGE], start + PAGE < len(entries)
        headers = {}
        if page and more:
            query_text = "&".join(f"{key}={value[0]}" for key, value in query.items() if key != "cursor")
            address = f"{self.hub.url}{urlsplit(self.path).path}?{query_text}&cursor={start + PAGE}"
            headers["Link"] = f'<{address}>; rel="next"'
        self._answer(200, page, headers)

    def preupload(self, repo: str, query: Any) -> None:
        if not self._may(repo, write=True):
            return
        files = []
        for file in json.loads(self._read_body())["files"]:
            mode = "lfs" if file["path"].endswith(LFS_SUFFIXES) else "regular"
            files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": None})
        self._answer(200, {"files": files})

    def batch(self, repo: str, query: Any) -> None:
        if not self._may(repo, write=True):
            return
        objects = []
        for item in json.loads(self._read_body())["objects"]:
            answer = {"oid": item["oid"], "size": item["size"]}
            if not (self.hub.root / "lfs" / item["oid"]).exists():
                answer["actions"] = {"upload": {"href": f"{self.hub.url}/lfs-upload/{item['oid']}"}}
            objects.append(answer)
        self._answer(200, {"transfer": "basic", "objects": objects})

    def put(self, oid: str, query: Any) -> None:
        data = self._read_body()
        self.size = len(data)
        if hashlib.sha256(data).hexdigest() != oid:
            self._answer(400, {"error": "content differs from its hash"})
            return
        place = self.hub.root / "lfs" / oid
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(data)
        self._answer(200, {})

    def commit(self, repo: str, query: Any) -> None:
        if not self._may(repo, write=True):
            return
        for line in map(json.loads, self._read_body().splitlines()):
            value = line["value"]
            if line["key"] == "file":
                data = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                data = (self.hub.root / "lfs" / value["oid"]).read_bytes()
            else:
                continue
            place = self.hub.repo(repo) / value["path"]
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        page = repo.removeprefix("models/") if repo.startswith("models/") else f"datasets/{repo}"
        self._answer(200, {"commitUrl": f"{self.hub.url}/{page}/commit/{COMMIT}", "commitOid": COMMIT})

    def yaml(self, query: Any) -> None:
        self._read_body()
        self._answer(200, {"errors": [], "warnings": []})

    def resolve(self, repo: str, path: str, query: Any) -> None:
        if not self._may(repo, write=False):
            return
        file = self.hub.repo(repo) / path
        if not file.is_file():
            self._answer(404, {"error": "x"}, {"X-Error-Code": "EntryNotFound"})
            return
        data, headers = file.read_bytes(), {"X-Repo-Commit": COMMIT}
        if file.suffix not in LFS_SUFFIXES:
            self._write(200, data, headers | {"ETag": f'"{hashlib.sha1(data).hexdigest()}"'})
            return
        # as the hub does: large files come from another host, for which the token is not meant
        cdn = self.hub.url.replace("127.0.0.1", "localhost")
        headers |= {"X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Linked-Size": str(len(data))}
        self._write(302, b"", headers | {"Location": f"{cdn}/cdn/{repo}/{path}"})

    def cdn(self, path: str, query: Any) -> None:
        assert not self.token, "a token left the hub"
        self._write(200, (self.hub.root / "repos" / path).read_bytes(), {})


_R = r"([^/]+/[^/]+)"
Route = tuple[str, tuple[str, ...], str, Callable[..., None]]
ROUTES: list[Route] = [
    ("create", ("POST",), "/api/repos/create", _Handler.create),
    ("auth", ("GET",), f"/api/datasets/{_R}/auth-check(/write)?", _Handler.auth),
    ("list", ("GET",), f"/api/datasets/{_R}/tree/[^/]+(?:/(.*))?", _Handler.tree),
    ("preupload", ("POST",), f"/api/datasets/{_R}/preupload/[^/]+", _Handler.preupload),
    ("commit", ("POST",), f"/api/datasets/{_R}/commit/[^/]+", _Handler.commit),
    ("info", ("GET",), f"/api/datasets/{_R}(?:/revision/[^/]+)?", _Handler.info),
    ("batch", ("POST",), f"/datasets/{_R}\\.git/info/lfs/objects/batch", _Handler.batch),
    ("put", ("PUT",), "/lfs-upload/([0-9a-f]+)", _Handler.put),
    ("yaml", ("POST",), "/api/validate-yaml", _Handler.yaml),
    ("resolve", ("GET", "HEAD"), f"/datasets/{_R}/resolve/[^/]+/(.*)", _Handler.resolve),
    ("get", ("GET",), "/cdn/(.*)", _Handler.cdn),
]


def _of_models(step: str, methods: tuple[str, ...], pattern: str, handler: Callable[..., None]) -> Route:
    """The same address for model repos, which are a folder of their own here."""

    def serve(self: _Handler, repo: str, *rest: Any, query: Any) -> None:
        handler(self, f"models/{repo}", *rest, query=query)

    return step, methods, pattern.replace("/api/datasets/", "/api/models/").replace("/datasets/", "/"), serve


ROUTES += [_of_models(*route) for route in ROUTES if "datasets" in route[2]]


@contextmanager
def serve_hub(root: Path) -> Iterator[LocalHub]:
    """A hub at 127.0.0.1 for a while, with its files in a folder."""
    hub = LocalHub(root)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    # a connection that is cut on demand is no news
    server.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.stop.set()
        server.shutdown()
        server.server_close()
        thread.join()
