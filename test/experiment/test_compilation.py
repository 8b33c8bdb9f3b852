"""Whether updates are compiled is decided once, said, and kept."""

import sysconfig
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.faults.specs import make_spec
from slm_lab.agent.algorithm import ppo
from slm_lab.agent.compile.engine import PRIVATE, find_missing_part
from slm_lab.agent.memory.ring import Ring
from slm_lab.agent.registry import ALGORITHMS
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import EnvFacts, build_settings
from slm_lab.experiment import compilation, step_time
from slm_lab.experiment.build import build_session_agent
from slm_lab.experiment.compilation import resolve_compile
from slm_lab.experiment.launch import prepare, resume, start
from slm_lab.experiment.options import Options
from slm_lab.experiment.play import to_play
from slm_lab.lib.errors import SpecError
from slm_lab.lib.io import CACHE_VARIABLE
from slm_lab.results.folder import open_run_folder
from slm_lab.spec.schema import Spec
from test.gpu.pretend import pretend_gpu
from test.tiny import make_tiny_spec

pytestmark = pytest.mark.usefixtures("undrawn")
MLP: dict[str, Any] = {"type": "MLPNet", "hid_layers": [8]}
LARGE: dict[str, Any] = {"name": "Replay", "max_size": 10**6}


def build_spec(wish: Any = "auto", max_frame: int = 100_000, max_session: int = 4, **agent: Any) -> Spec:
    """PPO with an update per 8 frames, unless told otherwise."""
    agent = agent if "algorithm" in agent else {"training_epoch": 4, **agent}
    meta = {"compile": wish, "max_session": max_session}
    return make_tiny_spec(env={"max_frame": max_frame}, meta=meta, **agent)


def resolve(spec: Spec) -> tuple[bool, str]:
    env = build_vec_env(build_settings(spec.env, (0,), 1))
    resolved, note = resolve_compile(spec, build_session_agent(spec.replace(meta={"compile": False}), env, 0))
    env.close()
    assert isinstance(resolved.meta.compile, bool)
    return resolved.meta.compile, note


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bool]:
    """Which kinds of steps were timed: a plain one takes 2 ms here, a compiled one 0.5."""
    calls: list[bool] = []

    def time_step(spec: Spec, facts: EnvFacts, device: torch.device, is_compiled: bool) -> float:
        calls.append(is_compiled)
        return 0.0005 if is_compiled else 0.002

    monkeypatch.setattr(compilation, "time_step", time_step)
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return calls


def test_auto_compiles_what_saves_time(timed: list[bool]) -> None:
    # 4 sessions of 80,000 frames are 40,000 updates: 80 s, of which compiling saves 60 and takes 30 + 4 x 5
    spec = build_spec(max_frame=80_000)
    why = (
        "Updates are compiled: about 40,000 gradient steps in all of 0.5 ms each, plain 2 ms, measured on this machine"
    )
    assert resolve(spec) == (True, why)
    assert timed == [False, True]
    # the next start knows it, the number of sessions and frames aside; another net does not
    assert resolve(spec.replace(env={"max_frame": 90_000}))[0]
    assert timed == [False, True]
    resolve(build_spec(max_frame=80_000, net={**MLP, "hid_layers": [24]}))
    assert timed == [False, True, False, True]


