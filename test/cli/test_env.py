"""`slm-lab env` as a user calls it."""

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


def test_options_reach_the_env() -> None:
    assert "actions: Box" in call("check", "LunarLander-v3", "--kwargs", '{"continuous": true}', "--steps", "50")[1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("check", "CartPol-v1"), "did you mean 'CartPole-v1'?"),
        (("check", "no_such_package:Env-v0"), "module 'no_such_package'"),
        (("check", "CartPole-v1", "--kwargs", "{continuous}"), "--kwargs: JSON expected"),
        (("check", "CartPole-v1", "--kwargs", '{"wings": 2}'), "does not take an option given"),
        (("list", "zzzz"), "no registered env matches: zzzz"),
    ],
)
def test_mistakes_are_told_in_one_line(words: tuple[str, ...], message: str) -> None:
    code, _, err = call(*words)
    assert code == 2
    assert message in err


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
