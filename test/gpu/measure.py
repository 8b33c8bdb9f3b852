"""The loop of a session on either device, and what the host waits for on the way."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median_high

import torch

from slm_lab.agent.agent import Agent, reset_rows
from slm_lab.agent.algorithm.base import Metrics
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import build_settings
from slm_lab.env.vec_env import VecEnv
from test.agent.conftest import Lab
from test.gpu.cases import CASES, LARGE_CASES
from test.gpu.ledger import LEDGER
from test.gpu.pretend import CUDA

HOST = torch.device("cpu")
Waits = Counter[tuple[str, str]]


def build(name: str, device: torch.device, is_compiled: bool = False) -> tuple[Agent, VecEnv]:
    """The agent and the envs of a case."""
    spec = Lab().spec(**{**CASES, **LARGE_CASES}[name]).replace(meta={"compile": is_compiled})
    env = build_vec_env(build_settings(spec.env, (1, 0, 0)))
    agent = Agent(spec, env.facts, env.num_envs, (0, 0), device)
    # dropout draws from the device's own generator, which initial weights are not drawn from
    torch.manual_seed(0)
    return agent, env


def train(
    agent: Agent, env: VecEnv, num_update: int, mark: Callable[[bool], None] = lambda is_update: None
) -> list[Metrics]:
    """Metrics of the first updates; `mark` is called after each step and after each update."""
    obs, carry, frame = env.reset(), agent.init_carry(env.num_envs), 0
    rows: list[Metrics] = []
    while len(rows) < num_update:
        act = agent.act(obs, carry, explore=True)
        step = env.step(act.action.cpu().numpy())
        agent.observe(obs, act, step)
        obs, carry = step.obs, reset_rows(act.carry, step.done)
        mark(False)
        frame += env.num_envs
        row = agent.update(frame)
        if row is not None:
            mark(True)
            rows.append(row)
    env.close()
    return rows


@dataclass
class Spent:
    """Waits by line, and kernels, of every step or of every update."""

    waits: list[Waits] = field(default_factory=list)
    launches: list[int] = field(default_factory=list)

    @property
    def num_wait(self) -> int:
        """Waits of most; of steps at the end of an episode there may be more."""
        return median_high([waits.total() for waits in self.waits])

    @property
    def num_launch(self) -> int:
        return median_high(self.launches)

    def describe(self) -> str:
        """The lines that wait, the most waiting first."""
        total = sum(self.waits, Waits())
        lines = [f"{count / len(self.waits):6.1f}  {kind:12s} {site}" for (kind, site), count in total.most_common()]
        return "\n".join([f"{self.num_wait} waits, {self.num_launch} launches", *lines])


@dataclass
class Measured:
    """What the device was asked in a training, and the metrics that came of it."""

    agent: Agent
    rows: list[Metrics]
    step: Spent
    update: Spent

    def describe(self) -> str:
        return f"per step: {self.step.describe()}\nper update: {self.update.describe()}"


def measure(name: str, num_update: int, is_compiled: bool = False) -> Measured:
    """Train a case on the pretend GPU."""
    agent, env = build(name, CUDA, is_compiled)
    spent = Spent(), Spent()

    def mark(is_update: bool) -> None:
        spent[is_update].waits.append(Counter(LEDGER.waits))
        spent[is_update].launches.append(LEDGER.num_launch)
        LEDGER.clear()

    LEDGER.clear()
    return Measured(agent, train(agent, env, num_update, mark), *spent)
