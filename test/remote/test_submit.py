"""The command on a stand-in for dstack: what it is asked, and what becomes of its answers."""

import json
from pathlib import Path

import pytest
import yaml

from slm_lab.cli.run_remote import split_arguments
from slm_lab.lib.errors import LabError
from slm_lab.remote import submit
from test.cli.command import call

ROOT = Path(__file__).parents[2]
TOKEN = "hf_planted_token"


@pytest.fixture(autouse=True)
def _upload(environ, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_REPO", "me/runs")


def test_words_are_file_name_and_mode() -> None:
    assert split_arguments(["ppo_cartpole"]) == ("ppo_cartpole", None, "train")
    assert split_arguments(["ppo_cartpole", "search"]) == ("ppo_cartpole", None, "search")
    assert split_arguments(["a.json", "b", "train"]) == ("a.json", "b", "train")
    assert split_arguments(["ppo_mujoco", "ppo_hopper"]) == ("ppo_mujoco", "ppo_hopper", "train")
    with pytest.raises(LabError, match="unknown mode 'serch'; did you mean 'search'"):
        split_arguments(["ppo_cartpole", "serch"])
    with pytest.raises(LabError, match="unknown mode 'train@x'"):
        split_arguments(["a.json", "b", "train@x"])


def test_a_run_is_submitted_and_the_next_commands_are_named(dstack, monkeypatch, capfd) -> None:
    assert call(monkeypatch, "run-remote", "ppo_cartpole", "train", "-n", "my-run", "-s", "meta.max_session=2") == 0
    (asked, _, _, _), (applied, text, folder, names) = dstack.calls
    assert asked == ["run", "get", "my-run", "--json"]
    assert applied == ["apply", "-f", "-", "-y", "--detach"]
    assert folder == str(ROOT)
    document = yaml.safe_load(text)
    assert document["name"] == "my-run"
    assert document["commands"][-1].endswith(" --continue --data-dir /checkpoint/my-run --upload-hf")
    # dstack takes the values from its environment
    assert names == ["HF_REPO", "HF_TOKEN"]
    out, err = capfd.readouterr()
    assert "submitted\n" in out
    for line in ("dstack ps", "dstack logs my-run", "dstack stop my-run", "slm-lab pull ppo_cartpole"):
        assert f" {line}\n" in out
    assert "no --volume" in out
    assert TOKEN not in out + err + (dstack.folder / "calls.jsonl").read_text()


def test_a_dry_run_shows_what_would_be_sent_and_calls_nothing(dstack, monkeypatch, capsys, tmp_path) -> None:
    before = sorted(path.name for path in tmp_path.rglob("*"))
    assert call(monkeypatch, "run-remote", "--gpu", "ppo_cartpole", "--dry-run", "--spot") == 0
    first, text = capsys.readouterr().out.split("\n", 1)
    assert first == "# dstack apply -f - -y --detach < this"
    assert yaml.safe_load(text)["spot_policy"] == "spot"
    assert TOKEN not in text
    assert dstack.calls == []
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "words",
    [
        ["ppo_cartpole", "-s", "x=1; touch pwned"],
        ["ppo_cartpole", "-n", "No_Good"],
        ["ppo_cartpole", "--max-price", "-1"],
        ["ppo_cartpole", "--max-duration", "soon"],
        ["ppo_cartpole", "enjoy@latest"],
        ["/etc/passwd.json", "x"],
    ],
)
def test_a_mistake_is_one_line_and_dstack_is_not_called(words, dstack, monkeypatch, capsys) -> None:
    assert call(monkeypatch, "run-remote", *words) == 2
    err = capsys.readouterr().err
    assert err.startswith("Error: ")
    assert dstack.calls == []
    assert not Path("pwned").exists()


def test_without_a_token_nothing_is_sent(dstack, monkeypatch, capsys) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert call(monkeypatch, "run-remote", "ppo_cartpole") == 2
    assert "HF_TOKEN is not set" in capsys.readouterr().err
    # a dry run needs none, but says that one will be needed
    assert call(monkeypatch, "run-remote", "ppo_cartpole", "--dry-run") == 0
    assert "Note: HF_TOKEN is not set" in capsys.readouterr().err
    assert dstack.calls == []
    assert call(monkeypatch, "run-remote", "ppo_cartpole", "--no-upload-hf") == 0
    assert "HF_TOKEN" not in dstack.calls[-1][1]
    assert "pull" not in capsys.readouterr().out


def test_a_run_under_way_is_not_replaced(dstack, monkeypatch, capsys) -> None:
    dstack.answer("run", json.dumps({"status": "running"}))
    assert call(monkeypatch, "run-remote", "ppo_cartpole") == 2
    assert "a run 'ppo-cartpole' is already running" in capsys.readouterr().err
    assert [words[0] for words, *_ in dstack.calls] == ["run"]
    # one that has ended gives its name away
    dstack.answer("run", json.dumps({"status": "failed"}))
    assert call(monkeypatch, "run-remote", "ppo_cartpole") == 0
    assert dstack.calls[-1][0][0] == "apply"


@pytest.mark.parametrize(
    ("command", "answer", "code", "message"),
    [
        ("run", ("No default project, specify one\n", "", 1), 2, "dstack is not configured: No default project"),
        ("run", ("", "connection refused\n", 3), 3, "dstack cannot list runs: connection refused"),
        ("run", ("nothing of use", "", 0), 2, "returned no status but: nothing of use"),
        ("apply", ("", "no such volume\n", 7), 7, "no such volume\nError: dstack refused the run 'ppo-cartpole'"),
    ],
)
def test_what_dstack_says_is_passed_on(command, answer, code, message, dstack, monkeypatch, capfd) -> None:
    dstack.answer(command, *answer)
    assert call(monkeypatch, "run-remote", "ppo_cartpole") == code
    assert message in capfd.readouterr().err
    assert [words[0] for words, *_ in dstack.calls] == ["run", "apply"][: 2 if command == "apply" else 1]


def test_a_missing_dstack_is_told_with_how_to_install_it(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(submit.sys, "executable", str(tmp_path / "python"))
    assert call(monkeypatch, "run-remote", "ppo_cartpole") == 2
    err = capsys.readouterr().err
    assert err.startswith("Error: dstack is not installed; run `uv sync --no-default-groups --group remote`")
