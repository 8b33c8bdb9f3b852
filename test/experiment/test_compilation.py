"""Whether updates are compiled is decided once, said, and kept."""

import sysconfig
from pathlib import Path
from typing import Any

import pytest

from slm_lab.agent.algorithm import ppo
from slm_lab.agent.compile.engine import GRAPH, find_missing_part
from slm_lab.agent.registry import ALGORITHMS
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import build_settings
from slm_lab.experiment.build import build_session_agent
from slm_lab.experiment.compilation import resolve_compile
from slm_lab.experiment.launch import prepare, resume, start
from slm_lab.experiment.options import Options
from slm_lab.experiment.play import to_play
from slm_lab.lib.errors import SpecError
from slm_lab.results.folder import open_run_folder
from slm_lab.spec.schema import Spec
from test.tiny import make_tiny_spec

pytestmark = pytest.mark.usefixtures("undrawn")
MLP: dict[str, Any] = {"type": "MLPNet", "hid_layers": [8]}


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


def test_auto_compiles_what_is_long_enough_over_all_sessions() -> None:
    # 4 sessions of 40,000 frames are 20,000 updates
    assert resolve(build_spec(max_frame=42_000)) == (
        True,
        "Updates are compiled: about 21,000 gradient steps in all, which is worth the half minute it takes; later "
        "starts find it on disk",
    )
    is_compiled, note = resolve(build_spec(max_frame=38_000))
    assert not is_compiled
    assert note == "Updates are not compiled: about 19,000 gradient steps in all, compiling pays from 20,000 on"
    assert not resolve(build_spec(max_frame=42_000, max_session=1))[0]


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


def test_auto_leaves_convolutions_plain() -> None:
    conv = {"type": "ConvNet", "conv_hid_layers": [[4, 3, 2]], "fc_hid_layers": [8]}
    spec = build_spec("auto", max_frame=10**9, net=conv).replace(env={"name": "probe/Image-v0"})
    is_compiled, note = resolve(spec)
    assert not is_compiled
    assert "it gains nothing measurable with convolutions on a CPU" in note
    assert resolve(spec.replace(meta={"compile": True}))[0]


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


def test_the_choice_is_told_before_the_run() -> None:
    spec, notes = prepare(build_spec("auto", max_frame=10**7))
    assert spec.meta.compile is True
    assert notes[0].startswith("Updates are compiled: about 5,000,000 gradient steps")


def test_a_torch_without_what_compiling_needs_trains_plainly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert find_missing_part(GRAPH.read_text()) is None
    later = tmp_path / "graph.py"
    later.write_text(GRAPH.read_text().replace("import compile_fx_inner", "import compile_fx_innermost"))
    monkeypatch.setattr("slm_lab.experiment.compilation.GRAPH", later)
    is_compiled, note = resolve(build_spec(True))
    assert not is_compiled
    assert "has no torch._inductor.compile_fx.compile_fx_innermost, which compiling needs" in note
