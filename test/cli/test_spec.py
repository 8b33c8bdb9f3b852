"""`slm-lab spec`: check, show, list and describe, with clear messages and exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from slm_lab.lib.io import dump_yaml
from slm_lab.spec.loading import load_spec, spec_files, spec_names
from test.cli.conftest import Call


def demo(**algorithm: Any) -> dict[str, Any]:
    return {
        "agent": {
            "algorithm": {"name": "PPO", **algorithm},
            "memory": {"name": "OnPolicyBatchReplay"},
            "net": {"type": "MLPNet"},
        },
        "env": {"name": "${env}", "max_frame": 1000},
    }


@pytest.fixture
def call(call: Call) -> Call:
    """Runs `slm-lab spec ...`."""
    return lambda *arguments: call("spec", *arguments)


# --- check


def test_a_valid_spec_is_told_so(call: Call) -> None:
    assert call("check", "ppo_cartpole") == (0, "ppo_cartpole: valid\n", "")
    path = "slm_lab/spec/benchmark/ppo/ppo_cartpole.json"
    assert call("check", path) == (0, "ppo_cartpole: valid\n", "")
    assert call("check", path, "ppo_cartpole") == (0, "ppo_cartpole: valid\n", "")


def test_every_spec_of_a_file_is_checked(call: Call) -> None:
    Path("a.yaml").write_text(dump_yaml({"_shared": 1, "one": demo(), "two": demo(gamma=0.5)}))
    assert call("check", "a.yaml", "-s", "env=CartPole-v1") == (0, "one: valid\ntwo: valid\n", "")
    assert call("check", "a.yaml", "two", "-s", "env=CartPole-v1") == (0, "two: valid\n", "")


def test_a_wrong_spec_ends_in_its_mistakes_and_code_2(call: Call) -> None:
    Path("a.json").write_text(json.dumps({"demo": demo(gama=1, lam=2)}))
    code, out, err = call("check", "a.json", "-s", "env=CartPole-v1")
    assert (code, out) == (2, "")
    assert err == (
        "Error: spec 'demo' in a.json has 2 errors:\n"
        "  agent.algorithm.lam: less than or equal to 1 expected, got 2\n"
        "  agent.algorithm.gama: unknown key; did you mean 'gamma'?\n"
    )


def test_an_experiment_is_checked_run_by_run(call: Call) -> None:
    experiment: dict[str, Any] = {"specs": ["ppo_cartpole", "a2c_gae_cartpole"], "envs": ["CartPole-v1", "Acrobot-v1"]}
    Path("grid.yaml").write_text(dump_yaml({"experiment": experiment}))
    code, out, err = call("check", "grid.yaml", "-s", "env.max_frame=2000")
    assert code == 0, err
    assert out == "".join(f"{spec} on {env}: valid\n" for spec in experiment["specs"] for env in experiment["envs"])
    wrong = {"specs": ["ppo_cartpol", {"spec": "ppo_cartpole", "set": {"agent.algorithm.gama": 1}}, "ppo_acrobot"]}
    Path("grid.yaml").write_text(dump_yaml({"experiment": wrong}))
    code, out, err = call("check", "grid.yaml")
    assert (code, out) == (2, "ppo_acrobot: valid\n")
    assert "grid.yaml: ppo_cartpol: no file and no shipped spec is called 'ppo_cartpol'; did you mean" in err
    assert (
        "grid.yaml: ppo_cartpole: experiment.specs[1].set.agent.algorithm.gama=1: unknown key; did you mean 'gamma'?"
        in err
    )


def test_an_experiment_is_no_spec_to_show(call: Call) -> None:
    Path("my grid.yaml").write_text(dump_yaml({"experiment": {"specs": ["ppo_cartpole"]}}))
    message = "my grid.yaml is an experiment, not a spec; slm-lab run 'my grid.yaml' train trains it"
    assert call("show", "my grid.yaml") == (2, "", f"Error: {message}\n")
    # what a run of such a name has saved is one
    Path("saved.yaml").write_text(dump_yaml({"experiment": demo()}))
    assert call("show", "saved.yaml", "-s", "env=CartPole-v1")[0] == 0


def test_a_note_that_holds_for_several_specs_is_shown_once(call: Call) -> None:
    Path("a.json").write_text(json.dumps({"one": demo(clip_val_loss=True), "two": demo(clip_val_loss=True)}))
    code, out, err = call("check", "a.json", "-s", "env=CartPole-v1")
    assert (code, out) == (0, "one: valid\ntwo: valid\n")
    assert err == "note: agent.algorithm.clip_val_loss is now agent.algorithm.clip_vloss\n"


def test_the_mistakes_of_every_spec_are_listed(call: Call) -> None:
    Path("a.json").write_text(json.dumps({"one": demo(gama=1), "two": demo(lamm=1), "three": demo()}))
    code, out, err = call("check", "a.json", "-s", "env=CartPole-v1")
    assert code == 2
    assert "agent.algorithm.gama" in err
    assert "agent.algorithm.lamm" in err
    assert "three: valid" in out


def test_older_spellings_are_noted(call: Call) -> None:
    Path("a.json").write_text(json.dumps({"demo": demo(clip_val_loss=True)}))
    assert call("check", "a.json", "-s", "env=X-v1") == (
        0,
        "demo: valid\n",
        "note: agent.algorithm.clip_val_loss is now agent.algorithm.clip_vloss\n",
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no_such_spec_at_all"], "Error: no file and no shipped spec is called 'no_such_spec_at_all'"),
        (["no.json"], "Error: no spec file no.json"),
        (["ppo_cartpole", "-s", "x"], "Error: -s takes KEY=VALUE, got 'x'"),
        (["ppo_cartpole", "-s", "x=1"], "Error: -s x: spec 'ppo_cartpole' in "),
        (["ppo_cartpole", "ppo_acrobot"], "Error: 'ppo_cartpole' is not a file, so it takes no second name"),
        (["a.json", "two"], "Error: a.json has no spec 'two' (it holds: demo)\n"),
        (["a.json"], "Error: spec 'demo' in a.json has placeholders without a value:\n  env.name: ${env} is not set"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_message(call: Call, arguments: list[str], message: str) -> None:
    Path("a.json").write_text(json.dumps({"demo": demo()}))
    code, out, err = call("check", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert "Traceback" not in err


def test_a_bug_keeps_its_traceback(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("slm_lab.cli.spec.locate", broken)
    code, _, error = call("check", "ppo_cartpole")
    assert code == 1
    assert error.startswith("Traceback")
    assert "ZeroDivisionError" in error


# --- show


@pytest.mark.parametrize(("option", "file"), [([], "saved.yaml"), (["--json"], "saved.json")])
def test_what_is_shown_is_the_whole_spec(call: Call, option: list[str], file: str) -> None:
    code, out, err = call("show", "ppo_cartpole", "-s", "agent.algorithm.gamma=0.5", *option)
    assert (code, err) == (0, "")
    Path(file).write_text(out)
    expected = load_spec("ppo_cartpole", None, {"agent.algorithm.gamma": 0.5}).spec
    assert load_spec(file).spec == expected
    # defaults that the file leaves out are filled in
    assert "action_policy" in out
    assert "checkpoint_frequency" in out


def test_a_wrong_spec_is_not_shown(call: Call) -> None:
    code, out, err = call("show", "ppo_cartpole", "-s", "env.num_envs=0")
    assert (code, out) == (2, "")
    assert err == "Error: -s env.num_envs=0: greater than 0 expected, got 0\n"


# --- list


def test_the_list_holds_every_shipped_spec(call: Call) -> None:
    code, out, _ = call("list")
    assert code == 0
    listed = [line.split()[0] for line in out.splitlines()]
    assert sorted(listed) == sorted(name for path in spec_files() for name in spec_names(path))
    (row,) = [line.split() for line in out.splitlines() if line.startswith("ppo_cartpole ")]
    assert row == ["ppo_cartpole", "PPO", "CartPole-v1", "slm_lab/spec/benchmark/ppo/ppo_cartpole.json"]


def test_the_list_is_narrowed_by_words(call: Call) -> None:
    code, out, _ = call("list", "PPO", "cartpole", "benchmark/")
    assert code == 0
    assert out.splitlines()
    assert all("ppo" in line.lower() and "cartpole" in line.lower() for line in out.splitlines())


def test_a_list_of_nothing_is_told_so(call: Call) -> None:
    assert call("list", "zzz", "ppo") == (2, "", "Error: no shipped spec matches: zzz ppo\n")


# --- schema


def test_the_schema_is_json(call: Call) -> None:
    code, out, err = call("schema")
    assert (code, err) == (0, "")
    assert json.loads(out)["additionalProperties"]["properties"]["env"]["$ref"] == "#/$defs/EnvSpec"


def test_without_a_command_help_is_shown(call: Call) -> None:
    _, out, err = call()
    for name in ("check", "show", "list", "schema"):
        assert name in out + err
