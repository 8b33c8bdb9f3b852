"""Q-learning with a hidden state, from sequences of a replay."""

from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.agent import Agent
from slm_lab.agent.algorithm.dqn import DQN
from slm_lab.agent.memory.batch import SequenceBatch
from slm_lab.lib.errors import SpecError

NET: dict[str, Any] = {
    "type": "RecurrentNet",
    "rnn_hidden_size": 16,
    "seq_len": 6,
    "burn_in": 2,
    "optim_spec": {"name": "Adam", "lr": 0.01},
}
KEYS: dict[str, Any] = {
    "gamma": 0.9,
    "training_start_step": 200,
    "training_frequency": 8,
    "explore_var_spec": 0.5,
}
REPLAY: dict[str, Any] = {"name": "Replay", "batch_size": 16, "max_size": 4000}


def build_spec(lab, name: str, net: dict[str, Any] | None = None, memory: dict[str, Any] | None = None) -> Any:
    own = {} if name == "VanillaDQN" else {"polyak_coef": 0.05}
    return lab.spec(
        "probe/Memory-v0",
        {"name": name, **KEYS},
        memory={**REPLAY, **(memory or {})},
        net={**NET, **own, **(net or {})},
        num_envs=8,
    )


def recall(agent: Agent) -> list[int]:
    """The greedy actions at the end of the two episodes of the memory probe."""
    obs, carry = np.array([[-1.0], [1.0]], np.float32), agent.init_carry(2)
    for _ in range(4):
        act = agent.act(obs, carry)
        obs, carry = np.zeros((2, 1), np.float32), act.carry
    return act.action.tolist()


@pytest.mark.parametrize("name", ["VanillaDQN", "DQN", "DoubleDQN"])
def test_memory_probe(lab, name: str) -> None:
    count = 0

    def is_solved(agent: Agent) -> bool:
        nonlocal count
        count = count + 1 if recall(agent) == [0, 1] else 0
        return count >= 20

    lab.train(build_spec(lab, name), 20_000, until=is_solved)
    assert count >= 20


def sequences(num_step: int, reset: list[int], truncated: list[int]) -> SequenceBatch:
    """One sequence of one env, observation t at row t."""
    rows = torch.arange(num_step + 1.0).view(-1, 1, 1) / 10
    mask = torch.ones(num_step, 1)
    mask[truncated] = 0.0
    starts = torch.zeros(num_step + 1, 1, dtype=torch.bool)
    starts[reset] = True
    return SequenceBatch(
        obs=rows,
        action=torch.zeros(num_step, 1, dtype=torch.int64),
        reward=torch.ones(num_step, 1),
        discount=torch.full((num_step, 1), 0.9),
        mask=mask,
        reset=starts,
        carry=torch.full((1, 16), 0.5),
    )


def test_targets_follow_the_hidden_state_of_each_net(lab) -> None:
    algorithm = lab.build(build_spec(lab, "DoubleDQN"))[0].algorithm
    assert isinstance(algorithm, DQN)
    assert algorithm.learner.target is not None
    with torch.no_grad():
        algorithm.learner.target.flat.data.mul_(0.7)
    batch = sequences(8, reset=[4], truncated=[3])
    # the obvious way: one step after the other, each net with a state of its own
    q: dict[str, list[torch.Tensor]] = {"online": [], "target": []}
    with torch.no_grad():
        for name, net in (("online", algorithm.net), ("target", algorithm.target_net)):
            carry: Any = batch.carry
            for t in range(9):
                carry = carry * 0 if bool(batch.reset[t]) else carry
                out, carry = net.step(batch.obs[t], carry)
                q[name].append(out[0])
    errors = [
        q["online"][t][0] - (1 + 0.9 * q["target"][t + 1][q["online"][t + 1].argmax()]) for t in range(2, 8) if t != 3
    ]
    loss, report = algorithm.calc_sequence_loss(batch)
    error = report["td_error"]
    assert error[[0, 2, 3, 4, 5], 0].tolist() == pytest.approx([abs(float(value)) for value in errors], abs=1e-6)
    # the step before a cut learns nothing, for what follows it is not in the sequence
    assert error[1, 0] == 0
    assert float(loss.detach()) == pytest.approx(float(torch.stack(errors).square().mean()), rel=1e-5)


def test_burn_in_passes_no_gradient(lab) -> None:
    algorithm = lab.build(build_spec(lab, "DQN"))[0].algorithm
    batch = sequences(8, reset=[], truncated=[])
    obs = batch.obs.clone().requires_grad_()
    algorithm.calc_sequence_loss(batch._replace(obs=obs)).value.backward()
    assert obs.grad is not None
    assert (obs.grad[:2] == 0).all()
    assert (obs.grad[2:8] != 0).all()


@pytest.mark.parametrize(
    ("memory", "message"),
    [
        ({"name": "PrioritizedReplay"}, "agent.memory.name: sequences .* use Replay"),
        ({"num_step_returns": 3}, "agent.memory.num_step_returns"),
        ({"use_cer": True}, "agent.memory.use_cer"),
        (
            {"max_size": 60},
            "agent.memory.max_size: 60 holds no .* = 8 steps of 8 envs; use at least 64",
        ),
    ],
)
def test_memories_that_cannot_give_stretches(lab, memory: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        build_spec(lab, "DQN", memory=memory)
