"""Bodies with their output layers: policy, value, and both together."""

import torch
from torch import Tensor, nn

from slm_lab.agent.net.activation import build_activation
from slm_lab.agent.net.build import build_body
from slm_lab.agent.net.init import init_head, init_weights
from slm_lab.lib.errors import SpecError
from slm_lab.spec.net import NetSpec

Carry = Tensor | None


class OutputNet(nn.Module):
    """A body and one output layer."""

    def __init__(self, spec: NetSpec, obs_shape: tuple[int, ...], out_size: int, body: nn.Module | None = None) -> None:
        super().__init__()
        self.body = body if body is not None else build_body(spec, obs_shape)
        self.head = nn.Linear(int(self.body.out_size), out_size)  # type: ignore[arg-type]
        activation = getattr(spec, "hid_layers_activation", None)  # not every net type has one
        init_weights(self.head if body is not None else self, spec.init_fn, activation)
        init_head(self.head, spec.init_std)
        self.out_activation = build_activation(spec.out_layer_activation) if spec.out_layer_activation else None

    def from_features(self, features: Tensor) -> Tensor:
        """The output layer alone."""
        out = self.head(features)
        return out if self.out_activation is None else self.out_activation(out)

    def forward(self, obs: Tensor) -> Tensor:
        """Output (B, out_size)."""
        return self.from_features(self.body(obs))


class PolicyNet(OutputNet):
    """Parameters of an action distribution; with `log_std_init` the log std does not depend on the observation."""

    def __init__(self, spec: NetSpec, obs_shape: tuple[int, ...], param_size: int, is_gaussian: bool) -> None:
        if spec.log_std_init is not None and not is_gaussian:
            raise SpecError("agent.net.log_std_init: only a Normal or TanhNormal policy has a log std; remove it")
        start = spec.log_std_init
        super().__init__(spec, obs_shape, param_size if start is None else param_size // 2)
        self.log_std = None if start is None else nn.Parameter(torch.full((param_size // 2,), start))

    def from_features(self, features: Tensor) -> Tensor:
        mean = super().from_features(features)
        return mean if self.log_std is None else torch.cat([mean, self.log_std.expand_as(mean)], -1)


class ActorCriticNet(nn.Module):
    """Actor and critic, on bodies of their own or on one they share."""

    def __init__(self, spec: NetSpec, obs_shape: tuple[int, ...], param_size: int, is_gaussian: bool) -> None:
        super().__init__()
        self.is_shared = spec.shared
        self.actor = PolicyNet(spec.for_role("actor"), obs_shape, param_size, is_gaussian)
        body = self.actor.body if spec.shared else None
        self.critic = OutputNet(spec.for_role("critic"), obs_shape, 1, body)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Distribution parameters (B, P) and values (B,)."""
        if self.is_shared:
            features = self.actor.body(obs)
            return self.actor.from_features(features), self.critic.from_features(features).squeeze(-1)
        return self.actor(obs), self.critic(obs).squeeze(-1)

    def value(self, obs: Tensor) -> Tensor:
        """Values (B,)."""
        return self.critic(obs).squeeze(-1)
