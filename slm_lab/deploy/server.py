"""A trained agent as an HTTP service: FastAPI on uvicorn, one process, batches of what waits.

Not LitServe: it computes in another process, and handing a request over costs more than the nets of most agents; and
its main process has no handler for SIGTERM, so requests under way would be lost. The rest, batching and health, is
little code.
"""

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import uvicorn
from fastapi import FastAPI, Request, Response
from loguru import logger
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from slm_lab.deploy.batching import Batcher, BusyError, Job
from slm_lab.deploy.contract import describe_agent
from slm_lab.deploy.sessions import FullError, Rate, Sessions
from slm_lab.deploy.trained import TrainedAgent
from slm_lab.lib.array import Array
from slm_lab.lib.data import Document
from slm_lab.lib.errors import LabError
from slm_lab.lib.port import open_port, write_address

Id = Annotated[str, Field(min_length=1, max_length=128)]
Next = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Limits:
    """The limits of a server."""

    max_body: int = 1_000_000
    max_batch: int = 1024
    # waiting requests
    max_wait: int = 2048
    max_session: int = 10_000
    session_seconds: float = 600.0
    # requests per second of one client; 0: any number
    rate: float = 0.0
    # seconds for requests in progress to finish when the server stops
    drain_seconds: float = 30.0


class ActRequest(BaseModel):
    """One observation or a batch of them."""

    model_config = ConfigDict(extra="forbid")

    obs: Any = Field(description="As the env returns it, arrays as lists; a batch has one more dimension in each part.")
    mask: Any = Field(None, description="The allowed actions, for an agent trained with masks.")
    deterministic: bool = Field(True, description="False samples from the policy.")
    session: Id | None = Field(None, description="Recurrent agents: the id of an episode, whose state is kept here.")
    reset: bool = Field(False, description="Recurrent agents: whether an episode of the session begins here.")
    state: list[list[float]] | None = Field(
        None, description="Recurrent agents: the state (N, S) instead of a session; [] begins an episode."
    )


class ActReply(BaseModel):
    """Actions as the env takes them."""

    action: Any = Field(description="One action, or one for each observation of a batch.")
    state: list[list[float]] | None = Field(None, description="The next state, where the request had one.")


