"""Rows to Weights & Biases; imported only if a spec asks for it, because its package is optional."""

import os
from collections.abc import Iterator
from typing import Any

from wandb import Settings, init, login, setup

from slm_lab.experiment.sink import PROJECT, calc_run_id
from slm_lab.experiment.sink_thread import CLOSE_SECONDS, Row, ThreadSink
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import dump_spec
from slm_lab.spec.schema import Spec

# a process that ends waits for a start that hangs, at most this long
INIT_SECONDS = 15.0
# W&B refuses longer ones
MAX_TAG = 64


class WandbSink(ThreadSink):
    """One run of W&B per session."""

    title = "W&B"

    def __init__(self, spec: Spec, folder: RunFolder, trial: int, session: int) -> None:
        super().__init__()
        group = folder.path.resolve().name
        self.arguments: dict[str, Any] = {
            # W&B reads its variables itself, but an argument would override this one
            "project": os.environ.get("WANDB_PROJECT") or PROJECT,
            "id": calc_run_id(group, trial, session, spec.meta.seed),
            "resume": "allow",
            "dir": folder.log_file().parent,
            "group": group,
            "name": f"t{trial}/s{session}",
            "tags": [tag[:MAX_TAG] for tag in (spec.env.name, spec.agent.algorithm.name)],
            "config": dump_spec(spec)[spec.name],
            # leaves another W&B run of the user in this process alone
            "reinit": "create_new",
        }
        self.remedy = f"; `wandb sync` sends what is in {self.arguments['dir'] / 'wandb'}"

    def _send(self, rows: Iterator[Row]) -> None:
        run = self._start()
        run.define_metric("frame")
        run.define_metric("*", step_metric="frame")
        # rows after the checkpoint were sent before the session was interrupted
        known = run.summary.get("frame", -1) if run.resumed else -1
        for frame, row in rows:
            # an evaluation comes after the training row of its frame, so it may be missing there
            if frame > known or (frame == known and all(name.startswith("eval/") for name in row)):
                run.log({**row, "frame": frame})
        run.finish()

    def _start(self) -> Any:
        settings = Settings(
            # lines of W&B would garble the live view, and captured output would be stored twice
            silent=True,
            console="off",
            # sessions that start together would compete for the same links
            symlink=False,
            init_timeout=INIT_SECONDS,
            finish_timeout=CLOSE_SECONDS,
        )
        mode = setup(Settings(silent=True)).settings.mode
        # init would ask for a key on the terminal
        if mode in ("online", "run", "shared") and not login(prompt=False, verify=False):
            raise RuntimeError("no API key; run `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline")
        return init(**self.arguments, settings=settings)
