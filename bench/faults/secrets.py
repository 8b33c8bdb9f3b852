"""Tokens planted wherever a run could pick them up, looked for in all that it writes, says and sends."""

import runpy
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.faults.command import finish, said, start_command, write_spec
from bench.faults.row import ROOT, Batch, Row, Verdict
from bench.faults.specs import NAME, make_spec
from slm_lab.lib.errors import SpecError
from slm_lab.lib.io import dump_yaml
from slm_lab.spec.loading import dump_spec, load_spec

# One raises with a token in its message, and has it in a variable of the frame that raises. The other ends in a fault;
# it reads the token from a variable that an option names, as specs are told to, keeps it, logs it and puts it into its
# infos.
LEAKY_ENV = """
import os
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv
from loguru import logger
from slm_lab.lib.errors import EnvFaultError

class Leaky(CartPoleEnv):
    count = 0

    def step(self, action):
        Leaky.count += 1
        token = os.environ["PLANTED_IN_ERROR"]
        if Leaky.count == 300:
            raise RuntimeError(f"could not log in with {token}")
        return super().step(action)

class Bad(CartPoleEnv):
    count = 0

    def __init__(self, variable, **kwargs):
        super().__init__(**kwargs)
        self.token = os.environ[variable]

    def step(self, action):
        Bad.count += 1
        obs, reward, *ends, info = super().step(action)
        info["token"] = token = self.token
        if Bad.count == 300:
            logger.warning(f"logged in with {token}")
            raise EnvFaultError(f"could not log in with {token}", "reward", 0)
        return obs, reward, *ends, info

gym.register("Leaky-v0", entry_point=Leaky, max_episode_steps=100)
gym.register("Bad-v0", entry_point=Bad, max_episode_steps=100)
"""


def read_tokens() -> dict[str, str]:
    """A token of every known shape."""
    tokens: dict[str, str] = runpy.run_path(str(ROOT / "test" / "lib" / "test_secret.py"))["TOKENS"]
    return tokens


def plant(kind: str, token: str, folder: Path) -> Iterator[Verdict]:
    """One token in all places."""
    (folder / "leaky.py").write_text(LEAKY_ENV)
    # a file of variables has one in a line
    line = token.replace("\n", " ")
    (folder / ".env").write_text(f'MY_SERVICE="{line}-in-file"\nHF_REPO={folder / "team"}\n')
    variables = {
        "PLANTED_IN_ERROR": f"{token}",
        "ANY_SERVICE_KEY": f"{token}-in-environment",
        "PYTHONPATH": f"{ROOT}:{folder}",
    }
    (folder / "team").mkdir()
    good = write_spec(make_spec("PPO", env={"max_frame": 600}), folder)
    bad = make_spec("PPO", env={"name": "leaky:Leaky-v0", "max_frame": 2000})
    leaky = folder / "leaky.yaml"
    leaky.write_text(dump_yaml(dump_spec(bad)))
    command = ["run", str(good), NAME, "train", "--log-level", "DEBUG", "--upload-hf"]
    code = finish(start_command(command, folder, variables))
    yield judge(f"{kind}: environment and .env, a run that is shared", code == 0, code, token, folder)
    code = finish(start_command(["run", str(leaky), NAME, "train", "--log-level", "DEBUG"], folder, variables))
    is_told = code == 1 and "could not log in with [secret]" in said(folder)
    yield judge(f"{kind}: exception", is_told, code, token, folder)
    options = {"variable": "PLANTED_IN_ERROR"}
    bad = make_spec("PPO", env={"name": "leaky:Bad-v0", "max_frame": 2000, "kwargs": options})
    leaky.write_text(dump_yaml(dump_spec(bad)))
    code = finish(start_command(["run", str(leaky), NAME, "train", "--log-level", "DEBUG"], folder, variables))
    bundles = [path.read_bytes() for path in folder.glob("data/*/fault/*.safetensors")]
    # it tells where the token comes from, and the log that there was one
    is_told = len(bundles) == 1 and b"PLANTED_IN_ERROR" in bundles[0] and "logged in with [secret]" in said(folder)
    yield judge(f"{kind}: a bundle of a fault", code == 1 and is_told, code, token, folder)
    code = finish(start_command(["run", str(good), NAME, "train", "-s", f"env.kwargs.x={token}"], folder, variables))
    yield judge(f"{kind}: command line", code == 2, code, token, folder)
    yield read_spec_with(kind, token)


def judge(name: str, is_right: bool, code: int, token: str, folder: Path) -> Verdict:
    """Whether a command ended as it should, and nothing that is there holds the token."""
    # the longest word of it: keys span lines
    core = max(token.split(), key=len)
    planted = {folder / ".env"}
    leaks = [
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path not in planted and core.encode() in path.read_bytes()
    ]
    problem = f"in {', '.join(leaks)}" if leaks else "" if is_right else f"exit code {code}: {said(folder)[-300:]}"
    return Verdict(name, not problem, problem)


def read_spec_with(kind: str, token: str) -> Verdict:
    """A spec that holds a token is refused without showing it."""
    try:
        load_spec("ppo_cartpole", overrides={"env.kwargs": {"login": token}})
    except SpecError as error:
        is_shown = token in str(error)
        return Verdict(f"{kind}: spec", not is_shown, "the message shows it" if is_shown else "")
    return Verdict(f"{kind}: spec", False, "the spec was taken")


def plan(quick: bool) -> list[Batch]:
    """Every shape of tokens in all places, or one."""
    tokens = read_tokens()
    kinds = list(tokens)[:1] if quick else list(tokens)
    return [Batch(kind, 5, partial(plant, kind, tokens[kind])) for kind in kinds]


ROWS = (
    Row(
        "secrets",
        "tokens of twelve services planted in the environment, `.env`, the command line, a spec and an exception",
        "none appears in a spec, log, table, report, card, bundle or upload, nor on the console; a spec that contains "
        "one is refused without showing it",
        plan,
    ),
)
