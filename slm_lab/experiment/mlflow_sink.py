"""Rows to MLflow; imported only if a spec asks for it, because its package is optional."""

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from slm_lab.experiment.sink import PROJECT, calc_run_id, list_hyperparameters
from slm_lab.experiment.sink_thread import Row, ThreadSink
from slm_lab.lib.io import lock_file
from slm_lab.results.folder import RunFolder
from slm_lab.spec.schema import Spec

# a resumed session finds its run by this tag
ID_TAG = "slm_lab.id"
LOCAL = Path("mlruns")
# time for other sessions to start
LOCK_SECONDS = 60.0
# MLflow refuses more in one call
MAX_PARAM = 100


class MlflowSink(ThreadSink):
    """One run of MLflow per session, at MLFLOW_TRACKING_URI or in ./mlruns."""

    title = "MLflow"

    def __init__(self, spec: Spec, folder: RunFolder, trial: int, session: int) -> None:
        super().__init__()
        group = folder.path.resolve().name
        self.name = f"{group} t{trial}/s{session}"
        self.tags = {
            ID_TAG: calc_run_id(group, trial, session, spec.meta.seed),
            "slm_lab.run": group,
            "env": spec.env.name,
            "algorithm": spec.agent.algorithm.name,
        }
        self.params = [Param(key, str(value)) for key, value in list_hyperparameters(spec).items()]

    def _send(self, rows: Iterator[Row]) -> None:
        # its lines would tear the live view
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        client, run_id, is_resumed = self._start()
        known: dict[str, int] = {}
        for frame, row in rows:
            for name in row if is_resumed else ():
                # rows after the checkpoint were sent before the session was interrupted
                if name not in known:
                    known[name] = max((point.step for point in client.get_metric_history(run_id, name)), default=-1)
            now = int(time.time() * 1000)
            points = [Metric(name, value, now, frame) for name, value in row.items() if frame > known.get(name, -1)]
            client.log_batch(run_id, metrics=points)
        client.set_terminated(run_id)

    def _start(self) -> tuple[MlflowClient, str, bool]:
        """The client, the id of the run, and whether the run existed."""
        if os.environ.get("MLFLOW_TRACKING_URI"):
            return self._open(MlflowClient())
        # Files instead of MLflow's database: a process that ends while it creates one leaves a database that cannot be
        # opened. MLflow 3.17 refuses files unless this variable is set.
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
        # otherwise sessions that start together would each create an experiment of this name
        with lock_file(LOCAL / ".slm_lab.lock", LOCK_SECONDS):
            return self._open(MlflowClient(LOCAL.absolute().as_uri()))

    def _open(self, client: MlflowClient) -> tuple[MlflowClient, str, bool]:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            try:
                client.create_experiment(name)
            except MlflowException:
                # unless another session has created it in between
                if client.get_experiment_by_name(name) is None:
                    raise
            experiment = client.get_experiment_by_name(name)
        found = client.search_runs([experiment.experiment_id], f"tags.`{ID_TAG}` = '{self.tags[ID_TAG]}'")
        if found:
            client.update_run(found[0].info.run_id, status="RUNNING")
            return client, found[0].info.run_id, True
        run_id = client.create_run(experiment.experiment_id, run_name=self.name, tags=self.tags).info.run_id
        for start in range(0, len(self.params), MAX_PARAM):
            client.log_batch(run_id, params=self.params[start : start + MAX_PARAM])
        return client, run_id, False
