"""slm-lab serve: the actions of the lab over HTTP, within its limits, until the last request is answered."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn

from slm_lab.deploy.agent_file import write_agent
from slm_lab.deploy.batching import Batcher, BusyError, Job
from slm_lab.deploy.contract import describe_agent
from slm_lab.deploy.server import Limits, Service, build_app, serve, slice_tree, to_plain
from slm_lab.deploy.sessions import FullError, Rate, Sessions
from slm_lab.deploy.trained import TrainedAgent
from slm_lab.lib.errors import LabError
from test.deploy.agents import (
    ACTIONS,
    FAMILIES,
    MLP,
    OBSERVATIONS,
    build,
    make_agent,
    make_facts,
    make_spec,
    sample,
    take,
)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def serving(trained: TrainedAgent, **limits: Any) -> Iterator[str]:
    """A server in a thread; its address."""
    port = free_port()
    config = uvicorn.Config(build_app(trained, Limits(**limits)), "127.0.0.1", port, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_for(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


def wait_for(address: str) -> None:
    for _ in range(600):
        try:
            get(address, "health")
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(address)


def get(address: str, path: str) -> Any:
    with urllib.request.urlopen(f"{address}/{path}", timeout=60) as answer:
        return json.load(answer)


def post(address: str, body: Any) -> tuple[int, Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{address}/act", data), timeout=60) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.parametrize(("family", "kind"), [("PPO continuous", "vector"), ("DQN", "Dict")])
def test_one_and_many_get_the_actions_of_the_lab(family: str, kind: str) -> None:
    trained = build(family, kind)
    obs = sample(trained.observation_space, 7)
    with serving(trained) as address:
        many = post(address, {"obs": to_plain(obs)})
        assert many == (200, {"action": to_plain(trained.act(obs))})
        one = post(address, {"obs": to_plain(take(obs, 2))})
        assert one == (200, {"action": to_plain(trained.act(take(obs, 2)))})
        assert get(address, "health")["actions"] == 8
        assert get(address, "contract") == describe_agent(trained)
        paths = get(address, "openapi.json")["paths"]
        assert {"/act", "/health", "/contract"} <= paths.keys()
        assert "obs" in paths["/act"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]


def test_masks_and_hybrid_actions() -> None:
    algorithm, memory, _, _ = FAMILIES["PPO"]
    facts = make_facts(OBSERVATIONS["vector"][0], ACTIONS["hybrid"], is_masked=True)
    trained = make_agent(make_spec(algorithm, memory, MLP), facts)
    obs, mask = sample(trained.observation_space, 1)[0], [1, 0, 0, 1, 0, 1, 1]
    with serving(trained) as address:
        status, reply = post(address, {"obs": to_plain(obs), "mask": mask})
        assert (status, reply) == (200, {"action": to_plain(trained.act(obs, mask=mask))})
        assert post(address, {"obs": to_plain(obs)})[0] == 400


def test_requests_at_once_are_computed_together() -> None:
    trained = build("PPO", "vector")
    obs = sample(trained.observation_space, 200)
    with serving(trained) as address, ThreadPoolExecutor(32) as pool:
        replies = list(pool.map(lambda index: post(address, {"obs": obs[index].tolist()}), range(200)))
        health = get(address, "health")
    assert [reply["action"] for _, reply in replies] == trained.act(obs).tolist()
    assert health["actions"] == 200
    assert health["batches"] <= 200


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "Invalid JSON"),
        (b"[]", 400, "body"),
        ({}, 400, "obs: Field required"),
        ({"obs": [1, 2]}, 400, "expected (6,)"),
        ({"obs": [[1, 2], [3]]}, 400, "obs: "),
        ({"obs": ["x"] * 6}, 400, "obs: could not convert"),
        ({"obs": None}, 400, "obs"),
        (b'{"obs": [NaN, 0, 0, 0, 0, 0]}', 400, "obs: a number is not finite"),
        ({"obs": [[0.0] * 6] * 9}, 400, "obs: 9 observations, at most 8 are taken at once"),
        ({"obs": [0.0] * 6, "session": "a"}, 400, "no hidden state"),
        ({"obs": [0.0] * 6, "mask": [1] * 5}, 400, "without masks"),
        ({"obs": [0.0] * 6, "more": 1}, 400, "more: Extra inputs"),
        ({"obs": [0.0] * 10_000}, 413, "the body has"),
    ],
)
def test_what_does_not_fit_is_refused(plain: str, body: Any, status: int, message: str) -> None:
    found, reply = post(plain, body)
    assert found == status
    assert message in reply["error"]
    assert "\n" not in reply["error"]
    # and the server goes on
    assert post(plain, {"obs": [0.0] * 6})[0] == 200


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    with serving(build("PPO", "vector"), max_batch=8, max_body=2000) as address:
        yield address


def test_a_body_without_a_length_is_not_read_to_its_end(plain: str) -> None:
    host, port = plain.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as one:
        one.sendall(b"POST /act HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        one.sendall(b"1000\r\n" + b" " * 4096 + b"\r\n")
        assert one.recv(4096).startswith(b"HTTP/1.1 413")


# --- recurrent agents


def test_a_session_keeps_the_hidden_state() -> None:
    trained = build("PPO continuous", "recurrent")
    obs = sample(trained.observation_space, 6)
    expected, state = [], trained.init_state()
    for index in range(6):
        action, state = trained.act(obs[index], state=state)
        expected.append(action.tolist())
    with serving(trained, max_session=2) as address:

        def play(session: str, **more: Any) -> list[Any]:
            bodies = [{"obs": one.tolist(), "session": session} for one in obs]
            bodies[0] |= more
            return [post(address, body)[1]["action"] for body in bodies]

        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(play, ("a", "b"))
        assert np.allclose(first, expected, atol=1e-6)
        assert np.allclose(second, expected, atol=1e-6)
        assert np.allclose(play("a", reset=True), expected, atol=1e-6)
        # without a reset the episode goes on
        assert not np.allclose(play("a"), expected, atol=1e-6)
        status, reply = post(address, {"obs": obs[0].tolist(), "session": "c"})
        assert (status, reply["error"]) == (
            503,
            "2 sessions are in use, as many as the server keeps; try again later",
        )
        assert get(address, "health")["sessions"] == 2
        # or the client keeps it
        state_plain: list[list[float]] = []
        given = []
        for one in obs:
            _, reply = post(address, {"obs": one.tolist(), "state": state_plain})
            given.append(reply["action"])
            state_plain = reply["state"]
        assert np.allclose(given, expected, atol=1e-6)
        for body, message in (
            ({"obs": obs[0].tolist()}, "give either a session id or a state"),
            ({"obs": obs[0].tolist(), "state": [[1.0]]}, "state: expected 1 x"),
            ({"obs": obs.tolist(), "session": "a"}, "takes one observation, not a batch"),
            ({"obs": obs[0].tolist(), "session": "x" * 200}, "session"),
        ):
            status, reply = post(address, body)
            assert status == 400
            assert message in reply["error"]


def test_a_reset_comes_after_what_was_asked_before_it() -> None:
    """A client that gave up waiting begins its next episode while the last step of the old one is computed."""
    trained = build("PPO continuous", "recurrent")
    obs = sample(trained.observation_space, 2)
    service = Service(trained, Limits())
    gate = threading.Event()
    compute = service.batcher.compute

    def wait(*args: Any) -> tuple[Any, Any]:
        gate.wait(60)
        return compute(*args)

    service.batcher.compute = wait

    def body(index: int, **more: Any) -> bytes:
        return json.dumps({"obs": obs[index].tolist(), "session": "a", **more}).encode()

    async def run() -> bytes:
        service.batcher.start()
        old = asyncio.create_task(service.act(body(0)))
        await asyncio.sleep(0.1)
        new = asyncio.create_task(service.act(body(1, reset=True)))
        await asyncio.sleep(0.1)
        gate.set()
        await old
        reply = await new
        await service.batcher.close()
        return reply

    expected, _ = trained.act(obs[1], state=trained.init_state())
    assert np.allclose(json.loads(asyncio.run(run()))["action"], expected, atol=1e-6)


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def test_sessions_are_bounded_and_expire() -> None:
    clock, zero, one = Clock(), np.zeros((1, 2)), np.ones((1, 2))
    sessions = Sessions(2, 10.0, clock)
    sessions.load("a", zero)
    sessions.save("a", one)
    clock.time = 6.0
    sessions.load("b", zero)
    with pytest.raises(FullError):
        sessions.load("c", zero)
    assert sessions.load("a", zero) is one
    clock.time = 10.1
    # a was not used since it was saved, b was
    assert sessions.load("c", zero) is zero
    assert sessions.load("b", one) is zero
    assert len(sessions) == 2


def test_the_rate_of_each_client_is_limited() -> None:
    clock = Clock()
    rate = Rate(2.0, max_client=2, now=clock)
    assert [rate.is_allowed("a") for _ in range(3)] == [True, True, False]
    assert rate.is_allowed("b")
    clock.time = 0.5
    assert [rate.is_allowed("a") for _ in range(2)] == [True, False]
    rate.is_allowed("c")
    assert len(rate._left) == 2
    with serving(build("PPO", "vector"), rate=1.0) as address:
        found = [post(address, {"obs": [0.0] * 6})[0] for _ in range(5)]
    assert found[0] == 200
    assert 429 in found


def test_batches_keep_the_order_of_a_session_and_refuse_what_is_too_much() -> None:
    seen: list[list[float]] = []
    gate = threading.Event()

    def compute(rows: Any, state: Any, deterministic: bool) -> tuple[Any, Any]:
        gate.wait(60)
        seen.append(rows[:, 0].tolist())
        if 13 in rows[:, 0]:
            raise RuntimeError("a net of one's own")
        return rows, state

    async def run() -> None:
        batcher = Batcher(compute, slice_tree, max_batch=4, max_wait=7)
        batcher.start()

        def job(number: int, session: str | None = None, deterministic: bool = True) -> Job:
            return Job(np.full((1, 1), float(number)), np.zeros((1, 0)), deterministic, session)

        jobs = [job(0), job(1, "a"), job(2, "a"), job(3), job(4, None, False), job(13), job(6), job(7)]
        tasks = [asyncio.create_task(batcher.submit(jobs[0]))]
        await asyncio.sleep(0.1)
        tasks += [asyncio.create_task(batcher.submit(one)) for one in jobs[1:]]
        await asyncio.sleep(0.1)
        # the first is under way, seven wait
        with pytest.raises(BusyError):
            await batcher.submit(job(8))
        gate.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await batcher.close()
        assert [type(result) for result in results].count(RuntimeError) >= 1
        order = [number for batch in seen for number in batch]
        assert order.index(1) < order.index(2)
        assert not any({1.0, 2.0} <= set(batch) for batch in seen)
        assert all(len(batch) <= 4 for batch in seen)
        assert [batch for batch in seen if 4.0 in batch] == [[4.0]]
        assert sorted(order) == [0, 1, 2, 3, 4, 6, 7, 13]

    asyncio.run(run())


# --- the command


def test_sigterm_answers_what_is_under_way(tmp_path: Path) -> None:
    trained = build("PPO", "vector")
    write_agent(tmp_path / "agent.slm", trained, describe_agent(trained))
    port = free_port()
    command = [str(Path(sys.executable).with_name("slm-lab")), "serve", "agent.slm", "--port", str(port)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            wait_for(f"http://127.0.0.1:{port}")
            body = json.dumps({"obs": [0.0] * 6}).encode()
            with socket.create_connection(("127.0.0.1", port), timeout=60) as one:
                head = f"POST /act HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                # half of a request is under way when the signal comes
                one.sendall(head + body[:10])
                time.sleep(0.5)
                os.kill(process.pid, signal.SIGTERM)
                time.sleep(0.5)
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port), timeout=5)
                one.sendall(body[10:])
                assert one.recv(4096).startswith(b"HTTP/1.1 200")
            process.wait(60)
        finally:
            process.kill()
    assert process.returncode in (0, -signal.SIGTERM)


def test_a_port_that_is_taken_gives_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    trained = build("PPO", "vector")
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(LabError, match=r"--port \d+: cannot listen"):
        serve(trained, "127.0.0.1", taken.getsockname()[1], Limits())
    assert "Serving" not in capsys.readouterr().err


def test_without_the_packages_one_line_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['uvicorn'] = None; sys.argv[0] = 'slm-lab'; from slm_lab.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", "agent.slm"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "serve needs the package 'uvicorn'" in done.stderr
    assert "pip install '.[serve]'" in done.stderr
