"""A small lab for tests of agents: build a spec, build its agent and envs, train it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from slm_lab.agent.agent import Agent, reset_rows
from slm_lab.env.make import build_settings
from slm_lab.env.vec_env import Step, VecEnv, build_vec_env
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.schema import Spec

SMALL_NET: dict[str, Any] = {"type": "MLPNet", "hid_layers": [16], "hid_layers_activation": "tanh"}
OPTIM: dict[str, Any] = {"name": "Adam", "lr": 0.01}


@dataclass
class Trained:
    """What a training left behind."""

    agent: Agent
    env: VecEnv
    metrics: list[dict[str, float]]
    frame: int


class Lab:
    """The loop of slm_lab.experiment.control without files, clock and logs."""

    def spec(
        self,
        env: str,
        algorithm: dict[str, Any],
        *,
        memory: str = "OnPolicyBatchReplay",
        net: dict[str, Any] | None = None,
        num_envs: int = 4,
        seed: int = 0,
        **env_keys: Any,
    ) -> Spec:
        """A validated spec; `net` is laid over a small tanh net, unless it names a type of its own."""
        given = net or {}
        net = {"optim_spec": OPTIM, **({} if "type" in given else SMALL_NET), **given}
        raw = {
            "name": "test",
            "agent": {"algorithm": algorithm, "memory": {"name": memory}, "net": net},
            "env": {"name": env, "num_envs": num_envs, "max_frame": 1_000_000, **env_keys},
            "meta": {"seed": seed, "device": "cpu"},
        }
        return parse_spec(raw)[0]

    def build(self, spec: Spec) -> tuple[Agent, VecEnv]:
        """The agent and the envs of a spec, seeded as session 0."""
        env = build_vec_env(build_settings(spec.env, (1, spec.meta.seed, 0)))
        seed_key = (spec.meta.seed, 0)
        agent = Agent(spec, env.obs_space, env.action_space, spec.env.num_envs, seed_key, torch.device("cpu"))
        return agent, env

    def train(
        self,
        spec: Spec,
        num_frame: int,
        *,
        until: Callable[[Agent], bool] | None = None,
        change: Callable[[Step], Step] | None = None,
    ) -> Trained:
        """Train for `num_frame` frames or until `until` holds after an update; `change` tampers with each step."""
        agent, env = self.build(spec)
        obs, carry, frame = env.reset(), agent.init_carry(env.num_envs), 0
        metrics = []
        while frame < num_frame:
            act = agent.act(obs, carry, explore=True)
            step = env.step(act.action.cpu().numpy())
            agent.observe(obs, act, change(step) if change else step)
            frame += env.num_envs
            row = agent.update(frame)
            obs, carry = step.obs, reset_rows(act.carry, step.done)
            if row is not None:
                metrics.append(row)
                if until is not None and until(agent):
                    break
        env.close()
        return Trained(agent, env, metrics, frame)


@pytest.fixture
def lab() -> Lab:
    """Builds and trains agents."""
    return Lab()
