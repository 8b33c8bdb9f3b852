"""A2C: a whole update against a plain one for each kind of return, memory and net; normalisers around it."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, distributions, nn
from torch.nn.functional import huber_loss, l1_loss, mse_loss, smooth_l1_loss

from slm_lab.agent.algorithm.actor_critic import ActorCritic
from slm_lab.agent.algorithm.loss import standardize
from slm_lab.agent.algorithm.returns import calc_explained_var
from slm_lab.lib.errors import DivergenceError
from test.agent.conftest import build_step

# CartPole cut after 14 steps: some episodes fall before, some are cut; returns spread by more than 1
CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "max_t": 14, "reward_scale": 5.0}
SGD: dict[str, Any] = {"optim_spec": {"name": "SGD", "lr": 1.0}}
SLOW: dict[str, Any] = {"optim_spec": {"name": "SGD", "lr": 0.1}}
A2C: dict[str, Any] = {"name": "ActorCritic", "gamma": 0.9}
RETURNS: dict[str, dict[str, Any]] = {"gae": {"lam": 0.8}, "nstep": {"num_step_returns": 5}, "full": {}}


# --- pieces by hand


def test_standardize_by_hand() -> None:
    # mean 4, population std sqrt(5)
    out = standardize(torch.tensor([1.0, 3.0, 5.0, 7.0]))
    np.testing.assert_allclose(out, np.array([-3, -1, 1, 3]) / np.sqrt(5), rtol=1e-6)
    assert standardize(torch.full((3,), 2.0)).tolist() == [0, 0, 0]
    # a mean of its own would leave nothing of a single one
    assert standardize(torch.tensor([5.0])).tolist() == [5]


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "ActorCritic", "training_frequency": 1, "lam": 0.95},
        {"name": "PPO", "time_horizon": 4, "minibatch_size": 1, "training_epoch": 1},
        {"name": "Reinforce", "training_frequency": 1},
    ],
    ids=lambda algorithm: algorithm["name"],
)
def test_a_batch_of_one_sample_trains_the_actor(lab, algorithm: dict[str, Any]) -> None:
    spec = lab.spec("probe/ObsAction-v0", {"gamma": 0.9, **algorithm}, num_envs=1)
    fresh, env = lab.build(spec)
    env.close()
    flats = [agent.algorithm.optimizers["actor"].flat.data for agent in (lab.train(spec, 40).agent, fresh)]
    assert float((flats[0] - flats[1]).abs().max()) > 1e-3


def test_standardize_does_not_know_the_scale_of_rewards() -> None:
    adv = torch.tensor([1.0, 3.0, 5.0, 7.0])
    for scale in (1e3, 1e-3, 1e-5):
        np.testing.assert_allclose(standardize(adv * scale), standardize(adv), rtol=0.01)


def test_explained_var_by_hand() -> None:
    ret = torch.tensor([0.0, 2.0, 4.0])
    assert calc_explained_var(ret, ret) == 1.0
    assert calc_explained_var(torch.full((3,), 7.0), ret) == 0.0
    # a constant offset explains all of the variance: it is not the mean squared error
    assert calc_explained_var(ret + 5, ret) == 1.0
    # errors -2, 0, 2 with variance 8/3 over 8/3
    assert calc_explained_var(torch.tensor([2.0, 2.0, 2.0]), ret) == 0.0
    assert calc_explained_var(-ret, ret) == pytest.approx(-3.0)
    # nothing to explain
    assert calc_explained_var(ret, torch.ones(3)) == 0.0


def gather(algorithm: Any, names: tuple[str, ...], reports: list[dict[str, Tensor]]) -> dict[str, float]:
    algorithm.metric_names = names
    return algorithm.gather(reports)


def test_gather_takes_means_and_refuses_what_is_not_finite(lab) -> None:
    algorithm = lab.build(lab.spec("CartPole-v1", {"name": "Random"}))[0].algorithm
    algorithm.frame = 7
    rows = [
        {"loss": torch.tensor(1.0), "q": torch.tensor([1.0, 3.0])},
        {"loss": torch.tensor(3.0), "q": torch.tensor([6.0])},
    ]
    # by name, over samples, then over rows: a reshape the wrong way round gives 1.5 and 4.5
    assert gather(algorithm, ("loss", "kl", "q"), rows) == {"loss": 2.0, "q": 4.0}
    rows[1]["q"] = torch.tensor([torch.inf])
    with pytest.raises(DivergenceError, match="q became inf in the training at frame 7"):
        gather(algorithm, ("loss", "q"), rows)
    assert gather(algorithm, ("loss",), rows) == {"loss": 2.0}


# --- the golden vector, from the memory to the advantages


class Table(nn.Module):
    """V of an observation is the number it shows."""

    def value(self, obs: Tensor, carry: Tensor | None) -> Tensor:
        return obs.squeeze(-1)


def test_golden_advantages(lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rewards 1, V(obs) = [0, 0, 10, 10], truncated after the second step with V(final obs) = 0, 10 after the last.

    Taking the next row's V behind the cut gives [9.55, 10, 0, 0], taking the cut for the end of the task the right
    numbers by luck, so a second vector has V(final obs) = 5.
    """
    algorithm = {"name": "ActorCritic", "gamma": 0.9, "lam": 0.95, "training_frequency": 4}
    # t1: 1 + .9*5 = 5.5; t0: 1 + .855*5.5
    for final, expected in ((0.0, [1.855, 1, 0, 0]), (5.0, [5.7025, 5.5, 0, 0])):
        agent, _ = lab.build(lab.spec("probe/TimeLimit-v0", algorithm, num_envs=1))
        monkeypatch.setattr(agent.algorithm, "net", Table())
        rows = [(0.0, 0.0, "."), (0.0, final, "C"), (10.0, 10.0, "."), (10.0, 10.0, ".")]
        for value, successor, end in rows:
            extra = {"value": torch.tensor([value])}
            agent.algorithm.observe(build_step([[value]], end, reward=[1.0], next_obs=[[successor]], extra=extra))
        adv, ret = agent.algorithm._calc_adv_ret(agent.algorithm.memory.sample())
        np.testing.assert_allclose(adv[:, 0], expected, atol=1e-5)
        np.testing.assert_allclose(ret[:, 0], np.add(expected, [0, 0, 10, 10]), atol=1e-5)


