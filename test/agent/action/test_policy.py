"""Distributions against torch's own, against integrals and against counted draws; exploration per env."""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, distributions

from slm_lab.agent.action.build import build_family
from slm_lab.agent.action.distribution import (
    ActionFamily,
    Bernoulli,
    Categorical,
    MultiCategorical,
    Normal,
    SquashedNormal,
    TanhNormal,
    bound_log_std,
)
from slm_lab.agent.action.policy import build_policy
from slm_lab.lib.errors import SpecError
from slm_lab.spec.algorithm import AlgorithmSpec
from slm_lab.spec.net import LOG_STD_MAX, LOG_STD_MIN
from test.agent.draw import draw

FAMILIES: dict[str, ActionFamily] = {
    "Categorical": Categorical(4),
    "MultiCategorical": MultiCategorical([2, 3, 4]),
    "Bernoulli": Bernoulli(3),
    "Normal": Normal(2),
    "TanhNormal": TanhNormal(2),
    "SquashedNormal": SquashedNormal(2),
}
NAMES = list(FAMILIES)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def param_of(family: ActionFamily, num: int = 7, seed: int = 1) -> Tensor:
    # stds within the clamp
    return torch.randn(num, family.param_size, generator=generator(seed)) * 0.7


def peers(family: ActionFamily, param: Tensor, action: Tensor) -> list[tuple[distributions.Distribution, Tensor]]:
    """torch's own distributions, independent of one another, and the part of the action that each is of."""
    if isinstance(family, Categorical):
        return [(distributions.Categorical(logits=param), action)]
    if isinstance(family, MultiCategorical):
        parts = zip(param.split([2, 3, 4], -1), action.unbind(-1), strict=True)
        return [(distributions.Categorical(logits=logits), one) for logits, one in parts]
    if isinstance(family, Bernoulli):
        return [(distributions.Independent(distributions.Bernoulli(logits=param), 1), action.float())]
    mean, log_std = param.chunk(2, -1)
    normal = distributions.Independent(distributions.Normal(mean, log_std.exp()), 1)
    if isinstance(family, TanhNormal):
        return [(distributions.TransformedDistribution(normal, distributions.TanhTransform()), family.to_env(action))]
    return [(normal, action)]


# --- log probability and entropy


@pytest.mark.parametrize("name", NAMES)
def test_log_prob_and_entropy_equal_torch(name: str) -> None:
    """W19: the reference summed MultiCategorical over the batch; a mean over dimensions or no sum fails too."""
    family = FAMILIES[name]
    param = param_of(family)
    action = draw(family, param, generator())
    log_prob, entropy = family.log_prob(param, action), family.entropy(param)
    assert log_prob.shape == entropy.shape == (7,)
    own = peers(family, param, action)
    np.testing.assert_allclose(log_prob, sum(one.log_prob(part) for one, part in own), rtol=1e-4, atol=1e-4)
    if not isinstance(family, TanhNormal):
        np.testing.assert_allclose(entropy, sum(one.entropy() for one, _ in own), rtol=1e-5, atol=1e-5)
    both = family.log_prob_entropy(param, action)
    np.testing.assert_allclose(both[0], log_prob)
    np.testing.assert_allclose(both[1], entropy)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_finite_for_extreme_params(name: str) -> None:
    """log(softmax) or log(sigmoid) written out gives -inf * 0 here."""
    family = FAMILIES[name]
    for sign in (1.0, -1.0):
        extreme = sign * torch.tensor([200.0, -200.0]).repeat(family.param_size)[: family.param_size]
        param = extreme.repeat(3, 1).requires_grad_()
        action = family.mode(param.detach())
        log_prob, entropy = family.log_prob_entropy(param, action)
        (log_prob.sum() + entropy.sum()).backward()
        assert param.grad is not None
        assert torch.isfinite(log_prob).all()
        assert torch.isfinite(entropy).all()
        assert torch.isfinite(param.grad).all()


