"""A served agent under load, beside a bare FastAPI wrapper of Stable-Baselines3.

`uv run --project bench python -m bench.serving agent.slm`: 200 clients on loopback, each with one request under way.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from bench.measure import QUICK_RESULTS, RESULTS, describe_machine
from slm_lab.lib.io import write_json

# what a user would write: predict in the handler, FastAPI runs it in its threads
WRAPPER = """
import sys
import gymnasium as gym
import stable_baselines3 as sb3
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

torch.set_num_threads(1)
model = sb3.PPO("MlpPolicy", gym.make("CartPole-v1"), device="cpu")

class Request(BaseModel):
    obs: list[float]

app = FastAPI()

@app.get("/health")
def health():
    return {"status": "ok"}

@app.post("/act")
def act(request: Request):
    return {"action": model.predict(request.obs, deterministic=True)[0].tolist()}

uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
"""


async def request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> int:
    """Send a request on a connection that stays open; the HTTP status of the reply."""
    head = f"POST /act HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.readuntil(b"\r\n\r\n")
    lines = answer.decode().lower().split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length"))
    await reader.readexactly(length)
    return int(lines[0].split()[1])


async def client(port: int, until: float, times: list[float], errors: list[str]) -> None:
    """One client: the next request when the last one is answered."""
    obs = np.random.default_rng(len(times)).normal(size=4).tolist()
    body = json.dumps({"obs": obs}).encode()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() < until:
            start = time.perf_counter()
            status = await request(reader, writer, body)
            times.append(time.perf_counter() - start)
            if status != 200:
                errors.append(str(status))
        writer.close()
    except (OSError, asyncio.IncompleteReadError) as error:
        errors.append(type(error).__name__)


async def load(port: int, num_client: int, seconds: float, process: psutil.Process) -> dict[str, Any]:
    """All clients at once; memory of the server at a tenth of the time and at the end."""
    times: list[float] = []
    errors: list[str] = []
    began = sum(process.cpu_times()[:2])
    until = time.perf_counter() + seconds
    tasks = [asyncio.create_task(client(port, until, times, errors)) for _ in range(num_client)]
    await asyncio.sleep(seconds / 10)
    early = process.memory_info().rss
    await asyncio.gather(*tasks)
    used = sum(process.cpu_times()[:2]) - began
    low, high = np.percentile(times, [50, 99])
    return {
        "requests": len(times),
        "per_second": len(times) / seconds,
        "p50_ms": float(low) * 1e3,
        "p99_ms": float(high) * 1e3,
        # of the processor, so that what else runs on the core does not count
        "server_us": used / max(1, len(times)) * 1e6,
        "errors": len(errors),
        "memory_mb": [early / 1e6, process.memory_info().rss / 1e6],
    }


def wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until a server answers."""

    async def ask() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    for _ in range(3000):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            asyncio.run(ask())
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the server does not answer")


def measure(command: list[str], port: int, num_client: int, seconds: float) -> dict[str, Any]:
    """One server under load, then asked to end."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environ) as process:
        try:
            wait_until_ready(port, process)
            result = asyncio.run(load(port, num_client, seconds, psutil.Process(process.pid)))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(40)
    return result


def main() -> None:
    """Measure both, and write the results."""
    parser = argparse.ArgumentParser(prog="bench.serving")
    parser.add_argument("agent", help="an exported CartPole agent with 2 x 64 units")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--core", type=int, help="the core of servers and clients (default the last one)")
    parser.add_argument("--quick", action="store_true", help="a smoke test, kept apart")
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0)) if args.core is None else args.core})
    script = str(Path(sys.executable).with_name("slm-lab"))
    contenders = {
        "lab": [script, "serve", args.agent, "--port", "8471"],
        "sb3": [sys.executable, "-c", WRAPPER, "8472"],
    }
    results: dict[str, Any] = {"quick": args.quick, "load": os.getloadavg()[0], **describe_machine()}
    for port, (name, command) in enumerate(contenders.items(), 8471):
        results[name] = measure(command, port, args.clients, 3.0 if args.quick else args.seconds)
        print(name, json.dumps(results[name]), flush=True)
    results["load_after"] = os.getloadavg()[0]
    write_json((QUICK_RESULTS if args.quick else RESULTS) / "serving.json", results)


if __name__ == "__main__":
    main()