# --- a whole update


def check_update(
    lab, algorithm: dict[str, Any], memory: str = "OnPolicyBatchReplay", net: dict[str, Any] | None = None
) -> None:
    """One update of the lab and one written out with torch's own parts give the same numbers and the same weights."""
    frequency = 40 if memory == "OnPolicyBatchReplay" else 5
    config = {"policy_loss_coef": 0.7, "val_loss_coef": 0.3, "entropy_coef_spec": 0.05, **A2C, **algorithm}
    keys = {**SGD, "clip_grad_val": 0.1, **(net or {})}
    spec = lab.spec(**CARTPOLE, algorithm={**config, "training_frequency": frequency}, memory=memory, net=keys)
    agent, env = lab.build(spec)
    trained = agent.algorithm.modules["net"]
    net_before = copy.deepcopy(trained)
    net_before.zero_grad()
    record = lab.collect(agent, env, 40)
    assert record.terminated.any()
    assert (record.truncated & ~record.terminated).any()
    metrics = agent.update(160)
    assert metrics is not None

    used = np.ones_like(record.done) if memory == "OnPolicyBatchReplay" else record.is_finished()
    value = net_before.value
    with torch.no_grad():
        old_value = value(record.obs.flatten(0, 1)).view(record.done.shape).numpy()
    if "lam" in algorithm:
        adv = record.gae(value, 0.9, algorithm["lam"])
        ret = adv + old_value
    else:
        ret = record.nstep_return(value, 0.9, algorithm.get("num_step_returns", 10**6))
        adv = ret - old_value
    adv_t, ret_t = (torch.tensor(array[used], dtype=torch.float32) for array in (adv, ret))
    if algorithm.get("normalize_advantages") != "none":
        adv_t = (adv_t - adv_t.mean()) / adv_t.std(correction=0)

    scale = 1 / max(float(ret_t.double().std(correction=0)), 1) if algorithm.get("normalize_v_targets") else 1.0
    loss_name = keys.get("loss_spec", {"name": "MSELoss"})["name"]
    compare = {"MSELoss": mse_loss, "SmoothL1Loss": smooth_l1_loss, "HuberLoss": huber_loss, "L1Loss": l1_loss}
    param, new_value = net_before(record.obs[used])
    policy = distributions.Categorical(logits=param)
    policy_loss = -(policy.log_prob(record.action[used]) * adv_t).mean()
    val_loss = compare[loss_name](new_value * scale, ret_t * scale)
    entropy = policy.entropy().mean()
    loss = 0.7 * policy_loss + 0.3 * val_loss - 0.05 * entropy
    loss.backward()

    expected = {"loss": loss, "policy_loss": policy_loss, "val_loss": val_loss, "entropy": entropy}
    for name, tensor in expected.items():
        assert metrics[name] == pytest.approx(tensor.item(), rel=1e-3, abs=1e-5), name
    error = (ret - old_value)[used]
    assert metrics["explained_var"] == pytest.approx(1 - error.var() / ret[used].var(), abs=1e-3)
    assert metrics["entropy_coef"] == 0.05
    assert agent.algorithm.opt_step == 1
    # each role is clipped by itself; what is shared is clipped once
    roles = [net_before] if keys.get("shared") else [net_before.actor, net_before.critic]
    norms = [float(torch.nn.utils.clip_grad_norm_(role.parameters(), 0.1, foreach=False)) for role in roles]
    assert metrics["grad_norm"] == pytest.approx(norms[0], rel=1e-2)
    assert max(norms) > 0.1
    for parameter, other in zip(net_before.parameters(), trained.parameters(), strict=True):
        # the step itself: beside the weights a missing part of it would hardly show
        step, expected_step = (other - parameter).detach(), -parameter.grad
        np.testing.assert_allclose(step, expected_step, rtol=2e-3, atol=2e-3 * float(expected_step.abs().max()))


