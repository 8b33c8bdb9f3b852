"""Rows reach every sink once, across continuations, and a sink that fails costs a line and no frame.

The packages of W&B, MLflow and trackio are optional, so most tests have a stand-in; the last ones need the real ones:
`uv run --group wandb --group mlflow --group trackio pytest test/experiment/test_sink.py`.
"""

import importlib
import json
import os
import shutil
import sqlite3
import struct
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from slm_lab.cli.run import _load
from slm_lab.experiment import control, sink_thread
from slm_lab.experiment.control import Session
from slm_lab.experiment.launch import start
from slm_lab.experiment.messages import Progress
from slm_lab.experiment.options import Options
from slm_lab.experiment.sink import TIME_COLUMNS, Sink, build_sinks, close_sinks, write_row
from slm_lab.lib.errors import LabError
from slm_lab.results.folder import RunFolder
from slm_lab.results.table import read_table
from slm_lab.spec.loading import dump_spec
from slm_lab.spec.schema import Spec
from test.tiny import make_tiny_spec

KEY = "c0ffee" + "5eed" * 9
FRAMES = [100, 200, 300, 400, 500, 600]


def tiny(**meta: Any) -> Spec:
    return make_tiny_spec(env={"num_workers": 0}, meta={"log_frequency": 100, "checkpoint_frequency": 200, **meta})


def train(spec: Spec, path: Path, crash_at: int | None = None, stop_at: int | None = None) -> RunFolder:
    """Train or continue a session; a crash leaves rows behind that the last checkpoint does not know."""
    folder = RunFolder(path, spec.name)
    seen = [0]

    def on_progress(progress: Progress) -> None:
        seen[0] = progress.frame
        if progress.frame == crash_at:
            raise ConnectionResetError("crash")

    session = Session(spec, folder, 0, 0, on_progress, lambda: seen[0] == stop_at)
    if crash_at is None:
        session.run()
    else:
        with pytest.raises(ConnectionResetError, match="crash"):
            session.run()
    return folder


class Recorder:
    """A sink that remembers, or fails from a frame on."""

    title = "Recorder"

    def __init__(self, fails_at: float = float("inf")) -> None:
        self.fails_at = fails_at
        self.rows: list[tuple[int, dict[str, float]]] = []
        self.num_close = 0

    def write(self, row: Mapping[str, float], frame: int) -> None:
        if frame >= self.fails_at:
            raise OSError("the line\nis cut")
        self.rows.append((frame, dict(row)))

    def close(self) -> None:
        self.num_close += 1
        if self.fails_at < float("inf"):
            raise OSError("still cut")


def use(monkeypatch: pytest.MonkeyPatch, *sinks: Sink) -> None:
    monkeypatch.setattr(control, "build_sinks", lambda *_: list(sinks))


# --- what every sink gets


def test_rows_of_training_and_evaluation_reach_a_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = Recorder()
    use(monkeypatch, sink)
    folder = train(tiny(rigorous_eval=2, eval_frequency=200), tmp_path)
    for kind in ("train", "eval"):
        table = read_table(folder.table_file(0, 0, kind))
        name = f"{kind}/total_reward"
        points = [(frame, row[name]) for frame, row in sink.rows if name in row]
        assert points == list(zip(table["frame"].tolist(), table["total_reward"].tolist(), strict=True))
        assert len(points) == (6 if kind == "train" else 3)
    names = {name for _, row in sink.rows for name in row}
    assert {"train/loss", "train/entropy", "train/lr", "eval/total_reward_ma"} <= names
    assert {name for name in names if name.startswith("time/")} == {f"time/{name}" for name in TIME_COLUMNS}
    # the axis is no curve, what is not known yet is no point, and the clock stands once
    assert not names & {"train/frame", "eval/frame", "eval/loss", "eval/fps", "eval/lr"}
    assert "train/loss" not in sink.rows[0][1]
    assert sink.num_close == 1


