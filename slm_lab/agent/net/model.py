"""Nets as bodies with output layers: policies, state values and action values."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from slm_lab.agent.action.distribution import bound_log_std
from slm_lab.agent.learn.flat import Spread
from slm_lab.agent.net.activation import build_activation
from slm_lab.agent.net.build import build_body
from slm_lab.agent.net.dict_net import DictNet
from slm_lab.agent.net.head import Head, ImplicitHead, calc_middles
from slm_lab.agent.net.init import init_head, init_weights
from slm_lab.agent.net.mlp import Flatten
from slm_lab.agent.net.noisy import NoisyLinear
from slm_lab.agent.net.parts import Parts, build_view, for_acting
from slm_lab.agent.net.recurrent import RecurrentBody
from slm_lab.env.layout import ObsPart
from slm_lab.lib.errors import SpecError
from slm_lab.spec.net import ConvNetSpec, DuelingConvNetSpec, DuelingMLPNetSpec, MLPNetSpec, NetSpec
from slm_lab.spec.sde import SDESpec

Carry = Tensor | None
# outputs (..., P) and observations (..., D) -> outputs with forbidden actions out of reach
OutputMask = Callable[[Tensor, Tensor], Tensor]
# width of the layer that joins an image's features with an action
JOINT_SIZE = 256


class DuelingHead(nn.Linear):
    """Values of actions as a value plus centred advantages (Wang et al. 2016, eq. 9)."""

    # numbers per action, each of which is centred over the actions
    size = 1

    def forward(self, features: Tensor) -> Tensor:
        """Values (..., A) or numbers (..., A*K)."""
        out = super().forward(features)
        if self.size > 1:
            out = out.unflatten(-1, (-1, self.size))
            value, adv = out[..., :1, :], out[..., 1:, :]
            return (value + adv - adv.mean(-2, keepdim=True)).flatten(-2)
        value, adv = out[..., :1], out[..., 1:]
        return value + adv - adv.mean(-1, keepdim=True)


class NoisyDuelingHead(DuelingHead, NoisyLinear):
    """A dueling head with noise."""


# whether it is dueling, whether it has noise
HEADS: dict[tuple[bool, bool], type[nn.Linear]] = {
    (False, False): nn.Linear,
    (False, True): NoisyLinear,
    (True, False): DuelingHead,
    (True, True): NoisyDuelingHead,
}


def use_bf16(net: nn.Module) -> None:
    """Compute bodies in bfloat16, except for layers that read vectors; weights and losses stay in float32."""
    bodies = []
    for part in net.modules():
        if isinstance(part, OutputNet) and part.state_size:
            raise SpecError("meta.precision: recurrent nets are computed in float32; use float32")
        if isinstance(part, (OutputNet, ActionValueNet)):
            bodies.append(part.body)
    # actor and critic may share a body
    for body in dict.fromkeys(bodies):
        body.register_forward_pre_hook(partial(_enter_precision, is_rough=True))
        body.register_forward_hook(_leave_precision, always_call=True)
        for layer in _find_input_layers(body):
            layer.register_forward_pre_hook(partial(_enter_precision, is_rough=False))
            layer.register_forward_hook(_leave_precision, always_call=True)


def _find_input_layers(body: nn.Module) -> list[nn.Linear]:
    """The layers that read vectors of observations and actions, which bfloat16 would round to two or three digits.

    Images do not need more digits.
    """
    readers = [body]
    for part in body.modules():
        if isinstance(part, DictNet):
            readers = part.readers
    kinds = (nn.Linear, _ConvNd, Flatten)
    firsts = [next((part for part in reader.modules() if isinstance(part, kinds)), None) for reader in readers]
    return list(dict.fromkeys(layer for layer in firsts if isinstance(layer, nn.Linear)))


def use_mask(net: nn.Module, mask: OutputMask) -> None:
    """Limit policies and action values to the actions that observations allow."""
    for part in net.modules():
        if isinstance(part, (PolicyNet, QNet)):
            part.mask = mask


def _enter_precision(part: nn.Module, args: tuple[Tensor, ...], is_rough: bool) -> None:
    # without its cache, since weights change between calls
    precision = torch.autocast(args[0].device.type, torch.bfloat16, enabled=is_rough, cache_enabled=False)
    precision.__enter__()
    part.__dict__["precision"] = precision


def _leave_precision(part: nn.Module, args: tuple[Tensor, ...], out: Tensor | None) -> Tensor | None:
    part.__dict__.pop("precision").__exit__(None, None, None)
    return out if out is None else out.float()


class OutputNet(nn.Module):
    """A body and an output layer; with a recurrent body, use `step` and `unroll` only.

    A carry (B, S) of None stands for the start of episodes; a net without a hidden state returns it unchanged.
    """

    mask: OutputMask | None = None

    def __init__(
        self,
        spec: NetSpec,
        obs_shape: tuple[int, ...],
        out_size: int,
        body: nn.Module | None = None,
        parts: Parts = (),
        is_dueling: bool = False,
    ) -> None:
        super().__init__()
        self.body = body if body is not None else build_body(spec, obs_shape, parts)
        # size of the hidden state, and length of the sequences it learns from; 0 without one
        is_recurrent = isinstance(self.body, RecurrentBody)
        self.state_size = self._recurrent.state_size if is_recurrent else 0
        self.seq_len = self._recurrent.seq_len if is_recurrent else 0
        is_noisy = isinstance(spec, (MLPNetSpec, ConvNetSpec)) and spec.noisy
        linear = HEADS[is_dueling, is_noisy](int(self.body.out_size), out_size)  # type: ignore[arg-type]
        self.head: nn.Module = linear
        activation = getattr(spec, "hid_layers_activation", None)  # not every net type has one
        init_weights(linear if body is not None else self, spec.init_fn, activation)
        init_head(linear, spec.init_std)
        if spec.out_layer_activation:
            self.head = nn.Sequential(linear, build_activation(spec.out_layer_activation))

    @property
    def _recurrent(self) -> RecurrentBody:
        assert isinstance(self.body, RecurrentBody)
        return self.body

    @property
    def linear(self) -> nn.Linear:
        """The output layer without its activation."""
        head = self.head[0] if isinstance(self.head, nn.Sequential) else self.head
        assert isinstance(head, nn.Linear)
        return head

    def forward(self, obs: Tensor) -> Tensor:
        """Output (B, out_size)."""
        return self.from_features(self.body(obs), obs)

    def from_features(self, features: Tensor, obs: Tensor) -> Tensor:
        """The output layer alone, for features of observations."""
        out = self.head(features)
        return out if self.mask is None else self.mask(out, obs)

    def init_carry(self, num_envs: int) -> Carry:
        """The hidden state at the start of episodes; None without one."""
        return next(self.parameters()).new_zeros(num_envs, self.state_size) if self.state_size else None

    def step(self, obs: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """Output (B, out_size) and the next hidden state."""
        if not self.state_size:
            return self(obs), carry
        features, carry = self.step_body(obs, carry)
        return self.from_features(features, obs), carry

    def step_body(self, obs: Tensor, carry: Carry) -> tuple[Tensor, Tensor]:
        """Features (B, F) and the next hidden state."""
        carry = self.init_carry(obs.shape[0]) if carry is None else carry
        assert carry is not None
        return self._recurrent.step(obs, carry)

    def unroll(self, obs: Tensor, carry: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs (L, B, out_size) of observations (L, B, ...), cleared before the rows of `reset` (L, B)."""
        features, carry = self.unroll_body(obs, carry, reset)
        return self.from_features(features, obs), carry

    def unroll_body(self, obs: Tensor, carry: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Features (L, B, F) and the hidden state after the last row."""
        return self._recurrent.unroll(obs, carry, reset)


class PolicyNet(OutputNet):
    """Parameters of an action distribution; with `log_std_init` the log std does not depend on the observation.

    With `sde` it depends on the features by a matrix of log stds, which does not train the features.
    """

    def __init__(
        self,
        spec: NetSpec,
        obs_shape: tuple[int, ...],
        param_size: int,
        is_gaussian: bool,
        parts: Parts = (),
        sde: SDESpec | None = None,
    ) -> None:
        if spec.log_std_init is not None and not is_gaussian:
            raise SpecError("agent.net.log_std_init: only a Normal or TanhNormal policy has a log std; remove it")
        start = spec.log_std_init
        is_whole = start is None and sde is None
        super().__init__(for_acting(spec, parts), obs_shape, param_size if is_whole else param_size // 2, parts=parts)
        self.log_std = None if start is None else nn.Parameter(torch.full((param_size // 2,), start))
        self.feature_log_std = None
        if sde is not None:
            shape = (self.linear.in_features, param_size // 2)
            self.feature_log_std = Spread(torch.full(shape, sde.log_std_init))

    def from_features(self, features: Tensor, obs: Tensor) -> Tensor:
        out = self.head(features)
        if self.log_std is not None:
            return torch.cat([out, self.log_std.expand_as(out)], -1)
        if self.feature_log_std is not None:
            scaled = features.detach().unsqueeze(-1) * bound_log_std(self.feature_log_std).exp()
            return torch.cat([out, scaled.flatten(-2)], -1)
        return out if self.mask is None else self.mask(out, obs)


class ActorCriticNet(nn.Module):
    """Actor and critic, on separate bodies or on a shared one."""

    def __init__(
        self,
        spec: NetSpec,
        obs_shape: tuple[int, ...],
        param_size: int,
        is_gaussian: bool,
        parts: Parts = (),
        sde: SDESpec | None = None,
    ) -> None:
        super().__init__()
        self.is_shared = spec.shared
        self.actor = PolicyNet(spec.for_role("actor"), obs_shape, param_size, is_gaussian, parts, sde)
        body = self.actor.body if spec.shared else None
        self.critic = OutputNet(spec.for_role("critic"), obs_shape, 1, body, parts)
        # separate nets have a slice of the hidden state each, the actor's first
        self.state_size = self.actor.state_size + (0 if spec.shared else self.critic.state_size)
        self.seq_len = self.actor.seq_len

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Distribution parameters (B, P) and values (B,)."""
        if self.is_shared:
            features = self.actor.body(obs)
            return self.actor.from_features(features, obs), self.critic.from_features(features, obs).squeeze(-1)
        return self.actor(obs), self.critic(obs).squeeze(-1)

    def init_carry(self, num_envs: int) -> Carry:
        """The hidden state of both nets at the start of episodes; None without one."""
        return next(self.parameters()).new_zeros(num_envs, self.state_size) if self.state_size else None

    def _split(self, carry: Carry, num_envs: int) -> tuple[Tensor, Tensor]:
        """The actor's and the critic's part of the hidden state."""
        carry = self.init_carry(num_envs) if carry is None else carry
        assert carry is not None
        size = self.actor.state_size
        return carry[:, :size], carry if self.is_shared else carry[:, size:]

    def step_both(self, obs: Tensor, carry: Carry) -> tuple[Tensor, Tensor, Carry]:
        """Distribution parameters (B, P), values (B,) and the next hidden state."""
        if not self.state_size:
            return *self(obs), carry
        actor_carry, critic_carry = self._split(carry, obs.shape[0])
        features, actor_carry = self.actor.step_body(obs, actor_carry)
        param = self.actor.from_features(features, obs)
        if self.is_shared:
            return param, self.critic.from_features(features, obs).squeeze(-1), actor_carry
        features, critic_carry = self.critic.step_body(obs, critic_carry)
        value = self.critic.from_features(features, obs).squeeze(-1)
        return param, value, torch.cat([actor_carry, critic_carry], -1)

    def step(self, obs: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        """Distribution parameters (B, P) alone; the critic's part of the hidden state stays as it is."""
        if not self.state_size:
            return self.actor(obs), carry
        actor_carry, critic_carry = self._split(carry, obs.shape[0])
        features, actor_carry = self.actor.step_body(obs, actor_carry)
        param = self.actor.from_features(features, obs)
        return param, actor_carry if self.is_shared else torch.cat([actor_carry, critic_carry], -1)

    def unroll(self, obs: Tensor, carry: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        """Distribution parameters (L, B, P) and values (L, B) of sequences."""
        actor_carry, critic_carry = self._split(carry, len(carry))
        features, _ = self.actor.unroll_body(obs, actor_carry, reset)
        param = self.actor.from_features(features, obs)
        if not self.is_shared:
            features, _ = self.critic.unroll_body(obs, critic_carry, reset)
        return param, self.critic.from_features(features, obs).squeeze(-1)

    def value(self, obs: Tensor, carry: Carry = None) -> Tensor:
        """Values (B,); those of a recurrent net depend on its hidden state."""
        if not self.state_size:
            return self.critic(obs).squeeze(-1)
        value, _ = self.critic.step(obs, self._split(carry, obs.shape[0])[1])
        return value.squeeze(-1)


class QNet(OutputNet):
    """Values (B, A) of every action, or K numbers (B, A, K) for the distribution of its return; `step` gives values."""

    def __init__(
        self,
        spec: NetSpec,
        obs_shape: tuple[int, ...],
        num_action: int,
        parts: Parts = (),
        critic: Head | None = None,
    ) -> None:
        is_dueling = isinstance(spec, (DuelingMLPNetSpec, DuelingConvNetSpec))
        size = 1 if critic is None or isinstance(critic, ImplicitHead) else critic.size
        super().__init__(spec, obs_shape, (num_action + is_dueling) * size, parts=parts, is_dueling=is_dueling)
        self.critic = critic
        self.size = size
        if isinstance(self.linear, DuelingHead):
            self.linear.size = size

    def from_features(self, features: Tensor, obs: Tensor) -> Tensor:
        # a mask applies to values, which `to_value` makes of several numbers
        if self.size > 1:
            return self.head(features).unflatten(-1, (-1, self.size))
        return super().from_features(features, obs)

    def to_value(self, out: Tensor, obs: Tensor) -> Tensor:
        """The mean returns (..., A) to choose an action by; those of forbidden actions are out of reach."""
        value = out if self.critic is None else self.critic.value(out)
        return value if self.mask is None else self.mask(value, obs)

    def step(self, obs: Tensor, carry: Carry) -> tuple[Tensor, Carry]:
        out, carry = super().step(obs, carry)
        return self.to_value(out, obs), carry


class ImplicitQNet(QNet):
    """Quantiles (B, A, K) of the return of every action, at K fractions given with the observations (IQN, eq. 4)."""

    def __init__(
        self, spec: NetSpec, obs_shape: tuple[int, ...], num_action: int, parts: Parts, critic: ImplicitHead
    ) -> None:
        super().__init__(spec, obs_shape, num_action, parts, critic)
        self.num_middle = critic.num_act
        self.embedding = nn.Linear(critic.num_cosine, self.linear.in_features)
        init_weights(self.embedding, spec.init_fn, "relu")

    def forward(self, obs: Tensor, fraction: Tensor | None = None) -> Tensor:
        """Quantiles at these fractions (B, K), or at evenly spaced ones."""
        features = self.body(obs)
        if fraction is None:
            fraction = calc_middles(self.num_middle, features.device).expand(features.shape[0], -1)
        wave = torch.pi * torch.arange(self.embedding.in_features, device=features.device)
        embedded = self.embedding((fraction.unsqueeze(-1) * wave).cos()).relu()
        return self.head(features.unsqueeze(-2) * embedded).transpose(-1, -2)


def build_q_net(critic: Head, spec: NetSpec, obs_shape: tuple[int, ...], num_action: int, parts: Parts = ()) -> QNet:
    """The net for a kind of critic."""
    if isinstance(critic, ImplicitHead):
        return ImplicitQNet(spec, obs_shape, num_action, parts, critic)
    return QNet(spec, obs_shape, num_action, parts, critic)


class ActionValueNet(nn.Module):
    """Value (B,) of an observation and a continuous action, or K = `size` numbers (B, K) for the return's distribution.

    The action joins vectors before the first layer, and images after their body. A DictNet sees the action as one more
    part without an encoder.
    """

    def __init__(
        self, spec: NetSpec, obs_shape: tuple[int, ...], action_size: int, parts: Parts = (), size: int = 1
    ) -> None:
        super().__init__()
        self.size = size
        view = build_view(spec, obs_shape, parts)
        self.select = view.select
        self.is_vector = len(view.shape) == 1
        # parts are selected here, before the action joins
        spec = spec.model_copy(update={"obs_keys": None})
        if self.is_vector:
            width = view.shape[0]
            # an empty name, which no part of an env has
            action = ObsPart("", width, width + action_size, (action_size,))
            net = OutputNet(spec, (width + action_size,), size, parts=(*view.parts, action))
            self.body, self.head = net.body, net.head
            return
        self.body = build_body(spec, view.shape, view.parts)
        joint = nn.Linear(int(self.body.out_size) + action_size, JOINT_SIZE)  # type: ignore[arg-type]
        linear = nn.Linear(JOINT_SIZE, size)
        activation = [build_activation(spec.out_layer_activation)] if spec.out_layer_activation else []
        self.head = nn.Sequential(joint, nn.ReLU(), linear, *activation)
        init_weights(self.body, spec.init_fn, getattr(spec, "hid_layers_activation", None))
        init_weights(self.head, spec.init_fn, "relu")
        init_head(linear, spec.init_std)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Values (B,) or numbers (B, K)."""
        seen = obs if self.select is None else self.select(obs)
        if self.is_vector:
            out = self.head(self.body(torch.cat([seen, action], -1)))
        else:
            out = self.head(torch.cat([self.body(seen), action], -1))
        return out.squeeze(-1) if self.size == 1 else out


class QEnsemble(nn.Module):
    """Several critics with separate weights; by default targets use the smallest of their values."""

    def __init__(
        self,
        spec: NetSpec,
        obs_shape: tuple[int, ...],
        action_size: int,
        is_discrete: bool,
        parts: Parts = (),
        num_critic: int = 2,
        size: int = 1,
    ) -> None:
        super().__init__()
        self.critics = nn.ModuleList(
            QNet(spec, obs_shape, action_size, parts)
            if is_discrete
            else ActionValueNet(spec, obs_shape, action_size, parts, size)
            for _ in range(num_critic)
        )

    def forward(self, *inputs: Tensor) -> Tensor:
        """Values (C, B) of continuous actions given with the observations, or (C, B, A) of every discrete one.

        The numbers of distributional critics are in one more dimension, the last.
        """
        return torch.stack([critic(*inputs) for critic in self.critics])
