"""Rows to Weights & Biases; loaded only where a spec asks for it, because its package is optional."""

import hashlib
import os
from collections.abc import Mapping
from queue import SimpleQueue
from threading import Thread
from typing import Any

from wandb import Settings, init, login, setup

from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import dump_spec
from slm_lab.spec.schema import Spec

PROJECT = "slm-lab"
# less than a session that is asked to stop has before it is killed
CLOSE_SECONDS = 5.0
# a process that ends waits for a start that hangs
INIT_SECONDS = 15.0
# W&B refuses longer ones
MAX_TAG = 64


class WandbSink:
    """One run of W&B per session, fed by a thread: neither its start nor a lost network holds training up."""

    title = "W&B"

    def __init__(self, spec: Spec, folder: RunFolder, trial: int, session: int) -> None:
        group = folder.path.resolve().name
        self.arguments: dict[str, Any] = {
            # W&B reads its variables by itself; an argument would overrule them
            "project": os.environ.get("WANDB_PROJECT") or PROJECT,
            "id": calc_run_id(group, trial, session, spec.meta.seed),
            "resume": "allow",
            "dir": folder.log_file().parent,
            "group": group,
            "name": f"t{trial}/s{session}",
            "tags": [tag[:MAX_TAG] for tag in (spec.env.name, spec.agent.algorithm.name)],
            "config": dump_spec(spec)[spec.name],
            # a run of the user's own, in the same process, is left alone
            "reinit": "create_new",
        }
        self._rows: SimpleQueue[dict[str, float] | None] = SimpleQueue()
        self._error: str | None = None
        self._thread: Thread | None = None

    def write(self, row: Mapping[str, float], frame: int) -> None:
        """Queue a row; the first one starts the thread."""
        self._check()
        if self._thread is None:
            # daemon: a network that hangs does not keep the process
            self._thread = Thread(target=self._send, name="wandb", daemon=True)
            self._thread.start()
        self._rows.put({**row, "frame": frame})

    def close(self) -> None:
        """Wait a little for the rows to be sent; what is not stays in log/wandb, for `wandb sync`."""
        if self._thread is None:
            return
        self._rows.put(None)
        self._thread.join(CLOSE_SECONDS)
        self._check()
        if self._thread.is_alive():
            folder = self.arguments["dir"] / "wandb"
            raise RuntimeError(f"not sent within {CLOSE_SECONDS:.0f} s; `wandb sync` sends what is in {folder}")

    def _check(self) -> None:
        if self._error is not None:
            raise RuntimeError(self._error)

    def _send(self) -> None:
        try:
            run = self._start()
            run.define_metric("frame")
            run.define_metric("*", step_metric="frame")
            # rows between the checkpoint and the end of the process before are there already
            known = run.summary.get("frame", 0) if run.resumed else 0
            while (row := self._rows.get()) is not None:
                if row["frame"] >= known:
                    run.log(row)
            run.finish()
        except Exception as error:  # anything from a network; the next write tells
            self._error = hide_key(f"{type(error).__name__}: {error}")

    def _start(self) -> Any:
        settings = Settings(
            # lines of W&B would tear the live view, and output captured by W&B would be kept twice
            silent=True,
            console="off",
            # sessions that start together would fight for the same links
            symlink=False,
            init_timeout=INIT_SECONDS,
            finish_timeout=CLOSE_SECONDS,
        )
        mode = setup(Settings(silent=True)).settings.mode
        # init would ask for a key on the terminal
        if mode in ("online", "run", "shared") and not login(prompt=False, verify=False):
            raise RuntimeError("no API key; run `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline")
        return init(**self.arguments, settings=settings)


def calc_run_id(group: str, trial: int, session: int, seed: int) -> str:
    """The same for a continued session; the seed tells apart runs that other machines start in the same second."""
    return hashlib.sha256(f"{group}/t{trial}/s{session}/{seed}".encode()).hexdigest()[:16]


def hide_key(text: str) -> str:
    """A message without the key, for it goes into a log file."""
    key = os.environ.get("WANDB_API_KEY")
    return text.replace(key, "***") if key else text
