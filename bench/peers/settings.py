"""The numbers of a spec by plain names, for libraries that are not the lab."""

from dataclasses import dataclass
from typing import Any

from slm_lab.spec.algorithm import ActorCriticSpec, OffPolicySpec, PPOSpec, SoftActorCriticSpec
from slm_lab.spec.memory import ReplaySpec
from slm_lab.spec.net import ConvNetSpec, MLPNetSpec
from slm_lab.spec.schedule import calc_schedule
from slm_lab.spec.schema import Spec

# libraries that take a share of the run for exploring are told to run for ever
FOR_EVER = 10**9


@dataclass(frozen=True)
class Settings:
    """What every algorithm has."""

    gamma: float
    lr: float
    optimizer: str
    max_norm: float
    is_image: bool
    # hidden layers; of an image, those after the convolutions
    widths: tuple[int, ...]
    activation: str


@dataclass(frozen=True)
class OnPolicySettings(Settings):
    """PPO, or A2C where minibatch is None."""

    horizon: int
    lam: float
    entropy_coef: float
    val_loss_coef: float
    minibatch: int | None = None
    epochs: int = 1
    clip_eps: float = 0.0
    clips_value: bool = False


@dataclass(frozen=True)
class OffPolicySettings(Settings):
    """SAC, or DQN where `is_soft` is not set."""

    is_soft: bool
    replay_size: int
    batch: int
    start: int
    steps_per_training: int
    num_step_returns: int
    polyak_coef: float
    final_epsilon: float = 0.0

    @property
    def exploration(self) -> dict[str, float]:
        """Random actions as late in the run: always the fewest."""
        return {
            "exploration_fraction": 1 / FOR_EVER,
            "exploration_initial_eps": self.final_epsilon,
            "exploration_final_eps": self.final_epsilon,
        }


def read_settings(spec: Spec) -> OnPolicySettings | OffPolicySettings:
    """What a peer must know of a spec to do the same work."""
    algorithm, net = spec.agent.algorithm, spec.agent.net
    assert isinstance(net, (MLPNetSpec, ConvNetSpec))
    actor = net.for_role("actor")
    common: dict[str, Any] = {
        "gamma": algorithm.gamma,
        "lr": actor.optim_spec.lr,
        "optimizer": actor.optim_spec.name,
        # an absurd norm clips nothing
        "max_norm": net.clip_grad_val or 1e9,
        "is_image": isinstance(net, ConvNetSpec),
        "widths": net.fc_hid_layers if isinstance(net, ConvNetSpec) else net.hid_layers,
        "activation": net.hid_layers_activation,
    }
    if isinstance(algorithm, OffPolicySpec):
        memory = spec.agent.memory
        assert isinstance(memory, ReplaySpec)
        return OffPolicySettings(
            **common,
            is_soft=isinstance(algorithm, SoftActorCriticSpec),
            replay_size=memory.max_size,
            batch=memory.batch_size,
            start=algorithm.training_start_step,
            steps_per_training=algorithm.num_grad_step,
            num_step_returns=memory.num_step_returns,
            polyak_coef=net.polyak_coef,
            final_epsilon=calc_schedule(algorithm.explore_var_spec or 0.0, FOR_EVER),
        )
    assert isinstance(algorithm, (PPOSpec, ActorCriticSpec))
    common |= {
        "lam": 1.0 if algorithm.lam is None else algorithm.lam,
        "entropy_coef": calc_schedule(algorithm.entropy_coef_spec, 0),
        "val_loss_coef": algorithm.val_loss_coef,
    }
    if isinstance(algorithm, ActorCriticSpec):
        return OnPolicySettings(**common, horizon=algorithm.training_frequency)
    return OnPolicySettings(
        **common,
        horizon=algorithm.time_horizon,
        minibatch=algorithm.minibatch_size,
        epochs=algorithm.training_epoch,
        clip_eps=calc_schedule(algorithm.clip_eps_spec, 0),
        clips_value=algorithm.clip_vloss,
    )