@pytest.mark.parametrize("log_std", [LOG_STD_MIN, 0.0, LOG_STD_MAX])
def test_tanh_normal_log_prob_far_out_equals_torch(log_std: float) -> None:
    """An action that went through tanh and back is at most 8.7 in float32, whatever it was."""
    raw = torch.tensor([[-40.0], [-9.0], [-7.5], [0.1], [8.0], [15.0], [60.0]], dtype=torch.float64)
    mean = raw + 0.3 * math.exp(log_std)
    transform = distributions.TanhTransform(cache_size=1)
    peer = distributions.TransformedDistribution(distributions.Normal(mean, math.exp(log_std)), transform)
    # the transform remembers what it made its result of
    action = transform(raw)
    expected = peer.log_prob(action).squeeze(-1)
    param = torch.cat([mean, torch.full_like(mean, log_std)], -1)
    np.testing.assert_allclose(TanhNormal(1).log_prob(param, raw), expected, rtol=1e-12)
    single = TanhNormal(1).log_prob(param.float(), raw.float())
    np.testing.assert_allclose(single, expected, rtol=1e-5 * math.exp(-min(log_std, 0)))
    np.testing.assert_array_equal(TanhNormal(1).to_env(raw), action)


@pytest.mark.parametrize("mean", [0.3, -2.0, 10.0])
@pytest.mark.parametrize("log_std", [LOG_STD_MIN, 0.0, LOG_STD_MAX])
def test_tanh_normal_entropy_is_the_integral(mean: float, log_std: float) -> None:
    param = torch.tensor([[mean, log_std]], dtype=torch.float64)
    noise = torch.linspace(-12, 12, 400_001, dtype=torch.float64)[:, None]
    density = torch.exp(-0.5 * noise.square() - 0.5 * math.log(2 * math.pi)).squeeze(-1)
    log_prob = TanhNormal(1).log_prob(param.expand(len(noise), -1), mean + math.exp(log_std) * noise)
    expected = -(density * log_prob).sum() * (24 / 400_000)
    assert float(TanhNormal(1).entropy(param)) == pytest.approx(float(expected), abs=1e-7)
    assert float(TanhNormal(1).entropy(param.float())) == pytest.approx(float(expected), abs=1e-5)


def test_a_squashed_draw_and_its_density_are_functions_of_the_parameters() -> None:
    """As the policy of SAC learns through them: summed over dimensions, with the change of volume."""
    param = (torch.randn(50, 4, generator=generator(), dtype=torch.float64) * 0.7).requires_grad_()
    noise = torch.randn(50, 2, generator=generator(1), dtype=torch.float64)
    action, log_prob = SquashedNormal(2).draw(param, noise)
    mean, std = param[:, :2], param[:, 2:].exp()
    raw = mean + std * noise
    expected = (distributions.Normal(mean, std).log_prob(raw) - (1 - raw.tanh() ** 2).log()).sum(-1)
    np.testing.assert_allclose(action.detach(), raw.detach().tanh(), rtol=1e-10)
    np.testing.assert_allclose(log_prob.detach(), expected.detach(), rtol=1e-6)
    for mine, theirs in ((action.sum(), raw.tanh().sum()), (log_prob.sum(), expected.sum())):
        one, two = (torch.autograd.grad(total, param, retain_graph=True)[0] for total in (mine, theirs))
        np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-8)
    far = torch.tensor([[50.0, 5.0], [-50.0, -50.0]], requires_grad=True)
    action, log_prob = SquashedNormal(1).draw(far, torch.tensor([[3.0], [-3.0]]))
    (action.sum() + log_prob.sum()).backward()
    assert torch.isfinite(log_prob).all()
    assert far.grad is not None
    assert torch.isfinite(far.grad).all()