def test_what_is_measured_holds_for_the_same_work(timed: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = build_spec(max_frame=80_000)
    resolve(spec)
    resolve(spec.replace(env={"normalize_obs": True}))
    assert timed == [False, True] * 2
    monkeypatch.setattr("slm_lab.experiment.step_time.metadata.version", lambda name: "99.0.0")
    resolve(spec)
    assert timed == [False, True] * 3


def test_auto_compiles_nothing_that_is_short(timed: list[bool]) -> None:
    assert resolve(build_spec(max_frame=60_000)) == (
        False,
        "Updates are not compiled: about 30,000 gradient steps in all of 2 ms each, compiling would take longer than "
        "it saves",
    )
    assert timed == [False]
    assert resolve(build_spec(max_frame=1_900)) == (
        False,
        "Updates are not compiled: about 950 gradient steps in all, too few for it to pay",
    )
    assert timed == [False]


def test_auto_stays_plain_where_compiling_gains_nothing(timed: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "time_step", lambda *args, is_compiled: 0.002)
    is_compiled, note = resolve(build_spec(max_frame=10**7))
    assert not is_compiled
    assert "of 2 ms each, plain 2 ms, measured on this machine" in note
    monkeypatch.setattr(compilation, "time_step", lambda *args, is_compiled: None if is_compiled else 0.002)
    assert resolve(build_spec(max_frame=10**7, net=MLP | {"hid_layers": [4]})) == (
        False,
        "Updates are not compiled: compiling failed",
    )


@pytest.mark.parametrize(("bf16", "hint"), [(0.0003, "; meta.precision: bf16 would take 0.3 ms"), (0.00045, "")])
def test_auto_mentions_bf16_before_long_runs(
    timed: list[bool], monkeypatch: pytest.MonkeyPatch, bf16: float, hint: str
) -> None:
    def time_step(spec: Spec, facts: EnvFacts, device: torch.device, is_compiled: bool) -> float:
        timed.append(is_compiled)
        return bf16 if spec.meta.precision == "bf16" else 0.0005 if is_compiled else 0.002

    monkeypatch.setattr(compilation, "time_step", time_step)
    # 2,500,000 steps of 0.5 ms: 1,250 s
    spec = build_spec(max_frame=5_000_000)
    is_compiled, note = resolve(spec)
    assert is_compiled
    assert note.endswith(f"plain 2 ms, measured on this machine{hint}")
    assert timed == [False, True, True]
    # known from then on, and nothing to offer where bf16 was chosen
    assert resolve(spec)[1] == note
    assert "bf16" not in resolve(spec.replace(meta={"precision": "bf16"}))[1]
    assert timed == [False, True, True, False]
    assert "bf16" not in resolve(build_spec(max_frame=80_000))[1]


@pytest.mark.parametrize("name", ["PPO", "DQN", "SoftActorCritic"])
def test_steps_are_timed_without_an_env(name: str) -> None:
    keys: dict[str, Any] = {} if name == "PPO" else {"algorithm": name}
    spec = build_spec(False, **keys)
    env = build_vec_env(build_settings(spec.env, (0,), 1))
    env.close()
    seconds = step_time.time_step(spec, env.facts, torch.device("cpu"), is_compiled=False)
    assert seconds is not None
    assert 0 < seconds < 1


def test_a_spec_that_diverges_on_made_up_data_is_not_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    spec = build_spec(max_frame=10**7, net={**MLP, "optim_spec": {"name": "SGD", "lr": 1e20}})
    count = "about 5,000,000 gradient steps in all"
    assert resolve(spec) == (False, f"Updates are not compiled: {count}, none of which could be timed")


def test_a_net_that_fits_once_but_not_twice_is_not_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def build(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 3.73 GiB.")

    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(step_time, "Agent", build)
    count = "about 5,000,000 gradient steps in all"
    assert resolve(build_spec(max_frame=10**7)) == (
        False,
        f"Updates are not compiled: {count}, none of which could be timed",
    )


def time_plainly(
    time_step: Callable[..., float | None], spec: Spec, facts: EnvFacts, device: torch.device, is_compiled: bool
) -> float | None:
    """Without machine code, as which a tenth is given."""
    seconds = time_step(spec, facts, device, is_compiled=False)
    return seconds and seconds * (0.1 if is_compiled else 1)


@pytest.mark.parametrize("name", ["DQN", "SIL"])
def test_preparing_a_run_leaves_a_gpu_empty(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is one replay of full size at a time, and none once the run is prepared."""
    alive: weakref.WeakSet[Ring] = weakref.WeakSet()
    sizes: list[int] = []
    build = Ring.__init__

    def count(self: Ring, *args: Any) -> None:
        build(self, *args)
        alive.add(self)
        sizes.append(sum(ring.num_position for ring in alive))

    monkeypatch.setattr(Ring, "__init__", count)
    monkeypatch.setattr(step_time, "NUM_TIMED", 2)
    monkeypatch.setattr(compilation, "_find_machine_obstacle", lambda agent: None)
    monkeypatch.setattr(compilation, "time_step", partial(time_plainly, step_time.time_step))
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path))
    keys, memory = ({}, LARGE) if name == "DQN" else ({"sil_memory": LARGE}, None)
    meta = {"compile": "auto", "device": "cuda:0"}
    spec = make_spec(name, env={"max_frame": 10**10}, meta=meta, keys=keys, memory=memory)
    with pretend_gpu():
        prepare(spec)
    # timed plain, compiled and in bf16
    assert sizes[0] == LARGE["max_size"]
    assert len(sizes) == 4
    assert max(sizes) <= sizes[0] + 3 * step_time.MAX_SIZE
    assert not alive


def test_a_file_of_times_that_is_broken_is_measured_again(timed: list[bool], tmp_path: Path) -> None:
    spec = build_spec(max_frame=80_000)
    resolve(spec)
    (file,) = (tmp_path / "cache" / "step_time").iterdir()
    for text in ("{", '{"plain": "1"}', "[]", ""):
        file.write_text(text)
        assert resolve(spec)[0]
    assert timed == [False, True] * 5


@pytest.mark.parametrize("wish", [True, False])
def test_a_wish_is_followed(wish: bool) -> None:
    assert resolve(build_spec(wish, max_frame=100))[0] is wish
    assert resolve(build_spec(wish, max_frame=10**9))[0] is wish


OBSTACLES: dict[str, tuple[dict[str, Any], str]] = {
    "recurrent": ({"net": {"type": "RecurrentNet", "seq_len": 8}}, "recurrent nets cannot be compiled"),
    "optimiser": (
        {"net": {**MLP, "optim_spec": {"name": "RAdam", "lr": 1e-3}}},
        "the optimiser RAdam cannot be compiled",
    ),
    "episodes": (
        {"algorithm": "Reinforce"},
        "batches of OnPolicyReplay differ in size",
    ),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_cannot_be_compiled_is_refused_on_demand_and_plain_on_auto(name: str) -> None:
    keys, words = OBSTACLES[name]
    with pytest.raises(SpecError, match=f"meta.compile: {words}.*; use auto or false"):
        resolve(build_spec(True, **keys))
    is_compiled, note = resolve(build_spec("auto", max_frame=10**9, **keys))
    assert not is_compiled
    assert words in note
    assert not resolve(build_spec(False, **keys))[0]


@pytest.mark.parametrize("wish", [True, "auto"])
def test_without_a_compiler_updates_are_plain(wish: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert resolve(build_spec(wish, max_frame=10**9)) == (
        False,
        "Updates are not compiled: there is no C++ compiler (no-such-compiler) on this machine",
    )


class OwnPPO(ppo.PPO):
    """Might read anything in its loss."""


def test_auto_leaves_code_of_others_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "PPO", OwnPPO)
    is_compiled, note = resolve(build_spec("auto", max_frame=10**9))
    assert not is_compiled
    assert "OwnPPO is your own code; set meta.compile: true if all that its loss reads are tensors" in note
    assert resolve(build_spec(True))[0]


def test_without_headers_updates_are_plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
    assert "the headers of Python (python3-dev) are not installed" in resolve(build_spec(max_frame=10**9))[1]


def test_a_machine_without_a_compiler_continues_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = build_spec(False, max_frame=512, max_session=1)
    result = start(spec, Options(tmp_path, "ERROR"))
    folder, _ = open_run_folder(str(result.folder), tmp_path)
    # as if it had been compiled, and had more to do
    for path in (folder.spec_file, folder.trial_spec_file(0)):
        text = path.read_text().replace("compile: false", "compile: true").replace("max_frame: 512", "max_frame: 1024")
        path.write_text(text)
    monkeypatch.setenv("CXX", "no-such-compiler")
    continued = resume(str(result.folder), Options(tmp_path, "ERROR"))
    assert continued.exit_code == 0
    assert [session.frame for session in continued.results] == [1024]
    # the processes of sessions read it from there
    assert "compile: false" in folder.trial_spec_file(0).read_text()


def test_the_choice_is_saved_with_the_run(tmp_path: Path) -> None:
    result = start(build_spec("auto", max_frame=256, max_session=1), Options(tmp_path, "ERROR"))
    _, saved = open_run_folder(str(result.folder), tmp_path)
    assert saved.meta.compile is False


def test_playing_compiles_nothing() -> None:
    assert to_play(build_spec(True)).meta.compile is False


@pytest.mark.parametrize(
    ("trained_on", "played_on"),
    [("cuda:0", "cuda:0"), ("auto", "auto"), ("cpu", "cpu"), ("cuda:1", "cpu"), ("mps", "cpu")],
)
def test_a_machine_with_one_gpu_plays_what_others_trained(trained_on: str, played_on: str) -> None:
    spec = build_spec().replace(meta={"device": trained_on})
    with pretend_gpu():
        assert to_play(spec).meta.device == played_on
    assert to_play(spec).meta.device == "cpu"


def test_the_choice_is_told_before_the_run(timed: list[bool]) -> None:
    spec, notes = prepare(build_spec("auto", max_frame=10**7))
    assert spec.meta.compile is True
    assert notes[0].startswith("Updates are compiled: about 5,000,000 gradient steps")


def test_a_torch_without_what_compiling_needs_trains_plainly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert find_missing_part() is None
    later = tmp_path / "graph.py"
    later.write_text(PRIVATE[0].read_text().replace("import compile_fx_inner", "import compile_fx_innermost"))
    monkeypatch.setattr("slm_lab.experiment.compilation.find_missing_part", partial(find_missing_part, [later]))
    is_compiled, note = resolve(build_spec(True))
    assert not is_compiled
    assert "has no torch._inductor.compile_fx.compile_fx_innermost, which compiling needs" in note
