"""Algorithms with a recurrent net: what is remembered, when it is forgotten, and that it is learned from."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slm_lab.agent.agent import Agent
from slm_lab.agent.algorithm import ppo, sequence
from slm_lab.agent.algorithm.critic import calc_next_value
from slm_lab.agent.algorithm.sequence import calc_reset, cut, cut_rollout, join, rows_of_sequences
from slm_lab.agent.memory.batch import Rollout
from slm_lab.agent.net.model import ActorCriticNet
from slm_lab.lib.errors import SpecError
from test.agent.conftest import recall

GAMMA = 0.9
NET: dict[str, Any] = {
    "type": "RecurrentNet",
    "rnn_hidden_size": 16,
    "seq_len": 8,
    "optim_spec": {"name": "Adam", "lr": 0.02},
}
PPO: dict[str, Any] = {"name": "PPO", "gamma": GAMMA, "time_horizon": 16, "minibatch_size": 32, "training_epoch": 4}
A2C: dict[str, Any] = {
    "name": "ActorCritic",
    "gamma": GAMMA,
    "lam": 0.95,
    "training_frequency": 16,
    "entropy_coef_spec": 0.01,
}
REINFORCE: dict[str, Any] = {"name": "Reinforce", "gamma": GAMMA, "training_frequency": 16, "entropy_coef_spec": 0.01}
# name -> algorithm, memory, net keys
ALL: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "PPO": (PPO, "OnPolicyBatchReplay", {}),
    "PPO-LSTM-shared": (PPO, "OnPolicyBatchReplay", {"cell_type": "LSTM", "shared": True, "fc_hid_layers": [8]}),
    "PPO-RNN-sizes": (PPO, "OnPolicyBatchReplay", {"cell_type": "RNN", "critic_rnn_hidden_size": 8}),
    "A2C": (A2C, "OnPolicyBatchReplay", {}),
    "A2C-shared-layers": (A2C, "OnPolicyBatchReplay", {"shared": True, "rnn_num_layers": 2}),
    # 30 episodes of 4 steps are no multiple of 16: the last sequence is padded
    "A2C-LSTM-episodes": ({**A2C, "training_frequency": 30}, "OnPolicyReplay", {"cell_type": "LSTM", "seq_len": 16}),
    "Reinforce": (REINFORCE, "OnPolicyBatchReplay", {}),
    "Reinforce-episodes": ({**REINFORCE, "training_frequency": 30}, "OnPolicyReplay", {"seq_len": 16}),
}
CRITICS = [name for name in ALL if "Reinforce" not in name]


def build_spec(lab, which: str, env: str = "probe/Memory-v0", **changes: Any) -> Any:
    algorithm, memory, net = ALL[which]
    net = {**NET, **net, **changes.pop("net", {})}
    algorithm = {**algorithm, **changes.pop("algorithm", {})}
    return lab.spec(env, algorithm, memory=memory, net=net, num_envs=8, **changes)


class Solved:
    """Whether the last few updates left an agent that remembers."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, agent: Agent) -> bool:
        self.count = self.count + 1 if recall(agent) == [0, 1] else 0
        return self.count >= 5


# --- learning


@pytest.mark.parametrize("which", ALL)
def test_memory_probe_is_solved(lab, which: str) -> None:
    solved = Solved()
    trained = lab.train(build_spec(lab, which), 12_000, until=solved)
    assert solved.count >= 5, trained.frame


def test_memory_probe_is_not_solved_without_memory(lab) -> None:
    spec = lab.spec("probe/Memory-v0", PPO, num_envs=8)
    solved = Solved()
    lab.train(spec, 4_000, until=solved)
    assert solved.count == 0


def test_memory_probe_is_not_solved_where_learning_does_not_reach_back(lab) -> None:
    """Sequences of one step: the hidden state is there, but no gradient tells it what to keep."""
    solved = Solved()
    lab.train(build_spec(lab, "A2C", net={"seq_len": 1}), 6_000, until=solved)
    assert solved.count < 5


# --- the hidden state


def act_by_hand(agent: Agent, obs: Tensor, done: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor]:
    """Hidden states before and after each step (T, N, S), one env at a time, from nothing at each start."""
    net = agent.algorithm.net
    both: Any = net.step_both if isinstance(net, ActorCriticNet) else net.step
    before = torch.zeros(*obs.shape[:2], net.state_size)
    after = torch.zeros_like(before)
    with torch.inference_mode():
        for env in range(obs.shape[1]):
            carry = torch.zeros(1, net.state_size)
            for t in range(len(obs)):
                before[t, env] = carry
                carry = both(obs[t, [env]], carry)[-1]
                after[t, env] = carry
                if done[t, env]:
                    carry = torch.zeros_like(carry)
    return before, after