@pytest.mark.parametrize("kind", RETURNS)
@pytest.mark.parametrize("memory", ["OnPolicyBatchReplay", "OnPolicyReplay"])
def test_update_equals_a_plain_one(lab, memory: str, kind: str) -> None:
    check_update(lab, RETURNS[kind], memory)


def test_advantages_may_be_taken_as_they_are(lab) -> None:
    check_update(lab, {**RETURNS["gae"], "normalize_advantages": "none"})


@pytest.mark.parametrize("kind", RETURNS)
def test_update_of_a_shared_net_equals_a_plain_one(lab, kind: str) -> None:
    check_update(lab, RETURNS[kind], net={"shared": True})


@pytest.mark.parametrize("loss_name", ["SmoothL1Loss", "HuberLoss", "L1Loss"])
def test_update_with_other_value_losses(lab, loss_name: str) -> None:
    check_update(lab, RETURNS["gae"], net={"loss_spec": {"name": loss_name}})


def test_update_with_normalised_targets(lab) -> None:
    check_update(lab, {**RETURNS["gae"], "normalize_v_targets": True})


@pytest.mark.parametrize("num_step", [1, 40])
def test_update_at_the_ends_of_nstep(lab, num_step: int) -> None:
    check_update(lab, {"num_step_returns": num_step})


def test_normalised_targets_use_running_statistics(lab) -> None:
    """Rewards of 100: targets spread over hundreds, the scaled loss is about that of a unit spread."""
    losses = {}
    for normalize in (False, True):
        algorithm = {**A2C, "lam": 0.9, "training_frequency": 16, "normalize_v_targets": normalize}
        trained = lab.train(lab.spec(**{**CARTPOLE, "reward_scale": 100.0}, algorithm=algorithm), 640)
        losses[normalize] = trained.metrics[-1]["val_loss"]
        stats = trained.agent.algorithm.target_scale.stats
        # ten updates of 64 samples, or none
        assert stats.count == (640 if normalize else 0)
    assert losses[True] < 10 < 1000 < losses[False]