class RefusedError(Exception):
    """A request that gets no action, and the HTTP status that says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Service:
    """Answers requests with one agent."""

    def __init__(self, trained: TrainedAgent, limits: Limits) -> None:
        self.trained = trained
        self.limits = limits
        self.state_size = trained.init_state().shape[1]
        self.sessions = Sessions(limits.max_session, limits.session_seconds)
        self.rate = Rate(limits.rate) if limits.rate else None
        self.batcher = Batcher(trained.act_rows, slice_tree, limits.max_batch, limits.max_wait)
        self.contract = trained.contract or describe_agent(trained)

    async def act(self, body: bytes) -> bytes:
        """The reply to a request."""
        try:
            request = ActRequest.model_validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "body"
            raise RefusedError(400, f"{where}: {first['msg']}") from None
        rows, is_batch = self._read(request)
        job = self._build_job(request, rows, is_batch)
        try:
            action, state = await self.batcher.submit(job)
        except BusyError:
            raise RefusedError(503, f"{self.limits.max_wait} requests are waiting already; try again later") from None
        except FullError:
            raise RefusedError(
                503, f"{len(self.sessions)} sessions are in use, as many as the server keeps; try again later"
            ) from None
        reply: Document = {"action": to_plain(self.trained.finish(action, is_batch))}
        if request.state is not None:
            reply["state"] = state.tolist()
        return json.dumps(reply).encode()

    def _read(self, request: ActRequest) -> tuple[Array, bool]:
        try:
            rows, is_batch = self.trained.read(request.obs, request.mask)
        except LabError as error:
            raise RefusedError(400, str(error)) from None
        except (ArithmeticError, TypeError, ValueError) as error:
            raise RefusedError(400, f"obs: {str(error)[:200]}") from None
        if not len(rows):
            raise RefusedError(400, "obs: a batch without observations")
        if len(rows) > self.limits.max_batch:
            most = self.limits.max_batch
            raise RefusedError(400, f"obs: {len(rows):,} observations, at most {most:,} are taken at once")
        if rows.dtype.kind == "f" and not np.isfinite(rows).all():
            raise RefusedError(400, "obs: a number is not finite")
        return rows, is_batch

    def _build_job(self, request: ActRequest, rows: Array, is_batch: bool) -> Job:
        num, start = len(rows), self.trained.init_state(len(rows))
        session, state = request.session, request.state
        if not self.state_size:
            if session is not None or state is not None or request.reset:
                raise RefusedError(400, "session: this agent has no hidden state; leave out session, reset and state")
            return Job(rows, start, request.deterministic, None)
        if (session is None) == (state is None):
            raise RefusedError(400, "session: this agent has a hidden state; give either a session id or a state")
        if state is not None:
            given = start if not state else np.array(state, np.float32) if _is_even(state) else np.empty(0)
            if given.shape != (num, self.state_size) or not np.isfinite(given).all():
                raise RefusedError(400, f"state: expected {num} x {self.state_size} finite numbers, or []")
            return Job(rows, given, request.deterministic, None)
        assert session is not None
        if is_batch:
            raise RefusedError(400, "session: a session is one episode, so it takes one observation, not a batch")
        keep = self.sessions
        return Job(
            rows,
            start,
            request.deterministic,
            session,
            # when its turn has come: an earlier request of the session may still be in progress
            lambda: keep.load(session, start, request.reset),
            lambda state: keep.save(session, state),
        )


def _is_even(rows: list[list[float]]) -> bool:
    return len({len(row) for row in rows}) == 1


def slice_tree(tree: Any, place: slice) -> Any:
    """Some rows of each part."""
    if isinstance(tree, dict):
        return {key: slice_tree(part, place) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(slice_tree(part, place) for part in tree)
    return tree[place]


def to_plain(value: Any) -> Any:
    """Actions as JSON has them."""
    if isinstance(value, dict):
        return {key: to_plain(part) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_plain(part) for part in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def build_app(trained: TrainedAgent, limits: Limits | None = None) -> FastAPI:
    """The service as an ASGI app, for any server."""
    limits = limits or Limits()
    service = Service(trained, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        yield
        await service.batcher.close()

    name = service.contract["name"]
    # FastAPI's own page would load scripts from another server
    app = FastAPI(title=f"slm-lab serve: {name}", version="1", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.service = service
    schema = ActRequest.model_json_schema()

    @app.post(
        "/act",
        summary="Actions for one observation or a batch",
        response_model=ActReply,
        responses={code: {"description": text} for code, text in REFUSALS.items()},
        openapi_extra={"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}},
    )
    async def act(request: Request) -> Response:
        if service.rate is not None and not service.rate.is_allowed(request.client.host if request.client else ""):
            return refuse(429, f"more than {limits.rate:g} requests per second; send fewer")
        try:
            return Response(await service.act(await read_body(request, limits.max_body)), media_type="application/json")
        except RefusedError as error:
            return refuse(error.status, str(error))

    @app.get("/health", summary="Whether the server answers, and what it has done")
    async def health() -> Document:
        batcher = service.batcher
        return {
            "status": "ok",
            "agent": name,
            "sessions": len(service.sessions),
            "waiting": len(batcher.waiting),
            "batches": batcher.num_batch,
            "actions": batcher.num_row,
        }

    @app.get("/contract", summary="Spaces, score, versions and spec of the agent")
    async def contract() -> Document:
        return service.contract

    return app


REFUSALS: dict[int | str, str] = {
    400: "The request does not fit the agent; the reply says where.",
    413: "The body is larger than the server takes.",
    429: "More requests than the server takes from one client.",
    503: "More requests or sessions than the server takes.",
}


def refuse(status: int, message: str) -> Response:
    """A refusal: one line that says what is wrong."""
    headers = {"Retry-After": "1"} if status in (429, 503) else {}
    body = json.dumps({"error": message})
    if status == 413:
        # the rest of the body is not read
        headers["Connection"] = "close"
    return Response(body, status, headers, "application/json")


async def read_body(request: Request, max_body: int) -> bytes:
    """The body of a request; reading stops at the limit."""
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > max_body:
        raise RefusedError(413, f"the body has {int(length):,} bytes; at most {max_body:,} are taken")
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_body:
            raise RefusedError(413, f"the body has more than {max_body:,} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def serve(trained: TrainedAgent, host: str, port: int, limits: Limits) -> None:
    """Serve until a signal comes, then finish the requests in progress."""
    opened = open_port(host, port)
    config = uvicorn.Config(
        build_app(trained, limits),
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=math.ceil(limits.drain_seconds),
        timeout_keep_alive=75,
        server_header=False,
    )
    logger.info(f"Serving on {write_address(opened)}: POST /act, GET /health, /contract, /openapi.json")
    uvicorn.Server(config).run(sockets=[opened])