def test_squashed_action_at_the_border_counts_as_the_last_number_before_it() -> None:
    """A float32 tanh of 10 is 1.0 exactly, whose atanh is infinite."""
    family = SquashedNormal(1)
    param = torch.tensor([[10.0, 0.0], [-10.0, 0.0]])
    action = family.mode(param)
    assert action.abs().tolist() == [[1.0], [1.0]]
    nearest = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    expected = TanhNormal(1).log_prob(param, action * nearest.atanh())
    np.testing.assert_allclose(family.log_prob(param, action), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("log_std", "passes_down", "passes_up"),
    [(2.5, True, False), (2.0, True, True), (-5.0, True, True), (-5.5, False, True), (0.0, True, True)],
)
def test_log_std_beyond_its_bounds_finds_back(log_std: float, passes_down: bool, passes_up: bool) -> None:
    """A clamp alone has no gradient there, so that whatever left the bounds stayed."""
    for slope, passes in ((1.0, passes_down), (-1.0, passes_up)):
        start = torch.tensor([log_std], requires_grad=True)
        # a step against this slope leads down, against -1 up
        (slope * bound_log_std(start)).sum().backward()
        assert start.grad is not None
        assert start.grad.item() == (slope if passes else 0.0)
    assert bound_log_std(start).item() == bound_log_std(start.detach()).item() == min(max(log_std, -5.0), 2.0)


def test_normal_log_std_is_clamped() -> None:
    family = Normal(1)
    wide, narrow = torch.tensor([[0.0, 50.0]]), torch.tensor([[0.0, -50.0]])
    action = torch.zeros(1, 1)
    # density at the mean: 1 / (std sqrt(2 pi))
    assert float(family.log_prob(wide, action)) == pytest.approx(-LOG_STD_MAX - 0.5 * math.log(2 * math.pi))
    assert float(family.log_prob(narrow, action)) == pytest.approx(-LOG_STD_MIN - 0.5 * math.log(2 * math.pi))
    spread = draw(family, wide.expand(20_000, -1), generator()).std()
    assert float(spread) == pytest.approx(math.exp(LOG_STD_MAX), rel=0.03)


# --- drawing


def frequencies(action: Tensor, num_choice: int) -> np.ndarray[Any, Any]:
    return np.bincount(action.flatten().numpy(), minlength=num_choice) / action.numel()


def close_frequency(observed: np.ndarray[Any, Any], prob: np.ndarray[Any, Any], num: int) -> None:
    """Within 4.5 standard errors each."""
    assert (np.abs(observed - prob) < 4.5 * np.sqrt(prob * (1 - prob) / num) + 1e-12).all(), (observed, prob)


def test_samples_follow_the_probabilities() -> None:
    """Noise shared by the choices, or a coin for several switches, would show in the shares of whole actions."""
    num, param = 40_000, torch.tensor([0.0, 1.0, 0.5, -0.5, 0.0])
    action = draw(MultiCategorical([2, 3]), param.expand(num, -1), generator())
    first, second = param[:2].softmax(-1).numpy(), param[2:].softmax(-1).numpy()
    close_frequency(frequencies(action[:, 0] * 3 + action[:, 1], 6), np.outer(first, second).flatten(), num)
    switches = draw(Bernoulli(2), torch.tensor([0.5, -2.0]).expand(num, -1), generator())
    on = torch.tensor([0.5, -2.0]).sigmoid().numpy()
    expected = np.outer([1 - on[0], on[0]], [1 - on[1], on[1]]).flatten()
    close_frequency(frequencies(switches[:, 0] * 2 + switches[:, 1], 4), expected, num)
    # means 1 and -2, stds 1 and .1
    action = draw(Normal(2), torch.tensor([1.0, -2.0, 0.0, math.log(0.1)]).expand(num, -1), generator())
    assert action.mean(0).tolist() == pytest.approx([1.0, -2.0], abs=0.03)
    assert action.std(0).tolist() == pytest.approx([1.0, 0.1], rel=0.03)
    assert float(torch.corrcoef(action.T)[0, 1]) == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize("name", NAMES)
