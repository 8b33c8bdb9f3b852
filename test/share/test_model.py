"""Agents as model repos: pushed, loaded by name, and refused where anything is not as it says."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import slm_lab
from slm_lab.deploy.agent_file import read_agent
from slm_lab.experiment.launch import start
from slm_lab.experiment.options import Options
from slm_lab.lib.errors import LabError, ShareError
from slm_lab.share.hub_store import HubStore
from slm_lab.share.model import AGENT, MODEL, fetch_agent
from slm_lab.share.model_card import list_metrics
from slm_lab.share.model_push import push_model
from test.share.conftest import read_tree
from test.share.local_hub import WRITER, LocalHub
from test.tiny import make_tiny_spec

REPO = "me/cartpole"
TOP = {"README.md", "agent.slm", "spec.yaml", "learning_curve.png", "replay.mp4", "model.json"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was really trained, with two sessions."""
    spec = make_tiny_spec(meta={"max_session": 2})
    return start(spec, Options(data_dir=tmp_path_factory.mktemp("trained"))).folder


@pytest.fixture
def models(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    """The hub, known to the lab by variables, and a cache of its own."""
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", WRITER)
    monkeypatch.setenv("SLM_LAB_CACHE", str(tmp_path / "cache"))
    return hub


# exported and filmed once
PUSHED: dict[str, bytes] = {}


@pytest.fixture
def model(models: LocalHub, trained: Path) -> Path:
    """The files of a model repo at the hub."""
    folder = models.repo(f"models/{REPO}")
    if not PUSHED:
        push_model(trained, HubStore(REPO, WRITER, models.url, kind="model"))
        PUSHED.update(read_tree(folder))
    for path, data in PUSHED.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    models.log.clear()
    return folder


def read_front(model: Path) -> dict[str, object]:
    """The front matter of the card."""
    data = yaml.safe_load((model / "README.md").read_text().split("---\n", 2)[1])
    assert isinstance(data, dict)
    return data


def test_a_push_makes_a_model_repo_whose_agent_loads_by_name(models, trained, lab) -> None:
    out, _ = lab("push", str(trained), "--model", REPO)
    assert out == f"Shared   {models.url}/{REPO}\n"
    files = read_tree(models.repo(f"models/{REPO}"))
    assert {path for path in files if "/" not in path} == TOP
    assert f"data/{trained.name}/manifest.json" in files
    assert not models.repo(REPO).exists()

    agent = slm_lab.load_agent(f"hub:{REPO}")
    same = slm_lab.load_agent(trained)
    obs = np.stack([agent.observation_space.sample() for _ in range(50)])
    np.testing.assert_array_equal(agent.act(obs), same.act(obs))


def test_a_second_load_downloads_the_agent_no_more(model, models) -> None:
    first = fetch_agent(f"hub:{REPO}")
    assert first.read_bytes() == (model / AGENT).read_bytes()
    assert models.count("get") == 1
    assert fetch_agent(f"hub:{REPO}") == first
    assert models.count("get") == 1


def test_an_agent_that_differs_in_the_cache_is_fetched_again(model) -> None:
    path = fetch_agent(f"hub:{REPO}")
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"x")
    assert fetch_agent(f"hub:{REPO}").read_bytes() == whole


def test_a_push_again_sends_nothing(model, models, trained, lab) -> None:
    lab("push", str(trained), "--model", REPO)
    assert models.count("commit") == 0


def test_the_card_has_the_hubs_results_and_lines_that_work(model, trained, lab) -> None:
    front = read_front(model)
    assert front["library_name"] == "slm-lab"
    results: Any = front["model-index"]
    (result,) = results[0]["results"]
    assert result["task"]["type"] == "reinforcement-learning"
    assert result["dataset"] == {"name": "CartPole-v1", "type": "CartPole-v1"}
    score = read_agent(model / AGENT).contract["score"]
    assert [metric["value"] for metric in result["metrics"]] == [round(score["session"], 2), round(score["mean"], 2)]

    card = (model / "README.md").read_text()
    assert "](replay.mp4)" in card
    assert "](learning_curve.png)" in card
    (block,) = re.findall(r"```python\n(.*?)```", card, re.S)
    scope: dict[str, object] = {}
    exec(compile(block, "card", "exec"), scope)  # noqa: S102 -- the lab's own lines
    assert scope["env"].action_space.contains(scope["agent"].act(scope["obs"]))  # type: ignore[attr-defined]
    assert "@" in block

    commands = [line.split("   #")[0].split()[1:] for line in card.splitlines() if line.startswith("slm-lab ")]
    assert [words[0] for words in commands] == ["pull", "verify", "run", "report"]
    lab(*commands[0])
    out, _ = lab(*commands[1])
    assert out.count("identical from frame 0") == 2, out
    lab(*commands[3])