def evaluate(agent: Agent, rollout: Rollout) -> tuple[Tensor, ...]:
    """What training computes of the samples: parameters, and values where there is a critic."""
    net = agent.algorithm.net
    rows = sequence.view_rollout(rollout, net.seq_len)
    assert not isinstance(rows, Tensor)
    with torch.inference_mode():
        out = net.unroll(rows.obs, rows.carry, rows.reset)
    parts = out if isinstance(net, ActorCriticNet) else out[:1]
    return tuple(join(part, *rows.shape) for part in parts)


@pytest.mark.parametrize("which", ALL)
def test_training_sees_what_acting_saw(lab, which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent, env = lab.build(build_spec(lab, which))
    lab.collect(agent, env, 24)
    rollout = agent.algorithm.memory.sample()
    net = agent.algorithm.net
    rows = rollout.obs.flatten(0, 1), rollout.extra["carry"].flatten(0, 1)
    with torch.inference_mode():
        *expected, _ = net.step_both(*rows) if isinstance(net, ActorCriticNet) else net.step(*rows)
    for one, two in zip(evaluate(agent, rollout), expected, strict=True):
        assert one.shape == two.shape
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)
    if "value" in rollout.extra:
        np.testing.assert_allclose(evaluate(agent, rollout)[1], rollout.extra["value"].flatten(), rtol=1e-4, atol=1e-5)
    # and would not, did the state outlive its episode
    monkeypatch.setattr(sequence, "calc_reset", torch.zeros_like)
    assert float((evaluate(agent, rollout)[0] - expected[0]).abs().max()) > 1e-3


