"""Starting and stopping runs, with `--control` only: the guard lets nobody else reach these addresses."""

from typing import Literal

from fastapi import FastAPI, Request
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from slm_lab.lib.data import Document
from slm_lab.lib.errors import LabError, SpecError
from slm_lab.ui.drafts import MAX_TEXT, check, list_shipped, read_shipped
from slm_lab.ui.guard import Access
from slm_lab.ui.jobs import Jobs
from slm_lab.ui.library import Library


class Draft(BaseModel):
    """An edited spec."""

    text: str = Field(max_length=MAX_TEXT)


class Start(Draft):
    """A spec to start."""

    mode: Literal["dev", "train", "search"] = "train"


class Resume(BaseModel):
    """A run to resume, perhaps with more frames or sessions."""

    run: str
    max_frame: int | None = Field(None, gt=0, lt=10**12)
    max_session: int | None = Field(None, gt=0, le=1000)


class Stop(BaseModel):
    """A process to stop."""

    number: int


def add_act_routes(app: FastAPI, library: Library, jobs: Jobs, access: Access) -> None:
    """Add the addresses below /api/act/."""

    def allow(request: Request) -> None:
        # the guard checks POST only
        if not access.may_act(request.headers):
            raise HTTPException(403, "open the link that `slm-lab ui --control` has printed: it has the token")

    @app.get("/api/act/specs")
    def specs(request: Request) -> Document:
        allow(request)
        return {"specs": list_shipped()}

    @app.get("/api/act/spec")
    def spec(request: Request, name: str) -> Document:
        allow(request)
        return {"text": read_shipped(name)}

    @app.get("/api/act/jobs")
    def list_jobs(request: Request) -> Document:
        allow(request)
        return {"jobs": jobs.describe()}

    @app.post("/api/act/check")
    def check_draft(draft: Draft) -> Document:
        return check(draft.text)

    @app.post("/api/act/start")
    def start(given: Start) -> Document:
        checked = check(given.text)
        if not checked["is_valid"]:
            raise SpecError("; ".join(checked["problems"]))
        if given.mode == "search" and not checked["has_search"]:
            raise LabError(f"{checked['name']} has no section search; add one, or train it")
        return {"number": jobs.start_spec(given.text, checked["name"], given.mode).number}

    @app.post("/api/act/resume")
    def resume(given: Resume) -> Document:
        changes = [f"env.max_frame={given.max_frame}"] if given.max_frame is not None else []
        changes += [f"meta.max_session={given.max_session}"] if given.max_session is not None else []
        return {"number": jobs.resume(library.find(given.run).path, changes).number}

    @app.post("/api/act/stop")
    def stop(given: Stop) -> Document:
        return {"state": jobs.stop(given.number).state}
