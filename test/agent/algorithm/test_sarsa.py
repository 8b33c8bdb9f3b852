"""SARSA: the action really taken next, by hand, across the edge of a batch and across ends of episodes."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent.memory.batch import Transition
from test.agent.conftest import build_step

SGD: dict[str, Any] = {"optim_spec": {"name": "SGD", "lr": 0.1}}
# values are a table: the net has no hidden layer and states are unit vectors
TABLE: dict[str, Any] = {"type": "MLPNet", "hid_layers": [], **SGD}
# of the two envs
Pair = tuple[int, int]


def build(lab, memory: str = "OnPolicyBatchReplay", net: dict[str, Any] | None = None, **keys: Any) -> Any:
    algorithm = {"name": "SARSA", "gamma": 0.5, "training_frequency": 2, "explore_var_spec": 0.0, **keys}
    agent, _ = lab.build(lab.spec("CartPole-v1", algorithm, memory=memory, net=net or TABLE, num_envs=2))
    if net is None:
        with torch.no_grad():
            # Q of states 0 to 3
            agent.algorithm.net.head.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0], [6.0, 5.0], [7.0, 8.0]]).T)
            agent.algorithm.net.head.bias.zero_()
    return agent


def step(
    state: tuple[int, int],
    action: tuple[int, int],
    reward: tuple[float, float],
    then: tuple[int, int],
    ends: str = "..",
) -> Transition:
    eye = torch.eye(4)
    return build_step(eye[list(state)], ends, action=action, reward=reward, next_obs=eye[list(then)])


STEPS = [
    # the second env is cut by the clock in state 3 and starts anew in state 0
    step((0, 0), (0, 1), (1, 1), (1, 3), ".C"),
    # then its task ends
    step((1, 0), (0, 0), (2, 10), (2, 1), ".T"),
    step((2, 2), (1, 0), (0, 0), (3, 3)),
]


def spy_loss(agent: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor]]:
    """Values and targets of each update."""
    seen: list[tuple[Tensor, Tensor]] = []
    loss = agent.algorithm.loss

    def spy(q: Tensor, ret: Tensor) -> Tensor:
        seen.append((q.detach().clone(), ret.clone()))
        return loss(q, ret)

    monkeypatch.setattr(agent.algorithm, "loss", spy)
    return seen


def test_targets_by_hand(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = build(lab)
    seen = spy_loss(agent, monkeypatch)
    before = copy.deepcopy(agent.algorithm.net)
    for index, one in enumerate(STEPS):
        agent.algorithm.observe(one)
        metrics = agent.update(2 * index + 2)
        # two steps of each env are complete once the third action is known
        assert (metrics is None) == (index < 2)
    (q, ret), *rest = seen
    assert not rest
    # rows: (step 0, env 0), (step 0, env 1), (step 1, env 0), (step 1, env 1)
    np.testing.assert_allclose(q, [1, 2, 3, 1])
    np.testing.assert_allclose(
        ret,
        [
            # Q(1, 0) = 3, which was taken; the best would be 4
            1 + 0.5 * 3,
            # cut: Q(3, 1) = 8, what the policy would do there; the next row's action 0 would give 7, state 0 less
            1 + 0.5 * 8,
            # beyond the batch: Q(2, 1) = 5, which was taken; action 0, or the best, would give 6
            2 + 0.5 * 5,
            # ended
            10,
        ],
    )
    # errors into Q(0, 0), Q(0, 1), Q(1, 0), Q(0, 0): the gradient is of the value alone
    error = np.array([1 - 2.5, 2 - 5, 3 - 4.5, 1 - 10])
    grad = np.zeros((2, 4))
    grad[0, 0], grad[1, 0], grad[0, 1] = (2 / 4 * value for value in (error[0] + error[3], error[1], error[2]))
    step = (agent.algorithm.net.head.weight - before.head.weight).detach()
    np.testing.assert_allclose(step, -0.1 * grad, rtol=1e-4, atol=1e-6)
    assert metrics["loss"] == pytest.approx(np.mean(error**2))
    assert metrics["td_error"] == pytest.approx(np.abs(error).mean())
    assert metrics["explore_var"] == 0.0


def test_episodes_give_the_same_targets(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = build(lab, "OnPolicyReplay")
    seen = spy_loss(agent, monkeypatch)
    trained = []
    for index, one in enumerate([*STEPS, step((3, 3), (0, 1), (0, 0), (0, 0))]):
        agent.algorithm.observe(one)
        trained.append(agent.update(2 * index + 2) is not None)
    # both episodes that ended are the second env's; no action counts after their last step
    assert trained == [False, True, False, False]
    q, ret = seen[0]
    np.testing.assert_allclose(q, [2, 1])
    np.testing.assert_allclose(ret, [5, 10])


def test_the_last_step_of_a_batch_comes_with_the_next_one(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is neither lost nor used twice."""
    agent = build(lab, net={**TABLE, "init_fn": "zeros_", "optim_spec": {"name": "SGD", "lr": 1e-12}})
    seen = spy_loss(agent, monkeypatch)
    for index in range(7):
        agent.algorithm.observe(step((0, 0), (0, 0), (index, 10 + index), (0, 0)))
        agent.update(2 * index + 2)
    # all values are zero, so targets are rewards: steps 0 1, 2 3, 4 5; step 6 waits
    np.testing.assert_allclose(
        torch.stack([ret for _, ret in seen]), [[0, 10, 1, 11], [2, 12, 3, 13], [4, 14, 5, 15]], atol=1e-6
    )


def test_a_cut_is_followed_by_the_policy_with_its_exploration(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """SARSA values the policy that acts: at epsilon 1 both actions of state 3 occur."""
    seen_values = set()
    agent = build(lab, explore_var_spec=1.0, net={**TABLE, "optim_spec": {"name": "SGD", "lr": 1e-12}})
    with torch.no_grad():
        agent.algorithm.net.head.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0], [6.0, 5.0], [7.0, 8.0]]).T)
        agent.algorithm.net.head.bias.zero_()
    seen = spy_loss(agent, monkeypatch)
    for index in range(60):
        agent.algorithm.observe(step((0, 0), (0, 1), (1, 1), (3, 3), "CC"))
        agent.update(2 * index + 2)
    for _, ret in seen:
        seen_values |= {round(value, 3) for value in ret.tolist()}
    assert seen_values == {1 + 0.5 * 7, 1 + 0.5 * 8}
