"""The server of `slm-lab ui`: what each address answers."""

import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse

from slm_lab.lib.data import Document
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import to_finite
from slm_lab.results.folder import describe_failure
from slm_lab.ui import boards, films
from slm_lab.ui.act import add_act_routes
from slm_lab.ui.assets import Assets
from slm_lab.ui.files import SHOWN, list_files, list_logs, open_run_file, read_log, read_part
from slm_lab.ui.guard import Access, Guard
from slm_lab.ui.jobs import Jobs
from slm_lab.ui.library import Library
from slm_lab.ui.notes import Notes, read_notes, write_notes
from slm_lab.ui.run_page import MAX_COMPARED, build_charts, build_column, build_comparison, build_run_page
from slm_lab.ui.watcher import Watcher

Ids = Annotated[list[str], Query(max_length=MAX_COMPARED)]
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{1,15})?", re.A)


class NotesOf(Notes):
    """Notes, and the run that they are on."""

    run: str


class Moment(BaseModel):
    """A point of a curve; without a session the best one is meant, without a frame the best model."""

    run: str
    session: int | None = Field(None, ge=0)
    frame: int | None = Field(None, ge=0)


class Content(JSONResponse):
    """JSON in which numbers that are not finite are null."""

    def render(self, content: Any) -> bytes:
        return json.dumps(to_finite(content), allow_nan=False, separators=(",", ":")).encode()


def build_app(library: Library, watcher: Watcher, access: Access) -> Guard:
    """What the server answers, behind its guard."""

    @asynccontextmanager
    async def live(_: FastAPI) -> AsyncIterator[None]:
        watcher.start()
        yield
        watcher.stop()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, default_response_class=Content, lifespan=live)
    _add_pages(app, access)
    _add_reading(app, library, watcher, access)
    _add_changes(app, library, watcher, access)
    add_act_routes(app, library, Jobs(library.data_dir), access)
    app.add_exception_handler(LabError, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    return Guard(app, access)


def _answer_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, LabError)
    return Content({"error": describe_failure(error)}, 404)


def _answer_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return Content({"error": f"{where}: {first['msg']}"}, 422)


def _add_pages(app: FastAPI, access: Access) -> None:
    assets = Assets()

    @app.get("/")
    def page(request: Request, token: str | None = None) -> Response:
        if token is None:
            return assets.answer("index.html")
        if not access.is_token(token):
            raise HTTPException(403, "the token is not the one that `slm-lab ui --control` has printed")
        answer = RedirectResponse("/", 303)
        answer.set_cookie(access.cookie, token, httponly=True, samesite="strict", path="/")
        return answer

    @app.get("/static/{name}")
    def asset(name: str) -> Response:
        return assets.answer(name)

    @app.get("/api/lab")
    def lab(request: Request) -> Document:
        return {
            "version": version("slm-lab"),
            "csrf": access.csrf,
            "has_control": access.token is not None,
            "may_act": access.may_act(request.headers),
        }


def _add_reading(app: FastAPI, library: Library, watcher: Watcher, access: Access) -> None:
    @app.get("/api/runs")
    def runs() -> Document:
        if not library.places:
            library.scan()
        return {"rows": library.get_rows()}

    @app.get("/api/run")
    def run(run: str, trial: int | None = None) -> Document:
        place, loaded = library.find(run), library.load(run, trial)
        notes = read_notes(place.path)
        return build_run_page(place, loaded, library.tables.find_stride(loaded)) | notes.model_dump()

    @app.get("/api/charts")
    def charts(run: Ids, column: str | None = None, wanted: Annotated[list[str] | None, Query()] = None) -> Document:
        started = time.thread_time()
        loaded = [library.load(id_) for id_ in run]
        extra = build_column(loaded[0], column) if column is not None else None
        charts = build_charts(loaded, wanted)
        # the page asks less often for charts that are expensive to build
        return charts | {"column": extra, "cost": time.thread_time() - started}

    @app.get("/api/compare")
    def compare(run: Ids) -> Document:
        if len(run) < 2:
            raise LabError("choose at least two runs to compare")
        return build_comparison([library.find(id_) for id_ in run], [library.load(id_) for id_ in run])

    @app.get("/api/search")
    def search(run: str) -> Document:
        return boards.build_search(library.find(run), library)

    @app.get("/api/experiment")
    def experiment(run: str) -> Document:
        return boards.build_experiment(library.find(run), library)

    @app.get("/api/files")
    def files(run: str) -> Document:
        place = library.find(run)
        return {"files": list_files(place), "logs": list_logs(place)}

    @app.get("/api/log")
    def log(run: str, path: str) -> Document:
        return {"text": read_log(library.find(run), path, library.data_dir)}

    @app.get("/file")
    def file(request: Request, run: str, path: str) -> Response:
        opened, size = open_run_file(library.find(run), path, library.data_dir)
        name = path.rpartition("/")[2]
        kind = SHOWN.get(Path(name).suffix)
        headers = {"Accept-Ranges": "bytes", "Content-Type": kind or "application/octet-stream"}
        if kind is None or "download" in request.query_params:
            headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(name)}"
        start, end, status = 0, size, 200
        match = _RANGE.fullmatch(request.headers.get("range", ""))
        if match is not None and int(match[1]) <= min(int(match[2] or size), size - 1):
            start, end, status = int(match[1]), min(int(match[2] or size - 1) + 1, size), 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        headers["Content-Length"] = str(end - start)
        return StreamingResponse(read_part(opened, start, end), status, headers)

    @app.get("/api/events")
    async def events(watch: Annotated[list[str] | None, Query(max_length=MAX_COMPARED)] = None) -> Response:
        async def write() -> AsyncIterator[bytes]:
            async for event in watcher.stream(frozenset(watch or ())):
                text = json.dumps(to_finite(event), allow_nan=False, separators=(",", ":")) if event else None
                yield f"data: {text}\n\n".encode() if text is not None else b": still here\n\n"

        return StreamingResponse(write(), media_type="text/event-stream")


def _add_changes(app: FastAPI, library: Library, watcher: Watcher, access: Access) -> None:
    recorder = films.Films(watcher.publish)

    @app.post("/api/notes")
    def notes(given: NotesOf) -> Document:
        place = library.find(given.run)
        write_notes(place.path, given)
        kept = read_notes(place.path)
        row = library.update_row(place.id, tags=kept.tags, note=kept.note)
        watcher.publish({"type": "rows", "rows": [row], "gone": []})
        return kept.model_dump()

    @app.post("/api/video")
    def video(request: Request, moment: Moment) -> Document:
        place, loaded = library.find(moment.run), library.load(moment.run)
        film = films.plan(place, loaded, moment.session, moment.frame)
        if film.state != "done" and films.is_code(loaded) and not access.may_act(request.headers):
            raise LabError("playing this run imports modules that its spec names; that needs `slm-lab ui --control`")
        return recorder.record(film).describe()