def test_critic_learns_nothing_from_the_policy_loss(lab) -> None:
    """Dropping the detach of the advantage would push the critic through the policy loss."""
    algorithm = {**A2C, "lam": 0.9, "training_frequency": 16, "val_loss_coef": 0.0}
    agent, env = lab.build(lab.spec(**CARTPOLE, algorithm=algorithm, net=SGD))
    before = copy.deepcopy(agent.algorithm.modules["net"].state_dict())
    lab.collect(agent, env, 16)
    agent.update(64)
    for name, value in agent.algorithm.modules["net"].state_dict().items():
        assert torch.equal(value, before[name]) == name.startswith("critic"), name


# --- around the update


def test_metric_names(lab) -> None:
    spec = lab.spec("probe/ActionReward-v0", {**A2C, "lam": 0.9, "training_frequency": 4})
    trained = lab.train(spec, 64)
    assert len(trained.metrics) == 4
    for metrics in trained.metrics:
        assert set(metrics) == set(ActorCritic.metric_names)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", RETURNS)
def test_a_reward_that_is_not_finite_stops_the_run(lab, kind: str, bad: float) -> None:
    spec = lab.spec("probe/ActionReward-v0", {**A2C, **RETURNS[kind], "training_frequency": 8})
    with np.errstate(invalid="ignore"), pytest.raises(DivergenceError, match="at frame 32; try a lower learning rate"):
        lab.train(spec, 64, change=lambda step: step._replace(reward=np.full_like(step.reward, bad)))


def test_one_bad_reward_among_many_is_enough(lab) -> None:
    def spoil(step: Any) -> Any:
        reward = step.reward.copy()
        reward[2] = np.nan
        return step._replace(reward=reward)

    spec = lab.spec("probe/ActionReward-v0", {**A2C, "lam": 0.9, "training_frequency": 8})
    with pytest.raises(DivergenceError):
        lab.train(spec, 64, change=spoil)


def test_frequency_defaults_to_the_steps_of_nstep(lab) -> None:
    agent, _ = lab.build(lab.spec("probe/ActionReward-v0", {"name": "ActorCritic", "num_step_returns": 5}))
    assert agent.algorithm.memory.frequency == 5


def test_entropy_coef_follows_its_schedule(lab) -> None:
    schedule = {"name": "linear_decay", "start_val": 1.0, "end_val": 0.0, "start_step": 0, "end_step": 64}
    spec = lab.spec(
        "probe/ActionReward-v0", {**A2C, "lam": 0.9, "training_frequency": 4, "entropy_coef_spec": schedule}
    )
    # 4 envs, 4 steps: updates at frames 16, 32, 48, 64
    assert [row["entropy_coef"] for row in lab.train(spec, 64).metrics] == pytest.approx([0.75, 0.5, 0.25, 0.0])


def test_entropy_bonus_flattens_the_policy(lab) -> None:
    algorithm = {**A2C, "lam": 0.9, "training_frequency": 4, "entropy_coef_spec": 1.0, "policy_loss_coef": 0.0}
    agent, env = lab.build(lab.spec("probe/ConstantReward-v0", algorithm, net=SLOW))
    with torch.no_grad():
        agent.algorithm.modules["net"].actor.head.bias.copy_(torch.tensor([2.0, -2.0]))
    entropies = []
    for _ in range(10):
        lab.collect(agent, env, 4)
        entropies.append(agent.update(16)["entropy"])
    assert entropies == sorted(entropies)
    assert entropies[-1] > 1.2 * entropies[0]


def test_nets_are_in_eval_mode_between_updates(lab) -> None:
    """A batch norm left in training mode would let acting change its statistics."""
    spec = lab.spec(**CARTPOLE, algorithm={**A2C, "lam": 0.9, "training_frequency": 8}, net={"batch_norm": True})
    trained = lab.train(spec, 64)
    net = trained.agent.algorithm.modules["net"]
    assert not any(module.training for module in net.modules())
    before = copy.deepcopy(net.state_dict())
    for explore in (True, False):
        trained.agent.act(np.random.default_rng(0).normal(size=(4, 4)), explore=explore)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_same_seed_same_numbers(lab) -> None:
    runs = [
        lab.train(lab.spec(**CARTPOLE, algorithm={**A2C, "lam": 0.9, "training_frequency": 8}, seed=seed), 256).metrics
        for seed in (3, 3, 4)
    ]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


