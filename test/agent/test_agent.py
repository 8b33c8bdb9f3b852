"""The agent around its algorithm: normalisers that move with training alone, and what memories hold of them."""

from typing import Any

import numpy as np
import pytest
import torch

from slm_lab.agent.agent import Agent, reset_rows
from slm_lab.agent.algorithm.base import Act
from slm_lab.env.vec_env import VecEnv
from slm_lab.lib.errors import CheckpointError

A2C: dict[str, Any] = {"name": "ActorCritic", "gamma": 0.9, "lam": 0.9, "training_frequency": 8}
OFF_POLICY: dict[str, dict[str, Any]] = {
    "DQN": {"env": "CartPole-v1", "algorithm": {"name": "DQN", "training_start_step": 0}},
    "SoftActorCritic": {"env": "Pendulum-v1", "algorithm": {"name": "SoftActorCritic", "training_start_step": 0}},
}
REPLAY: dict[str, Any] = {"name": "Replay", "batch_size": 8, "max_size": 1000}
# CartPole cut after 14 steps
CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "max_t": 14}


def play(agent: Agent, env: VecEnv, num_step: int) -> tuple[Any, list[Act]]:
    """Act and observe without training: all raw observations (T + 1, N, ...), and what was done."""
    obs, acts = [env.reset()], []
    for _ in range(num_step):
        acts.append(agent.act(obs[-1], explore=True))
        step = env.step(acts[-1].action.numpy())
        agent.observe(obs[-1], acts[-1], step)
        obs.append(step.obs)
    env.close()
    return np.stack(obs), acts


def test_obs_normaliser_moves_with_training_alone(lab) -> None:
    agent, env = lab.build(lab.spec(**CARTPOLE, algorithm=A2C, normalize_obs=True))
    obs, _ = play(agent, env, 20)
    # all that was acted on, and what is acted on next
    everything = obs.reshape(-1, 4)
    before = agent.encode.stats.state_dict()
    np.testing.assert_allclose(before["mean"], everything.mean(0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(before["var"], everything.var(0), rtol=1e-4, atol=1e-7)
    for _ in range(5):
        agent.act(obs[-1])
    after = agent.encode.stats.state_dict()
    assert before["count"] == after["count"] == 84
    np.testing.assert_array_equal(before["mean"], after["mean"])


def test_no_observation_looks_extreme_at_first(lab) -> None:
    """In statistics of one sample, which has no spread, the second one was at the clip in nearly every number."""
    agent, env = lab.build(lab.spec("Hopper-v5", A2C, normalize_obs=True, num_envs=1))
    for count, act in enumerate(play(agent, env, 29)[1], 1):
        # one of n samples is at most sqrt(n - 1) stds from their mean; the first is as it is
        assert float(act.obs.abs().max()) <= max(2.0, np.sqrt(count - 1) + 1e-4)


def test_a_rollout_holds_what_the_policy_saw(lab) -> None:
    agent, env = lab.build(lab.spec(**CARTPOLE, algorithm=A2C, normalize_obs=True, clip_obs=0.5))
    _, acts = play(agent, env, 8)
    rollout = agent.algorithm.memory.sample()
    assert torch.equal(rollout.obs, torch.stack([act.obs for act in acts]))
    assert float(rollout.obs.abs().max()) <= 0.5
    # with other statistics the same observation looks different: the value must belong to what was seen
    with torch.no_grad():
        again = agent.algorithm.modules["net"].value(rollout.obs.flatten(0, 1))
    np.testing.assert_allclose(again, rollout.extra["value"].flatten(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", OFF_POLICY)
def test_a_replay_holds_raw_numbers_that_are_normalised_when_sampled(lab, name: str) -> None:
    agent, env = lab.build(lab.spec(**OFF_POLICY[name], memory=REPLAY, normalize_obs=True, normalize_reward=True))
    obs, _ = play(agent, env, 20)
    memory, generator = agent.algorithm.memory, agent.algorithm.memory.generator
    np.testing.assert_array_equal(memory.rows(0, 20)["obs"].view(20, 4, -1), obs[:20])
    state = generator.get_state()
    raw = memory.sample(0)
    generator.set_state(state)
    seen = agent.algorithm.sample()
    # by the statistics of now, not by those at the time of each step
    everything = obs.reshape(80 + 4, -1)
    mean, std = everything.mean(0), everything.std(0)
    np.testing.assert_allclose(seen.obs, (raw.obs.numpy() - mean) / std, atol=1e-3)
    np.testing.assert_allclose(seen.next_obs, (raw.next_obs.numpy() - mean) / std, atol=1e-3)
    assert agent.reward_scaler.std > 2
    np.testing.assert_allclose(seen.reward, raw.reward / agent.reward_scaler.std, rtol=1e-6)
    if name == "DQN":
        assert raw.reward.unique().tolist() == [1.0]


def test_sequences_of_a_replay_have_their_rewards_normalised(lab) -> None:
    net = {"type": "RecurrentNet", "fc_hid_layers": [], "rnn_hidden_size": 8, "seq_len": 4}
    agent, env = lab.build(lab.spec(**OFF_POLICY["DQN"], memory=REPLAY, net=net, normalize_reward=True))
    obs, carry = env.reset(), agent.init_carry(4)
    for _ in range(20):
        act = agent.act(obs, carry, explore=True)
        step = env.step(act.action.numpy())
        agent.observe(obs, act, step)
        obs, carry = step.obs, reset_rows(act.carry, step.done)
    env.close()
    assert agent.algorithm.sample().reward.unique().tolist() == pytest.approx([1 / agent.reward_scaler.std])


def test_rewards_are_scaled_for_learning_only(lab) -> None:
    agent, env = lab.build(lab.spec("probe/ConstantReward-v0", A2C, reward_scale=0.25))
    play(agent, env, 8)
    assert agent.algorithm.memory.sample().reward.unique().tolist() == [0.25]
    # 32 episodes of raw reward 1
    assert env.pop_finished() == [1.0] * 32


def test_uint8_observations_can_be_normalised(lab) -> None:
    net = {"type": "ConvNet", "conv_hid_layers": [[4, 4, 4]], "fc_hid_layers": [8]}
    agent, _ = lab.build(lab.spec("probe/Image-v0", A2C, net=net, normalize_obs=True))
    dark, bright = np.zeros((1, 1, 12, 12), np.uint8), np.full((1, 1, 12, 12), 200, np.uint8)
    agent.encode.stats.update(np.concatenate([dark, bright]))
    # mean 100, std 100
    np.testing.assert_allclose(agent.encode(dark), -1.0, rtol=1e-4)
    np.testing.assert_allclose(agent.encode(bright), 1.0, rtol=1e-4)


def test_hidden_states_end_with_their_episodes() -> None:
    carry = torch.tensor([[1.0, 2.0], [3.0, 4.0], [float("nan"), 5.0]])
    after = reset_rows(carry, np.array([False, False, True]))
    assert after is not None
    assert after.tolist() == [[1.0, 2.0], [3.0, 4.0], [0.0, 0.0]]
    assert reset_rows(None, np.array([True])) is None


def test_a_state_of_another_device_is_refused(lab) -> None:
    agent, env = lab.build(lab.spec("CartPole-v1", {"name": "PPO", "time_horizon": 32}))
    env.close()
    state = agent.state_dict()
    agent.load_state_dict(state)
    with pytest.raises(CheckpointError, match="it was trained on cuda, this is cpu: resume it there, or play it"):
        agent.load_state_dict({**state, "device": "cuda"})
