"""`slm-lab env` as a user calls it."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slm_lab.cli.env import app, newest_ids


def call(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(words))
    return result.exit_code, result.stdout, result.stderr


def test_check_ends_with_the_next_command() -> None:
    code, out, _ = call("check", "CartPole-v1", "--steps", "100")
    assert code == 0
    assert "ok     actions: Discrete(2)" in out
    assert out.endswith("Train in it with: slm-lab run SPEC train -s env.name=CartPole-v1\n")
    out = call("check", "CartPole-v1", "--steps", "10", "--import", "json")[1]
    assert out.endswith("Train in it with: slm-lab run --import json SPEC train -s env.name=CartPole-v1\n")


def test_options_reach_the_env_and_the_next_command() -> None:
    given = ("--kwargs", '{"continuous": true}', "--wrappers", '["RecordEpisodeStatistics"]')
    out = call("check", "LunarLander-v3", *given, "--steps", "50")[1]
    assert "actions: Box" in out
    assert out.endswith("""-s 'env.kwargs={"continuous": true}' -s 'env.wrappers=["RecordEpisodeStatistics"]'\n""")


@pytest.mark.parametrize(
    ("wrapper", "words"),
    [("RecordEpisodeStatistics", "resume exactly"), ("NormalizeObservation", "resumes statistically")],
)
def test_the_check_tells_whether_a_wrapper_can_be_rebuilt(wrapper: str, words: str) -> None:
    assert words in call("check", "CartPole-v1", "--wrappers", f'["{wrapper}"]', "--steps", "50")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("check", "CartPol-v1"), "did you mean 'CartPole-v1'?"),
        (("check", "no_such_package:Env-v0"), "module 'no_such_package'"),
        (("check", "CartPole-v1", "--kwargs", "{continuous}"), "--kwargs: JSON expected"),
        (("check", "CartPole-v1", "--kwargs", '{"wings": 2}'), "does not take an option given"),
        (("check", "CartPole-v1", "--wrappers", "ClipReward"), "--wrappers: JSON expected, such as '[\"ClipReward\"]'"),
        (("check", "CartPole-v1", "--wrappers", '["ClipRewar"]'), "did you mean 'ClipReward'?"),
        (("check", "CartPole-v1", "--wrappers", "[1]"), "env.wrappers[0]: mapping expected, got 1"),
        (("check", "playground/X", "--wrappers", '["RecordEpisodeStatistics"]'), "'playground/X' takes no wrappers"),
        (("list", "zzzz"), "no registered env matches: zzzz"),
    ],
)
def test_mistakes_are_told_in_one_line(words: tuple[str, ...], message: str) -> None:
    code, _, err = call(*words)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("fault", "code", "message"),
    [
        ("space = gym.spaces.Box(-1, 1, (0,))", 2, "has empty observations"),
        ("actions = gym.spaces.Box(-1, 1, (0,))", 2, "have no number to choose"),
        ("raise ValueError(token)", 1, "ValueError: [secret]"),
        ("self.step = lambda action: open(token)", 2, "No such file or directory: '[secret]'"),
        ("import sys; sys.exit(0)", 2, "exits the process when it is made"),
        ("import sys; self.step = lambda action: sys.exit(0)", 2, "exits the process: SystemExit(0)"),
        ("import os; self.step = lambda action: os._exit(0)", 2, "exits the process: SystemExit(0)"),
        ("self.close = lambda: open(token)", 0, "Train in it with"),
    ],
)
def test_what_an_env_does_wrong_ends_without_its_secrets(
    fault: str, code: int, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "odd_env.py").write_text(
        "import gymnasium as gym\n"
        "class Odd(gym.Env):\n"
        "    def __init__(self):\n"
        "        token = 'hf_' + 'abcdefghijklmnopqrstuvwxyz'\n"
        "        space, actions = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)\n"
        f"        {fault}\n"
        "        self.observation_space, self.action_space = space, actions\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed)\n"
        "        self.observation_space.seed(seed)\n"
        "        return self.observation_space.sample(), {}\n"
        "    def step(self, action):\n"
        "        return self.observation_space.sample(), 0.0, True, False, {}\n"
        "gym.register('Odd-v0', entry_point=Odd)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("odd_env", None)
    found, out, err = call("check", "odd_env:Odd-v0", "--steps", "20")
    assert found == code, err
    assert message in out + err
    assert "hf_abc" not in out + err


def test_list_by_family() -> None:
    out = call("list")[1]
    families = [line.partition(" (")[0] for line in out.splitlines() if not line.startswith(" ")]
    assert families[:4] == ["classic control", "Box2D", "MuJoCo", "Atari"]
    mujoco = out.partition("MuJoCo (11)\n")[2].partition("Atari")[0].split()
    assert "Hopper-v5" in mujoco
    # of several versions the newest
    assert "Hopper-v4" not in out
    assert call("list", "pong")[1].split("\n")[1:2] == ["  ALE/Pong-v5"]
    assert len(newest_ids()) == len(set(newest_ids()))
