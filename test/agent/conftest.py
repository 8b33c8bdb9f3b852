"""A small lab for tests of agents: build a spec, build its agent and envs, train it; and steps of plain numbers."""

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent.agent import Agent, reset_rows
from slm_lab.agent.memory.batch import Transition
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import build_settings
from slm_lab.env.vec_env import Step, VecEnv
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.schema import Spec

SMALL_NET: dict[str, Any] = {"type": "MLPNet", "hid_layers": [16], "hid_layers_activation": "tanh"}
OPTIM: dict[str, Any] = {"name": "Adam", "lr": 0.01}


def build_step(
    obs: Any,
    ends: str,
    *,
    action: Any = None,
    reward: Any = None,
    next_obs: Any = None,
    extra: dict[str, Tensor] | None = None,
    next_carry: Tensor | None = None,
) -> Transition:
    """A step of one env per letter of `ends`: `.` goes on, `T` terminated, `C` cut by the time limit, `B` both."""
    num_envs, obs = len(ends), torch.as_tensor(obs)
    return Transition(
        obs=obs,
        action=torch.zeros(num_envs, dtype=torch.int64) if action is None else torch.as_tensor(action),
        reward=torch.zeros(num_envs) if reward is None else torch.as_tensor(reward, dtype=torch.float32),
        terminated=torch.tensor([end in "TB" for end in ends]),
        truncated=torch.tensor([end in "CB" for end in ends]),
        next_obs=obs if next_obs is None else torch.as_tensor(next_obs),
        extra=extra or {},
        next_carry=next_carry,
    )


def number_step(t: int, ends: str) -> Transition:
    """Every field is 10 t + e for env `e`; its successor is half more, so never equal to the next row."""
    number = 10.0 * t + torch.arange(len(ends))
    carry, next_carry = (torch.stack([one, -one], 1) for one in (number, number + 0.5))
    return build_step(
        number[:, None],
        ends,
        action=number.long(),
        reward=number,
        next_obs=number[:, None] + 0.5,
        extra={"value": -number, "carry": carry},
        next_carry=next_carry,
    )


def through_file(state: Any) -> Any:
    """What another process reads of a saved state."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@dataclass
class Trained:
    """What a training left behind."""

    agent: Agent
    env: VecEnv
    metrics: list[dict[str, float]]
    frame: int


Array = np.ndarray[Any, Any]
Value = Callable[[Tensor], Tensor]


@dataclass
class Record:
    """Steps as the agent saw them (T, N, ...), and returns over them computed in the obvious way.

    Nothing here knows of rollouts, cuts or shifted values: V of every true successor is computed afresh.
    """

    obs: Tensor
    action: Tensor
    next_obs: Tensor
    reward: Array
    terminated: Array
    truncated: Array

    @property
    def done(self) -> Array:
        return self.terminated | self.truncated

    def _evaluate(self, value: Value, obs: Tensor) -> Array:
        with torch.no_grad():
            return value(obs.flatten(0, 1)).view(obs.shape[:2]).double().numpy()

    def nstep_return(self, value: Value, gamma: float, num_step: int) -> Array:
        """Rewards of `num_step` steps, then V; shorter where the episode or the record ends."""
        next_value = self._evaluate(value, self.next_obs)
        ret = np.zeros_like(self.reward)
        last = len(ret) - 1
        for start, env in np.ndindex(*ret.shape):
            for t in range(start, last + 1):
                ret[start, env] += gamma ** (t - start) * self.reward[t, env]
                if self.done[t, env] or t == last or t == start + num_step - 1:
                    rest = 0.0 if self.terminated[t, env] else next_value[t, env]
                    ret[start, env] += gamma ** (t - start + 1) * rest
                    break
        return ret

    def gae(self, value: Value, gamma: float, lam: float) -> Array:
        """Sum of the TD errors of the episode, each (gamma lam) less than the one before."""
        error = self.nstep_return(value, gamma, 1) - self._evaluate(value, self.obs)
        adv = np.zeros_like(error)
        for start, env in np.ndindex(*error.shape):
            for t in range(start, len(error)):
                adv[start, env] += (gamma * lam) ** (t - start) * error[t, env]
                if self.done[t, env]:
                    break
        return adv

    def is_finished(self) -> Array:
        """Whether each step belongs to an episode that ended in this record (T, N)."""
        return np.logical_or.accumulate(self.done[::-1], 0)[::-1].copy()


class Lab:
    """The loop of slm_lab.experiment.control without files, clock and logs."""

    def spec(
        self,
        env: str,
        algorithm: dict[str, Any],
        *,
        memory: str | dict[str, Any] = "OnPolicyBatchReplay",
        net: dict[str, Any] | None = None,
        critic_net: dict[str, Any] | None = None,
        num_envs: int = 4,
        seed: int = 0,
        precision: str = "float32",
        **env_keys: Any,
    ) -> Spec:
        """A validated spec; `net` is laid over a small tanh net, unless it names a type of its own."""
        if isinstance(memory, str):
            memory = {"name": memory}
        given = net or {}
        net = {"optim_spec": OPTIM, **({} if "type" in given else SMALL_NET), **given}
        raw = {
            "name": "test",
            "agent": {"algorithm": algorithm, "memory": memory, "net": net, "critic_net": critic_net},
            "env": {"name": env, "num_envs": num_envs, "max_frame": 1_000_000, **env_keys},
            "meta": {"seed": seed, "device": "cpu", "precision": precision},
        }
        return parse_spec(raw)[0]

    def build(self, spec: Spec) -> tuple[Agent, VecEnv]:
        """The agent and the envs of a spec, seeded as session 0."""
        env = build_vec_env(build_settings(spec.env, (1, spec.meta.seed, 0)))
        seed_key = (spec.meta.seed, 0)
        return Agent(spec, env.facts, spec.env.num_envs, seed_key, torch.device("cpu")), env

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

    def collect(self, agent: Agent, env: VecEnv, num_step: int) -> Record:
        """Let the agent act and observe from a reset on, without training; what happened is returned."""
        obs, carry = env.reset(), agent.init_carry(env.num_envs)
        rows = []
        for _ in range(num_step):
            act = agent.act(obs, carry, explore=True)
            step = env.step(act.action.cpu().numpy())
            agent.observe(obs, act, step)
            reward = step.reward * agent.reward_scaler.scale
            tensors = (agent.encode(obs), act.action, agent.encode(step.next_obs))
            rows.append((*tensors, reward, step.terminated, step.truncated))
            obs, carry = step.obs, reset_rows(act.carry, step.done)
        seen, action, then, *arrays = zip(*rows, strict=True)
        return Record(torch.stack(seen), torch.stack(action), torch.stack(then), *(np.stack(array) for array in arrays))


def recall(agent: Agent) -> list[int]:
    """The deterministic actions at the end of the two episodes of the memory probe."""
    obs, carry = np.array([[-1.0], [1.0]], np.float32), agent.init_carry(2)
    for _ in range(4):
        act = agent.act(obs, carry)
        obs, carry = np.zeros((2, 1), np.float32), act.carry
    return act.action.tolist()


@pytest.fixture
def lab() -> Lab:
    """Builds and trains agents."""
    return Lab()
