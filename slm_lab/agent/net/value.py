"""Nets that value actions: all discrete ones at once, or one continuous action at a time."""

import torch
from torch import Tensor, nn

from slm_lab.agent.net.build import build_body
from slm_lab.agent.net.init import init_weights
from slm_lab.agent.net.model import OutputNet
from slm_lab.agent.net.parts import Parts, build_view
from slm_lab.env.layout import ObsPart
from slm_lab.spec.net import DuelingConvNetSpec, DuelingMLPNetSpec, NetSpec

# width of the layer that joins an image's features with an action
JOINT_SIZE = 256


class QNet(OutputNet):
    """Values (B, A) of every action; dueling nets add a value to centred advantages (Wang et al. 2016, eq. 9)."""

    def __init__(self, spec: NetSpec, obs_shape: tuple[int, ...], num_action: int, parts: Parts = ()) -> None:
        self.is_dueling = isinstance(spec, (DuelingMLPNetSpec, DuelingConvNetSpec))
        super().__init__(spec, obs_shape, num_action + self.is_dueling, parts=parts)

    def from_features(self, features: Tensor) -> Tensor:
        out = super().from_features(features)
        if not self.is_dueling:
            return out
        value, adv = out[..., :1], out[..., 1:]
        return value + adv - adv.mean(-1, keepdim=True)


class ActionValueNet(nn.Module):
    """Value (B,) of an observation and a continuous action.

    Vectors are joined with the action before the first layer, images after the last one of their body. A DictNet sees
    the action as one more part without an encoder.
    """

    def __init__(self, spec: NetSpec, obs_shape: tuple[int, ...], action_size: int, parts: Parts = ()) -> None:
        super().__init__()
        view = build_view(spec, obs_shape, parts)
        self.select = view.select
        self.is_vector = len(view.shape) == 1
        # what it sees is chosen here, before the action joins
        spec = spec.model_copy(update={"obs_keys": None})
        if self.is_vector:
            size = view.shape[0]
            # no part of an env is without a name
            action = ObsPart("", size, size + action_size, (action_size,))
            self.net: nn.Module = OutputNet(spec, (size + action_size,), 1, parts=(*view.parts, action))
            return
        self.body = build_body(spec, view.shape, view.parts)
        self.net = nn.Sequential(
            nn.Linear(int(self.body.out_size) + action_size, JOINT_SIZE),  # type: ignore[arg-type]
            nn.ReLU(),
            nn.Linear(JOINT_SIZE, 1),
        )
        init_weights(self, spec.init_fn, "relu")

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Values (B,)."""
        seen = obs if self.select is None else self.select(obs)
        features = seen if self.is_vector else self.body(seen)
        return self.net(torch.cat([features, action], -1)).squeeze(-1)


class TwinQNet(nn.Module):
    """Two critics with weights of their own; the smaller of their values is the one to trust."""

    def __init__(
        self, spec: NetSpec, obs_shape: tuple[int, ...], action_size: int, is_discrete: bool, parts: Parts = ()
    ) -> None:
        super().__init__()
        kind = QNet if is_discrete else ActionValueNet
        self.critics = nn.ModuleList(kind(spec, obs_shape, action_size, parts) for _ in range(2))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Values (2, B) of continuous actions given with the observations, or (2, B, A) of every discrete one."""
        return torch.stack([critic(*inputs) for critic in self.critics])