# --- normalisers belong to the agent


def test_obs_normaliser_moves_with_training_alone(lab) -> None:
    spec = lab.spec(**CARTPOLE, algorithm={**A2C, "lam": 0.9, "training_frequency": 8}, normalize_obs=True)
    agent, env = lab.build(spec)
    seen = []
    obs = env.reset()
    for _ in range(20):
        seen.append(obs)
        act = agent.act(obs, explore=True)
        step = env.step(act.action.numpy())
        agent.observe(obs, act, step)
        obs = step.obs
    # all that was acted on, and what is acted on next
    everything = np.concatenate([*seen, obs])
    np.testing.assert_allclose(agent.encode.stats.mean, everything.mean(0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(agent.encode.stats.var, everything.var(0), rtol=1e-4, atol=1e-7)
    before = agent.encode.stats.state_dict()
    for _ in range(5):
        agent.act(obs)
    after = agent.encode.stats.state_dict()
    assert before["count"] == after["count"] == 84
    np.testing.assert_array_equal(before["mean"], after["mean"])


def test_no_observation_looks_extreme_at_first(lab) -> None:
    """In statistics of one sample, which has no spread, the second one was at the clip in nearly every number."""
    spec = lab.spec("Hopper-v5", {**A2C, "lam": 0.9, "training_frequency": 8}, normalize_obs=True, num_envs=1)
    agent, env = lab.build(spec)
    obs = env.reset()
    for count in range(1, 30):
        act = agent.act(obs, explore=True)
        # one of n samples is at most sqrt(n - 1) stds from their mean; the first is as it is
        assert float(act.obs.abs().max()) <= max(2.0, np.sqrt(count - 1) + 1e-4)
        step = env.step(act.action.numpy())
        agent.observe(obs, act, step)
        obs = step.obs
    env.close()


def test_memory_holds_what_the_policy_saw(lab) -> None:
    spec = lab.spec(
        **CARTPOLE, algorithm={**A2C, "lam": 0.9, "training_frequency": 8}, normalize_obs=True, clip_obs=0.5
    )
    agent, env = lab.build(spec)
    obs = env.reset()
    seen = []
    for _ in range(8):
        act = agent.act(obs, explore=True)
        seen.append(act.obs.clone())
        step = env.step(act.action.numpy())
        agent.observe(obs, act, step)
        obs = step.obs
    rollout = agent.algorithm.memory.sample()
    assert torch.equal(rollout.obs, torch.stack(seen))
    assert float(rollout.obs.abs().max()) <= 0.5
    # with other statistics the same observation looks different: the value must belong to what was seen
    with torch.no_grad():
        again = agent.algorithm.modules["net"].value(rollout.obs.flatten(0, 1))
    np.testing.assert_allclose(again, rollout.extra["value"].flatten(), rtol=1e-4, atol=1e-6)


def test_rewards_are_scaled_for_learning_only(lab) -> None:
    spec = lab.spec("probe/ConstantReward-v0", {**A2C, "lam": 0.9, "training_frequency": 4}, reward_scale=0.25)
    agent, env = lab.build(spec)
    lab.collect(agent, env, 4)
    assert agent.algorithm.memory.sample().reward.unique().tolist() == [0.25]
    # 16 episodes of raw reward 1
    assert env.pop_finished() == [1.0] * 16


def test_uint8_observations_can_be_normalised(lab) -> None:
    net = {"type": "ConvNet", "conv_hid_layers": [[4, 4, 4]], "fc_hid_layers": [8]}
    spec = lab.spec("probe/Image-v0", {**A2C, "lam": 0.9}, net=net, normalize_obs=True)
    agent, _ = lab.build(spec)
    dark, bright = np.zeros((1, 1, 12, 12), np.uint8), np.full((1, 1, 12, 12), 200, np.uint8)
    agent.encode.stats.update(np.concatenate([dark, bright]))
    # mean 100, std 100
    np.testing.assert_allclose(agent.encode(dark), -1.0, rtol=1e-4)
    np.testing.assert_allclose(agent.encode(bright), 1.0, rtol=1e-4)