def test_a_failing_sink_is_dropped_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warnings: list[str]
) -> None:
    good, bad = Recorder(), Recorder(fails_at=300)
    use(monkeypatch, bad, good)
    folder = train(tiny(), tmp_path)
    assert [frame for frame, _ in bad.rows] == FRAMES[:2]
    assert [frame for frame, _ in good.rows] == FRAMES
    assert read_table(folder.table_file(0, 0, "train"))["frame"].tolist() == FRAMES
    assert warnings == ["Recorder: no rows from frame 300 on, training continues without: the line is cut"]
    assert bad.num_close == good.num_close == 1


def test_a_sink_that_cannot_be_closed_is_told(warnings: list[str]) -> None:
    good, bad = Recorder(), Recorder(fails_at=10)
    sinks: list[Sink] = [good, bad]
    write_row(sinks, {"loss": 1.0}, 1)
    close_sinks(sinks)
    assert warnings == ["Recorder: the last rows may be missing there: still cut"]
    assert good.num_close == 1


def test_sinks_change_no_number(tmp_path: Path) -> None:
    plain = train(tiny(), tmp_path / "plain")
    drawn = train(tiny(tensorboard=True), tmp_path / "drawn")
    one, two = (read_table(folder.table_file(0, 0, "train")) for folder in (plain, drawn))
    assert np.array_equal(one["loss"], two["loss"], equal_nan=True)
    assert np.isfinite(one["loss"]).sum() > 1
    assert not list((tmp_path / "plain").rglob("events.*"))


# --- TensorBoard


def curve(folder: RunFolder, name: str) -> list[tuple[int, float]]:
    events = EventAccumulator(str(folder.log_file(0, 0).with_suffix("")), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(name)]


@pytest.mark.parametrize("crash_at", [100, 300, 500])
def test_a_continued_curve_has_each_row_once(tmp_path: Path, crash_at: int) -> None:
    # checkpoints at 200 and 400: none yet at 100, and rows beyond the last one later
    spec = tiny(tensorboard=True, rigorous_eval=2, eval_frequency=100)
    train(spec, tmp_path, crash_at)
    folder = train(spec, tmp_path)
    for kind in ("train", "eval"):
        table = read_table(folder.table_file(0, 0, kind))
        points = curve(folder, f"{kind}/total_reward")
        assert [frame for frame, _ in points] == FRAMES
        assert [value for _, value in points] == pytest.approx(table["total_reward"].tolist())


def test_a_row_at_the_checkpoint_survives_a_late_evaluation(tmp_path: Path) -> None:
    # the stop comes with the row of frame 200, so its evaluation is made up for by the continuation
    spec = tiny(tensorboard=True, rigorous_eval=2, eval_frequency=200)
    train(spec, tmp_path, stop_at=200)
    folder = train(spec, tmp_path)
    assert [frame for frame, _ in curve(folder, "train/total_reward")] == FRAMES
    assert [frame for frame, _ in curve(folder, "eval/total_reward")] == [200, 400, 600]


def test_hyperparameters_are_logged_once(tmp_path: Path) -> None:
    spec = tiny(tensorboard=True)
    train(spec, tmp_path, stop_at=300)
    folder = train(spec, tmp_path)
    events = EventAccumulator(str(folder.log_file(0, 0).with_suffix("")))
    events.Reload()
    data = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    content = plugin_data_pb2.HParamsPluginData.FromString(data).session_start_info.hparams
    assert content["agent.algorithm.name"].string_value == "PPO"
    assert content["env.max_frame"].number_value == 600
    assert content["agent.net.hid_layers"].string_value == json.dumps(spec.agent.net.model_dump()["hid_layers"])
    files = [file.read_bytes() for file in tmp_path.rglob("events.*")]
    assert (len(files), sum(b"session_start_info" in file for file in files)) == (2, 1)


