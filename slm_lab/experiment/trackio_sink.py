"""Rows to trackio; imported only if a spec asks for it, because its package is optional."""

import os
from collections.abc import Iterator

import trackio
from trackio import init, run, utils
from trackio.sqlite_storage import SQLiteStorage

from slm_lab.experiment.sink import PROJECT, list_hyperparameters
from slm_lab.experiment.sink_thread import Row, ThreadSink
from slm_lab.results.folder import RunFolder
from slm_lab.spec.schema import Spec


class TrackioSink(ThreadSink):
    """One run of trackio per session, in the project of TRACKIO_PROJECT or `slm-lab`."""

    title = "trackio"

    def __init__(self, spec: Spec, folder: RunFolder, trial: int, session: int) -> None:
        super().__init__()
        self.group = folder.path.resolve().name
        # a resumed session finds its run by this name
        self.name = f"{self.group}_t{trial}_s{session}"
        self.project = os.environ.get("TRACKIO_PROJECT") or PROJECT
        self.config = list_hyperparameters(spec)

    def _send(self, rows: Iterator[Row]) -> None:
        # trackio prints to stdout, which would garble the live view, and has no option against it; redirecting stdout
        # would affect other threads
        for module in (trackio, run, utils):
            vars(module)["print"] = lambda *_, **__: None
        # rows after the checkpoint were sent before the session was interrupted
        known = {(point["step"], name) for point in SQLiteStorage.get_logs(self.project, self.name) for name in point}
        started = init(
            self.project,
            self.name,
            self.group,
            config=self.config,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        for frame, row in rows:
            fresh = {name: value for name, value in row.items() if (frame, name) not in known}
            if fresh:
                started.log(fresh, step=frame)
        started.finish()