def test_draws_come_from_the_given_generator_alone(name: str) -> None:
    """Drawing from torch's global generator makes a run depend on whatever else draws."""
    family = FAMILIES[name]
    param = param_of(family, 64)
    before = torch.get_rng_state()
    one, two, three = (draw(family, param, generator(seed)) for seed in (3, 3, 4))
    assert torch.equal(family.random(64, generator(3)), family.random(64, generator(3)))
    assert torch.equal(one, two)
    assert not torch.equal(one, three)
    assert torch.equal(torch.get_rng_state(), before)
    for action in (one, family.mode(param), family.random(64, generator())):
        assert action.shape == (64, *family.action_shape)
        assert action.dtype == family.action_dtype


@pytest.mark.parametrize("name", NAMES)
def test_mode_is_the_most_likely(name: str) -> None:
    family = FAMILIES[name]
    param = param_of(family, 1).clone()
    if isinstance(family, TanhNormal):
        # the density's peak lies elsewhere, the median is what acts; see below
        np.testing.assert_allclose(family.to_env(family.mode(param)), param[:, :2].tanh())
        return
    best = family.log_prob(param, family.mode(param))
    many = param.expand(2000, -1)
    assert (family.log_prob(many, draw(family, many, generator())) <= best + 1e-6).all()


def test_random_is_uniform() -> None:
    num = 40_000
    close_frequency(frequencies(Categorical(4).random(num, generator()), 4), np.full(4, 0.25), num)
    pair = MultiCategorical([2, 3]).random(num, generator())
    close_frequency(frequencies(pair[:, 0] * 3 + pair[:, 1], 6), np.full(6, 1 / 6), num)
    close_frequency(Bernoulli(3).random(num, generator()).float().mean(0).numpy(), np.full(3, 0.5), num)
    for family in (Normal(2), TanhNormal(2), SquashedNormal(2)):
        action = family.to_env(family.random(num, generator()))
        # the policy's own range [-1, 1]: variance 1/3
        assert float(action.abs().max()) <= 1
        assert action.mean(0).tolist() == pytest.approx([0, 0], abs=0.02)
        assert action.var(0).tolist() == pytest.approx([1 / 3, 1 / 3], rel=0.03)


# --- action policies


def draw_action(family: ActionFamily, param: Tensor, name: str, explore_var: float, seed: int = 0) -> Tensor:
    """Actions of a policy as a spec names it."""
    policy = build_policy(family, AlgorithmSpec(name="DQN", action_policy=name, explore_var_spec=explore_var))
    return policy.choose(param, policy.noise(len(param), generator(seed), 0))


def test_epsilon_greedy_draws_for_each_env_and_its_whole_action() -> None:
    """W18: one coin for the whole vector makes all envs explore or none of them; one per sub-action mixes."""
    family = MultiCategorical([10_000, 10_000])
    param = torch.zeros(200, 20_000)
    param[:, [3, 10_004]] = 5.0
    greedy, again = (draw_action(family, param, "epsilon_greedy", 0.5, s) == torch.tensor([3, 4]) for s in (0, 1))
    assert torch.equal(greedy[:, 0], greedy[:, 1])
    # 100 expected, standard deviation 7
    assert 60 <= int(greedy[:, 0].sum()) <= 140
    assert not torch.equal(greedy, again)


def test_epsilon_greedy_with_continuous_actions() -> None:
    param = torch.tensor([5.0, -5.0, 0.0, 0.0]).expand(64, -1)
    action = draw_action(Normal(2), param, "epsilon_greedy", 0.5)
    greedy = (action == torch.tensor([5.0, -5.0])).all(-1)
    assert 12 <= int(greedy.sum()) <= 52
    assert float(action[~greedy].abs().max()) <= 1