def test_a_run_that_is_done_gets_no_further_file(tmp_path: Path) -> None:
    spec = tiny(tensorboard=True)
    train(spec, tmp_path)
    before = list(tmp_path.rglob("events.*"))
    train(spec, tmp_path)
    assert len(before) == 1
    assert list(tmp_path.rglob("events.*")) == before


@pytest.mark.parametrize(
    ("mode", "changes", "expected"),
    [
        ("dev", [], True),
        ("dev", ["meta.tensorboard=false"], False),
        ("dev", ["meta.tensorboard=true"], True),
        ("train", [], False),
        ("train", ["meta.tensorboard=true"], True),
    ],
)
def test_one_switch_in_every_mode(mode: str, changes: list[str], expected: bool) -> None:
    assert _load("ppo_cartpole", None, changes, mode).meta.tensorboard is expected


# --- W&B, with a stand-in for its package


class StandIn:
    """What the sink uses of W&B; a run remembers what it is told."""

    def __init__(self) -> None:
        self.mode = "online"
        self.has_key = True
        self.summary: dict[str, float] = {}
        self.resumed = False
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.calls: list[dict[str, Any]] = []
        self.rows: list[dict[str, float]] = []
        self.metrics: list[tuple[str, str | None]] = []
        self.num_finish = 0

    def as_module(self) -> types.ModuleType:
        module = types.ModuleType("wandb")
        content = {"Settings": dict, "init": self.init, "login": self.login, "setup": self.setup}
        vars(module).update(content)
        return module

    def setup(self, settings: dict[str, Any]) -> types.SimpleNamespace:
        assert settings["silent"]
        return types.SimpleNamespace(settings=types.SimpleNamespace(mode=self.mode))

    def login(self, *, prompt: bool, verify: bool) -> bool:
        assert not prompt
        assert not verify
        return self.has_key

    def init(self, **arguments: Any) -> "StandIn":
        assert self.gate.wait(60)
        self.calls.append(arguments)
        if self.error is not None:
            raise self.error
        return self

    def define_metric(self, name: str, step_metric: str | None = None) -> None:
        self.metrics.append((name, step_metric))

    def log(self, row: dict[str, float]) -> None:
        self.rows.append(row)

    def finish(self) -> None:
        self.num_finish += 1


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    for name in ("WANDB_PROJECT", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", stand_in.as_module())
    monkeypatch.delitem(sys.modules, "slm_lab.experiment.wandb_sink", raising=False)
    yield stand_in
    sys.modules.pop("slm_lab.experiment.wandb_sink", None)


def build(path: Path, trial: int = 0, session: int = 0, **meta: Any) -> Any:
    spec = tiny(wandb=True, **meta)
    (sink,) = build_sinks(spec, RunFolder(path, spec.name), trial, session)
    return sink


def test_a_session_is_one_run_of_wandb(tmp_path: Path, wandb: StandIn) -> None:
    path = tmp_path / "tiny_2026_01_01_120000"
    spec = tiny(wandb=True, rigorous_eval=2, eval_frequency=600)
    train(spec, path)
    (call,) = wandb.calls
    assert call["project"] == "slm-lab"
    assert call["group"] == path.name
    assert call["name"] == "t0/s0"
    assert call["tags"] == ["CartPole-v1", "PPO"]
    assert call["config"] == dump_spec(spec)["tiny"]
    assert call["dir"] == path / "log"
    assert call["resume"] == "allow"
    assert call["settings"]["silent"]
    assert wandb.metrics == [("frame", None), ("*", "frame")]
    assert [row["frame"] for row in wandb.rows] == [*FRAMES, 600]
    assert "eval/total_reward" in wandb.rows[-1]
    assert wandb.num_finish == 1


def test_the_project_is_that_of_the_environment(
    tmp_path: Path, wandb: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    assert build(tmp_path).arguments["project"] == "mine"


def test_a_run_has_an_id_of_its_own_for_good(tmp_path: Path, wandb: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_id(*where: Any, **meta: Any) -> str:
        return str(build(*where, **meta).arguments["id"])

    first = run_id(tmp_path / "a")
    # from the name of the folder alone, wherever it is seen from
    monkeypatch.chdir(tmp_path)
    assert run_id(Path("a")) == first
    others = [run_id(tmp_path / "b"), run_id(tmp_path / "a", 1), run_id(tmp_path / "a", 0, 1)]
    others.append(run_id(tmp_path / "a", seed=1))
    assert len({first, *others}) == 5
    assert all(name.isalnum() for name in others)


def test_a_continued_run_does_not_repeat_rows(tmp_path: Path, wandb: StandIn) -> None:
    spec = tiny(wandb=True)
    train(spec, tmp_path, crash_at=300)
    # the server tells what it has; the continuation starts at the checkpoint of frame 200
    wandb.resumed, wandb.summary = True, {"frame": 300}
    train(spec, tmp_path)
    assert [row["frame"] for row in wandb.rows] == [100, 200, 300, 400, 500, 600]
    assert wandb.calls[0]["id"] == wandb.calls[1]["id"]


def test_a_run_that_is_done_is_not_opened_again(tmp_path: Path, wandb: StandIn) -> None:
    train(tiny(), tmp_path)
    train(tiny(wandb=True), tmp_path)
    assert wandb.calls == []


def test_a_start_that_fails_is_one_line_without_the_key(
    tmp_path: Path, wandb: StandIn, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    wandb.error = ConnectionError(f"refused {KEY}\nby the server")
    sinks: list[Sink] = [build(tmp_path)]
    write_row(sinks, {"loss": 1.0}, 100)
    _wait_for_thread()
    for frame in (200, 300):
        write_row(sinks, {"loss": 1.0}, frame)
    close_sinks(sinks)
    assert warnings == [
        "W&B: no rows from frame 200 on, training continues without: ConnectionError: refused [secret] by the server"
    ]


def test_without_a_key_nobody_is_asked_for_one(tmp_path: Path, wandb: StandIn, warnings: list[str]) -> None:
    wandb.has_key = False
    folder = train(tiny(wandb=True), tmp_path)
    assert len(warnings) == 1
    assert "no API key; run `wandb login`, or set WANDB_API_KEY or WANDB_MODE=offline" in warnings[0]
    assert wandb.calls == []
    assert read_table(folder.table_file(0, 0, "train"))["frame"].tolist() == FRAMES
    # offline needs none
    wandb.mode = "offline"
    train(tiny(wandb=True), tmp_path / "offline")
    assert len(wandb.rows) == 6


def test_a_start_that_hangs_holds_nothing_up(
    tmp_path: Path, wandb: StandIn, warnings: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_thread, "CLOSE_SECONDS", 0.01)
    wandb.gate.clear()
    folder = train(tiny(wandb=True), tmp_path)
    assert read_table(folder.table_file(0, 0, "train"))["frame"].tolist() == FRAMES
    assert len(warnings) == 1
    assert "W&B: the last rows may be missing there: not sent within" in warnings[0]
    # it is not lost either, if the network comes back in time
    wandb.gate.set()
    _wait_for_thread()
    assert [row["frame"] for row in wandb.rows] == FRAMES


def _wait_for_thread() -> None:
    for thread in threading.enumerate():
        if thread.name == "W&B sink":
            thread.join(60)


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio"])
@pytest.mark.parametrize("is_folder", [False, True], ids=["missing", "folder of the same name"])
def test_a_missing_package_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_folder: bool
) -> None:
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name) if is_folder else None)
    monkeypatch.delitem(sys.modules, f"slm_lab.experiment.{name}_sink", raising=False)
    line = rf"^meta\.{name}: {name} is not installed; get it with `uv sync --group {name}`$"
    with pytest.raises(LabError, match=line):
        start(tiny(**{name: True}), Options(data_dir=tmp_path))
    assert not list(tmp_path.iterdir())


# --- W&B itself, offline

SCRIPT = """
import sys
from pathlib import Path
from slm_lab.experiment.control import Session
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import load_spec

spec = load_spec(sys.argv[1]).spec
seen = [0]
def on_progress(progress):
    seen[0] = progress.frame
Session(spec, RunFolder(Path(sys.argv[2]), spec.name), 0, 0, on_progress, lambda: seen[0] == int(sys.argv[3])).run()
"""


def read_records(path: Path) -> list[Any]:
    """The records of a .wandb file: after its header, blocks of 32 KiB with parts of records."""
    proto: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    data, start, parts, records = path.read_bytes(), 7, b"", []
    while start + 7 <= len(data):
        if 32768 - start % 32768 < 7:
            start += 32768 - start % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", data, start)
        parts += data[start + 7 : start + 7 + size]
        start += 7 + size
        # 1: all of it, 4: the last part
        if kind in (1, 4):
            records.append(proto.Record.FromString(parts))
            parts = b""
    return records


def run_offline(
    write_spec: Callable[[Spec, Path], Path], tmp_path: Path, stop_at: int, sink: str = "wandb", **variables: str
) -> subprocess.CompletedProcess[str]:
    file = write_spec(tiny(**{sink: True}, rigorous_eval=2, eval_frequency=300), tmp_path / "spec.yaml")
    home = tmp_path / "home"
    home.mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, str(file), str(tmp_path / "run"), str(stop_at)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "HOME": str(home),
            "WANDB_API_KEY": KEY,
            "WANDB_MODE": "offline",
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )


