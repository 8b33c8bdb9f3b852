"""Action distributions.

A family belongs to an action space and works on the net's output `param` (B, P). Arguments are not checked, because
this runs at every step.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from slm_lab.spec.net import LOG_STD_MAX, LOG_STD_MIN

# The logit, or the value, of a forbidden choice: its probability is 0, and 0 times it is still 0. Compared with half of
# it, since compiled code may round it.
FORBIDDEN = -1e30
_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
# recorded actions at the bounds themselves would be infinite before tanh
_MAX_TANH = 1 - 1e-6
# Points of an expectation over a standard normal, equally far apart: the error of log(1 - tanh^2) is about
# exp(-pi^2 / (std * distance)), 1e-7 at the largest std, where 64 Gauss-Hermite points are off by 2e-2.
_NUM_POINT, _END = 169, 7.0


class ActionFamily(ABC):
    """A family of action distributions on one action space."""

    # whether it has a temperature, as boltzmann exploration needs
    is_discrete = True
    # whether the nets' outputs are limited to allowed actions, by `restrict`
    is_masked = False
    # numbers of an action mask
    mask_size = 0
    name: str
    param_size: int
    action_shape: tuple[int, ...]
    action_dtype: torch.dtype

    @abstractmethod
    def noise(self, num: int, generator: torch.Generator, frame: int = 0) -> Tensor:
        """Random numbers for `num` actions; the frame makes no difference here."""

    @abstractmethod
    def choose(self, param: Tensor, noise: Tensor) -> Tensor:
        """The action of each row, given its noise."""

    @abstractmethod
    def mode(self, param: Tensor) -> Tensor:
        """The most likely action of each row."""

    @abstractmethod
    def random(self, num: int, generator: torch.Generator) -> Tensor:
        """Actions drawn uniformly."""

    def uniform_noise(self, num: int, generator: torch.Generator) -> Tensor:
        """Random numbers for `choose_uniform`, as many for each action as those of `noise`."""
        return self.noise(num, generator)

    def choose_uniform(self, param: Tensor, noise: Tensor) -> Tensor:
        """An action of each row drawn uniformly, of those that restricted parameters allow."""
        return self.choose(level(param), noise)

    @abstractmethod
    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        """Log probability (or density) of each row's action."""

    @abstractmethod
    def entropy(self, param: Tensor) -> Tensor:
        """Entropy of each row."""

    def log_prob_entropy(self, param: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Both at once, which may share work."""
        return self.log_prob(param, action), self.entropy(param)

    def with_temperature(self, param: Tensor, tau: Tensor) -> Tensor:
        """The parameters at temperature `tau`."""
        raise NotImplementedError(f"{self.name} has no temperature")

    def restrict(self, param: Tensor, allowed: Tensor) -> Tensor:
        """The parameters (..., P) with no probability for choices that a mask (..., M) forbids."""
        raise NotImplementedError(f"{self.name} has no choices to forbid")

    def to_env(self, action: Tensor) -> Tensor:
        """Actions in the range that envs of the lab take, -1 to 1 for a Box."""
        return action

    def from_env(self, action: Tensor) -> Tensor:
        """Actions that an env took, as the policy would have sampled them."""
        return action


def level(param: Tensor) -> Tensor:
    """Restricted parameters (..., P) with all allowed choices equally likely."""
    return param.masked_fill(param.abs() < -FORBIDDEN / 2, 0.0)


def count_allowed(param: Tensor) -> Tensor:
    """The number of allowed choices (...) of restricted parameters or log probabilities (..., A)."""
    return (param > FORBIDDEN / 2).sum(-1)


def _exponential(num: int, num_choice: int, generator: torch.Generator) -> Tensor:
    return torch.empty(num, num_choice, device=generator.device).exponential_(generator=generator)


def _gumbel_argmax(log_prob: Tensor, noise: Tensor) -> Tensor:
    """Sample from log probabilities; one exponential draw per choice."""
    return (log_prob - noise.log()).argmax(-1)


class Categorical(ActionFamily):
    """One of A choices; param holds logits (B, A)."""

    name = "Categorical"

    def __init__(self, num_choice: int) -> None:
        self.param_size = self.mask_size = num_choice
        self.action_shape = ()
        self.action_dtype = torch.int64

    def noise(self, num: int, generator: torch.Generator, frame: int = 0) -> Tensor:
        return _exponential(num, self.param_size, generator)

    def choose(self, param: Tensor, noise: Tensor) -> Tensor:
        return _gumbel_argmax(param, noise)

    def mode(self, param: Tensor) -> Tensor:
        return param.argmax(-1)

    def random(self, num: int, generator: torch.Generator) -> Tensor:
        return torch.randint(self.param_size, (num,), generator=generator, device=generator.device)

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        return param.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, param: Tensor) -> Tensor:
        log_prob = param.log_softmax(-1)
        return -(log_prob.exp() * log_prob).sum(-1)

    def log_prob_entropy(self, param: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        log_prob = param.log_softmax(-1)
        entropy = -(log_prob.exp() * log_prob).sum(-1)
        return log_prob.gather(-1, action.unsqueeze(-1)).squeeze(-1), entropy

    def with_temperature(self, param: Tensor, tau: Tensor) -> Tensor:
        return param / tau

    def restrict(self, param: Tensor, allowed: Tensor) -> Tensor:
        return torch.where(allowed, param, FORBIDDEN)

    def to_index(self, action: Tensor) -> Tensor:
        """The choice each action stands for (B,)."""
        return action

    def from_index(self, index: Tensor) -> Tensor:
        """The action each choice stands for."""
        return index


class JointCategorical(Categorical):
    """Every combination of several choices as one choice; param holds a logit, or a value, for each combination."""

    name = "JointCategorical"

    def __init__(self, num_choices: list[int]) -> None:
        super().__init__(math.prod(num_choices))
        self.num_choices = num_choices
        self.mask_size = sum(num_choices)
        self.action_shape = (len(num_choices),)
        # the last choice counts fastest, as in a row-major array
        self.strides = [math.prod(num_choices[place + 1 :]) for place in range(len(num_choices))]

    def to_index(self, action: Tensor) -> Tensor:
        index = torch.zeros_like(action[..., 0])
        for part, stride in zip(action.unbind(-1), self.strides, strict=True):
            index = index + part * stride
        return index

    def from_index(self, index: Tensor) -> Tensor:
        parts = [index // stride % count for stride, count in zip(self.strides, self.num_choices, strict=True)]
        return torch.stack(parts, -1)

    def restrict(self, param: Tensor, allowed: Tensor) -> Tensor:
        first, *others = allowed.split(self.num_choices, -1)
        # a combination is allowed if all of its choices are
        for part in others:
            first = (first.unsqueeze(-1) & part.unsqueeze(-2)).flatten(-2)
        return super().restrict(param, first)

    def choose(self, param: Tensor, noise: Tensor) -> Tensor:
        return self.from_index(super().choose(param, noise))

    def mode(self, param: Tensor) -> Tensor:
        return self.from_index(super().mode(param))

    def random(self, num: int, generator: torch.Generator) -> Tensor:
        return self.from_index(super().random(num, generator))

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        return super().log_prob(param, self.to_index(action))

    def log_prob_entropy(self, param: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return super().log_prob_entropy(param, self.to_index(action))


class MultiCategorical(ActionFamily):
    """Several independent choices; param holds their logits side by side."""

    name = "MultiCategorical"

    def __init__(self, num_choices: list[int]) -> None:
        self.num_choices = num_choices
        self.param_size = self.mask_size = sum(num_choices)
        self.action_shape = (len(num_choices),)
        self.action_dtype = torch.int64

    def _split(self, param: Tensor) -> tuple[Tensor, ...]:
        return param.split(self.num_choices, -1)

    def noise(self, num: int, generator: torch.Generator, frame: int = 0) -> Tensor:
        return torch.cat([_exponential(num, count, generator) for count in self.num_choices], -1)

    def choose(self, param: Tensor, noise: Tensor) -> Tensor:
        pairs = zip(self._split(param), self._split(noise), strict=True)
        return torch.stack([_gumbel_argmax(logits, part) for logits, part in pairs], -1)

    def mode(self, param: Tensor) -> Tensor:
        return torch.stack([logits.argmax(-1) for logits in self._split(param)], -1)

    def random(self, num: int, generator: torch.Generator) -> Tensor:
        device = generator.device
        return torch.stack(
            [torch.randint(count, (num,), generator=generator, device=device) for count in self.num_choices], -1
        )

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        parts = [
            logits.log_softmax(-1).gather(-1, action[..., index : index + 1])
            for index, logits in enumerate(self._split(param))
        ]
        return torch.cat(parts, -1).sum(-1)

    def entropy(self, param: Tensor) -> Tensor:
        total = torch.zeros(param.shape[:-1], device=param.device)
        for logits in self._split(param):
            log_prob = logits.log_softmax(-1)
            total = total - (log_prob.exp() * log_prob).sum(-1)
        return total

    def with_temperature(self, param: Tensor, tau: Tensor) -> Tensor:
        return param / tau

    def restrict(self, param: Tensor, allowed: Tensor) -> Tensor:
        return torch.where(allowed, param, FORBIDDEN)


class Bernoulli(ActionFamily):
    """Independent switches; param holds their logits (B, A)."""

    name = "Bernoulli"

    def __init__(self, num_switch: int) -> None:
        self.param_size, self.mask_size = num_switch, 2 * num_switch
        self.action_shape = (num_switch,)
        self.action_dtype = torch.int64

    def noise(self, num: int, generator: torch.Generator, frame: int = 0) -> Tensor:
        return torch.rand(num, self.param_size, generator=generator, device=generator.device)

    def choose(self, param: Tensor, noise: Tensor) -> Tensor:
        return (noise < param.sigmoid()).long()

    def mode(self, param: Tensor) -> Tensor:
        return (param > 0).long()

    def random(self, num: int, generator: torch.Generator) -> Tensor:
        return torch.randint(2, (num, self.param_size), generator=generator, device=generator.device)

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        return torch.where(action > 0, logsigmoid(param), logsigmoid(-param)).sum(-1)

    def entropy(self, param: Tensor) -> Tensor:
        prob = param.sigmoid()
        return -(prob * logsigmoid(param) + (1 - prob) * logsigmoid(-param)).sum(-1)

    def with_temperature(self, param: Tensor, tau: Tensor) -> Tensor:
        return param / tau

    def restrict(self, param: Tensor, allowed: Tensor) -> Tensor:
        off, on = allowed.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.where(on, torch.where(off, param, -FORBIDDEN), FORBIDDEN)


class Normal(ActionFamily):
    """Independent Gaussians; param holds means and log stds side by side (B, 2A)."""

    is_discrete = False
    name = "Normal"

    def __init__(self, size: int) -> None:
        self.param_size = 2 * size
        self.action_shape = (size,)
        self.action_dtype = torch.float32

    def split(self, param: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and bounded log std."""
        mean, log_std = param.chunk(2, -1)
        return mean, bound_log_std(log_std)

    def noise(self, num: int, generator: torch.Generator, frame: int = 0) -> Tensor:
        return torch.randn(num, *self.action_shape, generator=generator, device=generator.device)

    def choose(self, param: Tensor, noise: Tensor) -> Tensor:
        mean, log_std = self.split(param)
        return mean + log_std.exp() * noise

    def mode(self, param: Tensor) -> Tensor:
        return self.split(param)[0]

    def random(self, num: int, generator: torch.Generator) -> Tensor:
        size = (num, *self.action_shape)
        return torch.rand(size, generator=generator, device=generator.device) * 2 - 1

    def uniform_noise(self, num: int, generator: torch.Generator) -> Tensor:
        return self.random(num, generator)

    def choose_uniform(self, param: Tensor, noise: Tensor) -> Tensor:
        return noise

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        mean, log_std = self.split(param)
        return (-0.5 * ((action - mean) * (-log_std).exp()).square() - log_std - _HALF_LOG_2PI).sum(-1)

    def entropy(self, param: Tensor) -> Tensor:
        return (self.split(param)[1] + 0.5 + _HALF_LOG_2PI).sum(-1)


class TanhNormal(Normal):
    """Gaussians squashed into [-1, 1]; samples are kept as they were before tanh, which float32 cannot invert."""

    name = "TanhNormal"

    def random(self, num: int, generator: torch.Generator) -> Tensor:
        # -1 itself would be minus infinity
        return super().random(num, generator).clamp(min=-1 + 1e-7).atanh()

    def to_env(self, action: Tensor) -> Tensor:
        return action.tanh()

    def from_env(self, action: Tensor) -> Tensor:
        return action.clamp(-_MAX_TANH, _MAX_TANH).atanh()

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        return super().log_prob(param, action) - log_det_tanh(action).sum(-1)

    def entropy(self, param: Tensor) -> Tensor:
        # no closed form: the Gaussian's entropy plus the mean change of volume, by the trapezoidal rule
        mean, log_std = (part.unsqueeze(-1) for part in self.split(param))
        point = torch.linspace(-_END, _END, _NUM_POINT, dtype=param.dtype, device=param.device)
        weight = (-0.5 * point.square() - _HALF_LOG_2PI).exp() * (2 * _END / (_NUM_POINT - 1))
        change = (log_det_tanh(mean + log_std.exp() * point) * weight).sum(-1)
        return super().entropy(param) + change.sum(-1)


class SquashedNormal(TanhNormal):
    """The same policy for algorithms with action values: samples are kept as the env took them."""

    def choose(self, param: Tensor, noise: Tensor) -> Tensor:
        return super().choose(param, noise).tanh()

    def mode(self, param: Tensor) -> Tensor:
        return super().mode(param).tanh()

    def random(self, num: int, generator: torch.Generator) -> Tensor:
        return super(TanhNormal, self).random(num, generator)

    def to_env(self, action: Tensor) -> Tensor:
        return action

    def from_env(self, action: Tensor) -> Tensor:
        return action

    def log_prob(self, param: Tensor, action: Tensor) -> Tensor:
        # 1 itself stands for all that rounds to it, and counts as the largest number below it
        largest = 1 - torch.finfo(action.dtype).eps / 2
        return super().log_prob(param, action.clamp(-largest, largest).atanh())

    def draw(self, param: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Actions and their log densities as functions of standard normal noise, for gradients through the draw."""
        mean, log_std = self.split(param)
        raw = mean + log_std.exp() * noise
        # from the noise itself: going back through atanh would lose the tails
        normal = -0.5 * noise.square() - log_std - _HALF_LOG_2PI
        return raw.tanh(), (normal - log_det_tanh(raw)).sum(-1)


def bound_log_std(log_std: Tensor) -> Tensor:
    """A clamp that passes gradients towards its bounds, so that a log std outside them does not get stuck."""
    bounded = log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)
    if not log_std.requires_grad or not torch.is_grad_enabled():
        return bounded
    passed = log_std.clone()
    passed.register_hook(
        lambda grad: torch.where(
            log_std > LOG_STD_MAX, grad.clamp(min=0), torch.where(log_std < LOG_STD_MIN, grad.clamp(max=0), grad)
        )
    )
    # adds 0: the value is the clamped one, the gradient that of `passed`
    return bounded.detach() + (passed - passed.detach())


def log_det_tanh(raw: Tensor) -> Tensor:
    """log(1 - tanh(raw)^2), stable for large inputs."""
    return 2 * (math.log(2) - raw - softplus(-2 * raw))