@pytest.mark.parametrize(
    ("name", "explore_var", "expected"),
    [
        ("epsilon_greedy", 0.0, [0, 0, 1]),
        # the greedy action comes from both: .4 + .6/3
        ("epsilon_greedy", 0.6, [0.2, 0.2, 0.6]),
        ("epsilon_greedy", 1.0, [1 / 3] * 3),
        ("random", 0.0, [1 / 3] * 3),
        ("default", 0.5, "1"),
        # logits are divided by the temperature: multiplied, .5 and 5 would give the opposite
        ("boltzmann", 0.5, "0.5"),
        ("boltzmann", 1.0, "1"),
        ("boltzmann", 5.0, "5"),
        ("boltzmann", 0.0, [0, 0, 1]),
    ],
)
def test_shares_of_a_policy(name: str, explore_var: float, expected: Any) -> None:
    """A number in quotes is the temperature that the shares follow."""
    logits = torch.tensor([0.0, 1.0, 2.0])
    action = draw_action(Categorical(3), logits.expand(40_000, -1), name, explore_var)
    share = (logits / float(expected)).softmax(-1).numpy() if isinstance(expected, str) else np.array(expected)
    close_frequency(frequencies(action, 3), share, 40_000)


@pytest.mark.parametrize("name", ["MultiCategorical", "Bernoulli"])
def test_boltzmann_at_zero_temperature_is_greedy(name: str) -> None:
    family = FAMILIES[name]
    param = param_of(family, 50)
    assert torch.equal(draw_action(family, param, "boltzmann", 0.0), family.mode(param))


def test_boltzmann_needs_discrete_actions(lab) -> None:
    algorithm = {"name": "Reinforce", "action_policy": "boltzmann", "explore_var_spec": 1.0}
    with pytest.raises(SpecError, match="action_policy: boltzmann needs discrete actions; use default"):
        lab.build(lab.spec("Pendulum-v1", algorithm))


# --- choosing the family


@pytest.mark.parametrize(
    ("space", "pdtype", "kind", "param_size", "action_shape"),
    [
        (spaces.Discrete(5), "default", Categorical, 5, ()),
        (spaces.Discrete(5, start=3), "Categorical", Categorical, 5, ()),
        (spaces.MultiDiscrete([2, 3]), "default", MultiCategorical, 5, (2,)),
        (spaces.MultiBinary(4), "default", Bernoulli, 4, (4,)),
        (spaces.Box(-1, 1, (3,)), "default", Normal, 6, (3,)),
        (spaces.Box(-1, 1, (3,)), "TanhNormal", TanhNormal, 6, (3,)),
        (spaces.Box(-1, 1, (2, 2)), "Normal", Normal, 8, (4,)),
    ],
    ids=str,
)
def test_build_family(
    space: gym.Space[Any], pdtype: str, kind: type[ActionFamily], param_size: int, action_shape: tuple[int, ...]
) -> None:
    family = build_family(space, pdtype)
    assert type(family) is kind
    assert family.name == kind.name
    assert family.param_size == param_size
    assert family.action_shape == action_shape


@pytest.mark.parametrize(
    ("space", "pdtype", "hint"),
    [
        (spaces.Discrete(5), "Normal", "use default or Categorical"),
        (spaces.MultiDiscrete([2, 3]), "Categorical", "use default or MultiCategorical"),
        (spaces.MultiBinary(4), "Categorical", "use default or Bernoulli"),
        (spaces.Box(-1, 1, (3,)), "Categorical", "use default or Normal or TanhNormal"),
        (spaces.Box(-1, 1, (3,)), "Bernoulli", "use default or Normal or TanhNormal"),
    ],
    ids=str,
)
def test_wrong_pdtype_is_refused(space: gym.Space[Any], pdtype: str, hint: str) -> None:
    with pytest.raises(SpecError, match=rf"action_pdtype: {pdtype} does not fit .*{hint}"):
        build_family(space, pdtype)
