"""Runs made up for tests: their tables, and the folders they leave behind."""

import csv
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from slm_lab.lib.array import Array
from slm_lab.lib.io import write_json, write_yaml
from slm_lab.results.folder import RunFolder
from slm_lab.results.metrics import SessionFile, calc_trial_metrics
from slm_lab.results.run import Run, read_run
from slm_lab.results.table import Table

Tables = Mapping[int, Table]
SPEC: dict[str, Any] = {
    "agent": {"algorithm": {"name": "PPO", "gamma": 0.99}, "net": {"hid_layers": [64, 64]}},
    "env": {"name": "CartPole-v1"},
}
PROVENANCE = {"command": ["slm-lab", "run"], "versions": {"numpy": "2"}, "machine": {"cores": 2}, "imports": []}
# neither a terminal nor a browser may act on it
HOSTILE = "x\x1b[31m\u202e\r\nFAKE Error: all is well\x9b2J"


def make_table(
    rows: int = 40, step: int = 500, seed: int = 0, level: float = 480.0, **columns: Array
) -> dict[str, Array]:
    """A session that learns, noisily; its algorithm reports nothing before its first training."""
    rng = np.random.default_rng(seed)
    frame = np.arange(1, rows + 1) * float(step)
    reward = np.linspace(20, level, rows) + rng.normal(0, 5, rows)
    table = dict(total_reward=reward, total_reward_ma=reward / 2, loss=rng.random(rows), fps=np.full(rows, 900.0))
    table |= dict(frame=frame, wall_t=frame / 900, t=frame, epi=frame / 100, opt_step=frame / 32)
    entropy = np.where(frame > 3 * step, rng.random(rows), math.nan)
    return table | dict(lr=np.full(rows, 3e-4), entropy=entropy) | columns


def make_spec(algorithm: str = "PPO", env: str = "CartPole-v1", memory: str = "OnPolicyBatchReplay") -> dict[str, Any]:
    return {
        "agent": {"algorithm": {"name": algorithm, "gamma": 0.99}, "memory": {"name": memory}},
        "env": {"name": env, "max_frame": 20_000},
    }


def make_run(tables: Tables, evals: Tables | None = None, algorithm: str = "PPO", path: Path = Path("run")) -> Run:
    """A run that never was in a folder."""
    return Run(path, "demo", 0, make_spec(algorithm), tables, evals or {}, None, {}, {}, ())


def write_table(path: Path, table: Table) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table)
        for row in zip(*table.values(), strict=True):
            writer.writerow("" if math.isnan(value) else repr(float(value)) for value in row)


def write_run(
    path: Path,
    tables: Tables | None = None,
    evals: Tables | None = None,
    name: str = "demo",
    spec: Mapping[str, Any] = SPEC,
    provenance: Mapping[str, Any] = PROVENANCE,
    has_end: bool = True,
) -> Run:
    """A run folder as a run leaves it, read back."""
    tables = {session: make_table(seed=session) for session in range(4)} if tables is None else tables
    folder = RunFolder(path, name)
    for kind, written in (("train", tables), ("eval", evals or {})):
        for session, table in written.items():
            write_table(folder.table_file(0, session, kind), table)
    (path / "model").mkdir()
    if spec:
        write_yaml(folder.spec_file, {name: spec})
    if provenance:
        write_json(folder.provenance_file, provenance)
    if has_end:
        ended = {"num_session": len(tables), "failed": (), "is_complete": True}
        calc_trial_metrics(tables, 20.0).model_copy(update=ended).write(folder.trial_metrics_file(0))
        for session in tables:
            own = SessionFile(session=session, is_done=True, phases={"act": 1.0, "env": 2.0, "update": 5.0})
            own.write(folder.session_metrics_file(0, session))
    return read_run(path)