def test_a_run_without_a_renderer_has_no_replay(models, trained, monkeypatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise LabError("'CartPole-v1' cannot be rendered")

    monkeypatch.setattr("slm_lab.share.model_push.enjoy", fail)
    push_model(trained, HubStore(REPO, WRITER, models.url, kind="model"))
    model = models.repo(f"models/{REPO}")
    assert not (model / "replay.mp4").exists()
    assert "replay.mp4" not in (model / "README.md").read_text()


def test_the_agent_of_another_run_is_not_replaced(model, models, tmp_path) -> None:
    other = start(make_tiny_spec(meta={"seed": 7}), Options(data_dir=tmp_path / "other")).folder
    before = read_tree(model)
    with pytest.raises(ShareError, match=r"holds the agent of another run .*name another repo"):
        push_model(other, HubStore(REPO, WRITER, models.url, kind="model"))
    assert read_tree(model) == before


def test_a_pin_refuses_another_agent(model) -> None:
    sha256 = next(file["sha256"] for file in json.loads((model / MODEL).read_text())["files"] if file["path"] == AGENT)
    assert fetch_agent(f"hub:{REPO}@{sha256[:16]}") == fetch_agent(f"hub:{REPO}@{sha256}")
    with pytest.raises(ShareError, match=f"its agent is {sha256[:12]}..., not 00000000: it was replaced"):
        fetch_agent(f"hub:{REPO}@00000000")
    for pin in ("", "abc", "xyz12345", "a" * 65):
        with pytest.raises(ShareError, match="after @ come 8 to 64 digits"):
            fetch_agent(f"hub:{REPO}@{pin}")


def _swap(model: Path) -> None:
    data = bytearray((model / AGENT).read_bytes())
    data[-1] ^= 1
    (model / AGENT).write_bytes(data)


def _grow(model: Path) -> None:
    with (model / AGENT).open("ab") as file:
        file.write(b"0" * 1000)


def _write(text: str) -> object:
    return lambda model: (model / MODEL).write_text(text)


def _edit(**changes: object) -> object:
    def edit(model: Path) -> None:
        data = json.loads((model / MODEL).read_text())
        file = next(file for file in data["files"] if file["path"] == AGENT)
        file |= {key: value for key, value in changes.items() if key in file}
        data |= {key: value for key, value in changes.items() if key not in file}
        (model / MODEL).write_text(json.dumps(data))

    return edit


HOSTILE: dict[str, tuple[Any, str]] = {
    "swapped": (_swap, "is not what model.json says"),
    "grown": (_grow, "is not what model.json says"),
    "gone": (lambda model: (model / AGENT).unlink(), "is not what model.json says"),
    "no manifest": (lambda model: (model / MODEL).unlink(), "holds no agent"),
    "no JSON": (_write("{"), "is damaged"),
    "no object": (_write("[]"), "is damaged"),
    "huge manifest": (_write(" " * 200_000), "larger than"),
    "other format": (_edit(format=2), "has another format"),
    "path that leaves": (_edit(path="../../agent.slm"), "is none of its files"),
    "other file": (_edit(path="run.py"), "is none of its files"),
    "no hash": (_edit(sha256=""), "is none of its files"),
    "size of a disk": (_edit(size=10**13), "too much for an agent"),
    "negative size": (_edit(size=-1), "impossible size"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_not_as_it_says_is_refused_and_not_kept(name, model, tmp_path) -> None:
    change, reason = HOSTILE[name]
    change(model)
    with pytest.raises(ShareError, match=reason):
        slm_lab.load_agent(f"hub:{REPO}")
    assert not list((tmp_path / "cache").rglob("*.slm"))


def test_a_hostile_agent_with_a_true_hash_is_refused_by_its_reader(models, model, trained) -> None:
    (model / AGENT).write_bytes(b"\x80\x04cos\nsystem\n(S'true'\ntR.")
    store = HubStore(REPO, WRITER, models.url, kind="model")
    (file,) = [held for held in store.list_files("") if held.path == AGENT]
    edit: Any = _edit(sha256=file.sha256, git_sha1=file.git_sha1, size=file.size)
    edit(model)
    with pytest.raises(LabError, match=r"agent\.slm"):
        slm_lab.load_agent(f"hub:{REPO}")


@pytest.mark.parametrize("name", ["", "cartpole", "../x", "a/b/c", "me/cart pole"])
def test_a_name_that_is_no_repo_is_refused(name, models) -> None:
    with pytest.raises(ShareError, match="is not OWNER/NAME of a model repo"):
        slm_lab.load_agent(f"hub:{name}")


def test_one_run_at_a_time(models, trained, lab) -> None:
    _, err = lab("push", str(trained), str(trained), "--model", REPO, code=2)
    assert "a model repo holds the agent of one run" in err


def test_metrics_leave_out_what_is_unknown() -> None:
    assert list_metrics({"score": None}) == []
    score = {"mean": 1.234, "low": None, "high": None, "session": 2.0, "num_session": 1}
    assert [metric["value"] for metric in list_metrics({"score": score})] == [2.0]
    (_, mean) = list_metrics({"score": score | {"low": 1.0, "high": 1.5, "num_session": 3}})
    assert mean["name"] == "mean_reward of 3 sessions, 95 % interval [1.00, 1.50]"