@pytest.mark.parametrize("name", [name for name in ALL if "PPO" in name])
def test_ppo_starts_each_update_at_ratio_one(lab, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def first_ratios() -> Tensor:
        agent, env = lab.build(build_spec(lab, name))
        algorithm = agent.algorithm
        calc_loss, seen = algorithm.calc_loss, []

        def spy(batch: Any, *rest: Any) -> Any:
            out = calc_loss(batch, *rest)
            assert len(batch.adv) == 32
            seen.append(out.report["log_ratio"])
            # nothing is learned, so every minibatch must look the same
            return out._replace(value=out.value * 0)

        monkeypatch.setattr(algorithm.step, "calc_loss", spy)
        lab.collect(agent, env, 16)
        agent.update(128)
        assert len(seen) == 4 * 128 // 32
        return torch.cat(seen)

    assert float(first_ratios().abs().max()) < 1e-5
    monkeypatch.setattr(ppo, "calc_reset", torch.zeros_like)
    assert float(first_ratios().abs().max()) > 1e-4


@pytest.mark.parametrize("which", CRITICS)
def test_values_of_successors_are_seen_with_the_state_after_the_step(lab, which: str) -> None:
    """Episodes of at most 20 steps, ended by the time limit, by the pole or by the end of the batch."""
    frequency = {"time_horizon" if "PPO" in which else "training_frequency": 64}
    agent, env = lab.build(build_spec(lab, which, "probe/CartPoleHidden-v0", max_t=20, algorithm=frequency))
    algorithm = agent.algorithm
    record = lab.collect(agent, env, 64)
    assert record.truncated.any()
    assert record.terminated.any()
    before, after = act_by_hand(agent, record.obs, record.done)
    with torch.inference_mode():
        value = algorithm.net.value(record.next_obs.flatten(0, 1), after.flatten(0, 1)).view(after.shape[:2])
    # episodes come one after the other in a memory of episodes: told apart by their observations
    table = {tuple(obs): float(v) for obs, v in zip(record.obs.flatten(0, 1).tolist(), value.flatten(), strict=True)}
    rollout = algorithm.memory.sample()
    if "episodes" not in which:
        # what is stored are the states of each episode alone, which starts from nothing
        np.testing.assert_allclose(rollout.extra["carry"], before, rtol=1e-5, atol=1e-6)
        starts = calc_reset(rollout.done)
        assert not rollout.extra["carry"][starts].any()
        assert rollout.extra["carry"][1:][~starts[1:]].abs().sum(-1).all()
    next_value = calc_next_value(rollout, algorithm.net.value)
    checked = 0
    for t, n in np.ndindex(*next_value.shape):
        if not rollout.terminated[t, n]:
            assert float(next_value[t, n]) == pytest.approx(table[tuple(rollout.obs[t, n].tolist())], abs=1e-5)
            checked += 1
    assert checked > 50
    assert rollout.cut_carry is not None
    assert rollout.cut_carry.shape == (len(rollout.cut_index), algorithm.net.state_size)


def test_evaluation_remembers_too(lab) -> None:
    agent, _ = lab.build(build_spec(lab, "PPO"))
    obs = np.array([[1.0]], np.float32)
    one = agent.act(obs, agent.init_carry(1))
    assert one.carry is not None
    assert one.carry.any()
    assert "carry" not in one.extra
    # the actor's part alone, in which the critic has no say
    assert not one.carry[:, 16:].any()


# --- sequences


def test_cut_and_join_by_hand() -> None:
    # rows t*10 + n of 5 steps of 2 envs, in sequences of 2
    field = (10 * torch.arange(5)[:, None] + torch.arange(2)).float()
    sequences = cut(field, 2)
    assert sequences.tolist() == [[0, 1, 20, 21, 40, 41], [10, 11, 30, 31, 0, 0]]
    assert join(sequences, 5, 2).tolist() == field.flatten().tolist()
    deep = torch.randn(6, 3, 4, 5)
    assert torch.equal(join(cut(deep, 4), 6, 3), deep.flatten(0, 1))
    assert torch.equal(cut(deep, 6), deep)


def test_resets_and_states_of_a_rollout_by_hand() -> None:
    done = torch.tensor([[0, 1], [1, 0], [0, 0], [0, 1], [1, 1]]).bool()
    assert calc_reset(done).int().tolist() == [[0, 0], [0, 1], [1, 0], [0, 0], [0, 1]]
    empty = torch.zeros(5, 2)
    carry = torch.arange(10.0).view(5, 2, 1)
    rollout = Rollout(
        torch.randn(5, 2, 3), empty, empty, done, done, {"carry": carry}, torch.zeros(0), torch.zeros(0, 3)
    )
    sequences = cut_rollout(rollout, 2)
    assert sequences.carry.flatten().tolist() == [0, 1, 4, 5, 8, 9]
    # a reset in the first row of a sequence changes nothing: its stored state is that of the new episode
    assert sequences.reset.int().tolist() == [[0, 0, 1, 0, 0, 1], [0, 1, 0, 0, 0, 0]]


def test_minibatches_of_whole_stretches_by_hand() -> None:
    # 4 steps of 2 envs in sequences of 2: rows (0, 2), (1, 3), (4, 6), (5, 7)
    rows = rows_of_sequences(torch.tensor([3, 0, 1, 2]), num_envs=2, seq_len=2, minibatch_size=4)
    assert rows.view(2, 4).tolist() == [[5, 0, 7, 2], [1, 4, 3, 6]]
    # three sequences, then the one that is left
    rows = rows_of_sequences(torch.tensor([3, 0, 1, 2]), num_envs=2, seq_len=2, minibatch_size=6)
    assert rows.tolist() == [5, 0, 1, 7, 2, 3, 4, 6]


# --- specs


@pytest.mark.parametrize(
    ("algorithm", "net", "message"),
    [
        ({**PPO, "time_horizon": 20}, {}, "seq_len: 8 does not divide time_horizon 20; 4 would"),
        ({**PPO, "minibatch_size": 4}, {}, "seq_len: 8 does not divide minibatch_size 4; 4 would"),
        ({**A2C, "training_frequency": 12}, {}, "seq_len: 8 does not divide training_frequency 12; 4 would"),
        (A2C, {"burn_in": 2}, "burn_in: ActorCritic learns from fresh steps"),
        ({"name": "SARSA"}, {}, "agent.net.type: SARSA has no use for a hidden state"),
        ({"name": "Random"}, {}, "agent.net.type: Random has no use for a hidden state"),
        ({"name": "PPOSIL"}, {}, "agent.net.type: PPOSIL has no use for a hidden state"),
        ({"name": "SoftActorCritic"}, {}, "agent.net.type: SoftActorCritic has no use for a hidden state"),
    ],
)
def test_refused_specs(lab, algorithm: dict[str, Any], net: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        lab.spec("CartPole-v1", algorithm, net={**NET, **net}, num_envs=8)
