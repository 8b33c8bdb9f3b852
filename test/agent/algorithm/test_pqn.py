"""PQN: its returns, and what it learns from."""

from typing import Any

import pytest
import torch

from test.agent.algorithm.conftest import CARTPOLE

LAM, GAMMA = 0.7, 0.9


def test_returns_are_those_of_the_recursion(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """R = r + gamma ((1 - lam) max Q' + lam R'), where the episode goes on; r + gamma max Q' where it was cut."""
    algorithm_keys = {"name": "PQN", "lam": LAM, "gamma": GAMMA, "time_horizon": 30, "minibatch_size": 1000}
    spec = lab.spec(**CARTPOLE, algorithm={**algorithm_keys, "training_epoch": 1}, net={"layer_norm": True})
    agent, env = lab.build(spec)
    algorithm: Any = agent.algorithm
    taken: list[Any] = []
    step = algorithm.step

    def spy(*args: Any) -> Any:
        taken.append(args)
        return step(*args)

    monkeypatch.setattr(algorithm.sweep, "step", spy)
    net = algorithm.net
    obs, values, rows, frame = env.reset(), [], [], 0
    while not taken:
        act = agent.act(obs, explore=True)
        result = env.step(act.action.numpy())
        with torch.no_grad():
            values.append(net(agent.encode(result.next_obs)).amax(-1))
        rows.append(result)
        agent.observe(obs, act, result)
        obs, frame = result.obs, frame + env.num_envs
        agent.update(frame)
    env.close()
    assert any(row.truncated.any() for row in rows)
    assert any(row.terminated.any() for row in rows)
    expected, following = [], None
    for row, value in zip(reversed(rows), reversed(values), strict=True):
        reward, ended, done = (torch.as_tensor(part) for part in (row.reward, row.terminated, row.done))
        rest = value * ~ended
        mixed = rest if following is None else torch.where(done, rest, (1 - LAM) * rest + LAM * following)
        following = reward + GAMMA * mixed
        expected.append(following)
    wanted = torch.stack(expected[::-1]).flatten().float()
    # one minibatch, shuffled
    torch.testing.assert_close(taken[0][0].ret.sort().values, wanted.sort().values, rtol=1e-5, atol=1e-5)