def test_rows_and_run_of_the_real_client(tmp_path: Path, write_spec: Callable[[Spec, Path], Path]) -> None:
    pytest.importorskip("wandb", reason="needs the group wandb: uv sync --group wandb")
    for stop_at in (300, -1):
        ended = run_offline(write_spec, tmp_path, stop_at)
        assert "wandb" not in ended.stdout + ended.stderr
    files = sorted((tmp_path / "run" / "log" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    parts = [read_records(file) for file in files]
    runs = [next(record.run for record in part if record.WhichOneof("record_type") == "run") for part in parts]
    assert runs[0].run_id == runs[1].run_id
    for run in runs:
        assert (run.project, run.run_group, run.display_name) == ("slm-lab", "run", "t0/s0")
        assert set(run.tags) == {"CartPole-v1", "PPO"}
        config = {item.key: json.loads(item.value_json) for item in run.config.update}
        assert config["agent"]["algorithm"]["name"] == "PPO"
    rows = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
        for part in parts
        for record in part
        if record.WhichOneof("record_type") == "history"
    ]
    folder = RunFolder(tmp_path / "run", "tiny")
    for kind in ("train", "eval"):
        table = read_table(folder.table_file(0, 0, kind))
        name = f"{kind}/total_reward"
        points = [(row["frame"], row[name]) for row in rows if name in row]
        assert points == list(zip(table["frame"].tolist(), table["total_reward"].tolist(), strict=True))
    metrics = [record.metric for part in parts for record in part if record.WhichOneof("record_type") == "metric"]
    assert any(metric.glob_name == "*" and metric.step_metric == "frame" for metric in metrics)
    assert_no_key(tmp_path)


def test_a_server_out_of_reach_of_the_real_client(tmp_path: Path, write_spec: Callable[[Spec, Path], Path]) -> None:
    pytest.importorskip("wandb", reason="needs the group wandb: uv sync --group wandb")
    # nobody listens there
    ended = run_offline(write_spec, tmp_path, -1, WANDB_MODE="online", WANDB_BASE_URL="http://127.0.0.1:9")
    assert ended.stderr.count("W&B: ") == 1
    table = read_table(RunFolder(tmp_path / "run", "tiny").table_file(0, 0, "train"))
    assert table["frame"].tolist() == FRAMES
    assert_no_key(tmp_path)


def assert_no_key(path: Path) -> None:
    files = [file for file in path.rglob("*") if file.is_file()]
    # what is there is readable, so a key would be found
    assert any(b"t0/s0" in file.read_bytes() for file in files if file.suffix == ".wandb")
    assert not [file for file in files if KEY.encode() in file.read_bytes()]


# --- MLflow and trackio themselves

Points = dict[str, list[tuple[int, float]]]


def read_mlflow(path: Path) -> tuple[Points, dict[str, Any]]:
    """The points of each metric in order, and the hyperparameters, of the only run."""
    client: Any = importlib.import_module("mlflow").MlflowClient((path / "mlruns").as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("slm-lab").experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run t0/s0")
    assert {"env": "CartPole-v1", "algorithm": "PPO", "slm_lab.run": "run"}.items() <= run.data.tags.items()
    points = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: [(one.step, one.value) for one in history] for name, history in points.items()}, run.data.params


def read_trackio(path: Path) -> tuple[Points, dict[str, Any]]:
    database = sqlite3.connect(path / "home" / "slm-lab.db")
    points: Points = {}
    for step, text in database.execute("SELECT step, metrics FROM metrics WHERE run_name = 'run_t0_s0' ORDER BY step"):
        for name, value in json.loads(text).items():
            points.setdefault(name, []).append((step, value))
    ((config,),) = database.execute("SELECT config FROM configs").fetchall()
    return points, json.loads(config)


@pytest.mark.parametrize(("name", "read"), [("mlflow", read_mlflow), ("trackio", read_trackio)])
def test_a_session_is_one_run_of_the_real_client(
    tmp_path: Path,
    write_spec: Callable[[Spec, Path], Path],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    read: Callable[[Path], tuple[Points, Any]],
) -> None:
    pytest.importorskip(name, reason=f"needs the group {name}: uv sync --group {name}")
    variables = {"MLFLOW_DISABLE_TELEMETRY": "true", "TRACKIO_DIR": str(tmp_path / "home")}
    # it stops at a row beyond the checkpoint of frame 200, then is killed as it were: back to that checkpoint
    run_offline(write_spec, tmp_path, 200, name, **variables)
    kept = shutil.copytree(tmp_path / "run", tmp_path / "kept")
    run_offline(write_spec, tmp_path, 400, name, **variables)
    shutil.rmtree(tmp_path / "run")
    kept.rename(tmp_path / "run")
    ended = run_offline(write_spec, tmp_path, -1, name, **variables)
    assert not ended.stdout
    assert "racking" not in ended.stderr
    assert "mlflow" not in ended.stderr
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    points, params = read(tmp_path)
    folder = RunFolder(tmp_path / "run", "tiny")
    for kind in ("train", "eval"):
        table = read_table(folder.table_file(0, 0, kind))
        rows = list(zip(table["frame"].tolist(), table["total_reward"].tolist(), strict=True))
        assert points[f"{kind}/total_reward"] == rows
    assert [frame for frame, _ in points["time/fps"]] == FRAMES
    assert params["agent.algorithm.name"] == "PPO"
    assert str(params["env.max_frame"]) == "600"


def test_a_server_of_mlflow_out_of_reach(tmp_path: Path, write_spec: Callable[[Spec, Path], Path]) -> None:
    pytest.importorskip("mlflow", reason="needs the group mlflow: uv sync --group mlflow")
    # nobody listens there
    variables = {"MLFLOW_TRACKING_URI": f"http://me:{KEY}@127.0.0.1:9", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
    ended = run_offline(write_spec, tmp_path, -1, "mlflow", MLFLOW_DISABLE_TELEMETRY="true", **variables)
    assert ended.stderr.count("MLflow: ") == 1
    assert KEY not in ended.stderr
    table = read_table(RunFolder(tmp_path / "run", "tiny").table_file(0, 0, "train"))
    assert table["frame"].tolist() == FRAMES
