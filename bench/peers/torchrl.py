"""TorchRL, set to a row's work: a loop of its collector, losses and replay, as its own example scripts have it."""

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SamplerWithoutReplacement, TensorDictReplayBuffer
from torchrl.envs import GymWrapper, SerialEnv
from torchrl.modules import MLP, NormalParamExtractor, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss, SACLoss, SoftUpdate
from torchrl.objectives.value import GAE

from bench.job import Job, Measured, answer_with
from bench.meter import Meter
from bench.peers.counting import StepCounter
from bench.peers.settings import OffPolicySettings, OnPolicySettings, Settings, read_settings
from bench.rows import ROW_BY_NAME, build_spec

ACTIVATIONS = {"tanh": nn.Tanh, "relu": nn.ReLU}
OPTIMIZERS = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}
Learn = Callable[[TensorDictBase], None]


class TimedEnvs(SerialEnv):
    """Takes the time of the envs' own steps."""

    seconds = 0.0

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        start = time.perf_counter()
        result = super()._step(tensordict)
        TimedEnvs.seconds += time.perf_counter() - start
        return result


def build_net(settings: Settings, size_in: int, size_out: int) -> MLP:
    """A net of the row's shape."""
    return MLP(
        in_features=size_in,
        out_features=size_out,
        num_cells=list(settings.widths),
        activation_class=ACTIVATIONS[settings.activation],
    )


def build_optimizer(settings: Settings, params: Any) -> torch.optim.Optimizer:
    """The row's optimiser."""
    return OPTIMIZERS[settings.optimizer](params, lr=settings.lr)


def build_ppo(settings: OnPolicySettings, env: SerialEnv, obs_size: int) -> tuple[Any, Learn]:
    """A policy of discrete actions and how to learn from a rollout."""
    spec = env.action_spec_unbatched
    logits = TensorDictModule(build_net(settings, obs_size, spec.space.n), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(
        logits,
        in_keys=["logits"],
        spec=spec,
        distribution_class=torch.distributions.OneHotCategorical,
        return_log_prob=True,
    )
    critic = ValueOperator(build_net(settings, obs_size, 1), in_keys=["observation"])
    advantage = GAE(gamma=settings.gamma, lmbda=settings.lam, value_network=critic, average_gae=False)
    loss = ClipPPOLoss(
        actor,
        critic,
        clip_epsilon=settings.clip_eps,
        entropy_coeff=settings.entropy_coef,
        critic_coeff=settings.val_loss_coef,
        loss_critic_type="l2",
        normalize_advantage=True,
    )
    optimizer = build_optimizer(settings, loss.parameters())
    params = list(loss.parameters())
    num_sample = settings.horizon * env.batch_size[0]
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(num_sample),
        sampler=SamplerWithoutReplacement(),
        batch_size=settings.minibatch,
    )

    def learn(data: TensorDictBase) -> None:
        with torch.no_grad():
            advantage(data)
        buffer.empty()
        buffer.extend(data.reshape(-1))
        for _ in range(settings.epochs):
            for batch in buffer:
                values = loss(batch)
                total = values["loss_objective"] + values["loss_critic"] + values["loss_entropy"]
                total.backward()
                torch.nn.utils.clip_grad_norm_(params, settings.max_norm)
                optimizer.step()
                optimizer.zero_grad()

    return actor, learn


def build_sac(settings: OffPolicySettings, env: SerialEnv, obs_size: int) -> tuple[Any, Learn]:
    """A policy of continuous actions and how to learn from a replay."""
    spec = env.action_spec_unbatched
    action_size = spec.shape[-1]
    body = nn.Sequential(build_net(settings, obs_size, 2 * action_size), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"]),
        in_keys=["loc", "scale"],
        spec=spec,
        distribution_class=TanhNormal,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high},
        return_log_prob=False,
    )
    critic = ValueOperator(build_net(settings, obs_size + action_size, 1), in_keys=["observation", "action"])
    loss = SACLoss(actor, critic, num_qvalue_nets=2, loss_function="l2")
    loss.make_value_estimator(gamma=settings.gamma)
    target = SoftUpdate(loss, tau=settings.polyak_coef)
    optimizers = [
        build_optimizer(settings, list(loss.qvalue_network_params.flatten_keys().values())),
        build_optimizer(settings, list(loss.actor_network_params.flatten_keys().values())),
        build_optimizer(settings, [loss.log_alpha]),
    ]
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(settings.replay_size), batch_size=settings.batch)
    num_frame = 0

    def learn(data: TensorDictBase) -> None:
        nonlocal num_frame
        num_frame += data.numel()
        buffer.extend(data.reshape(-1))
        if num_frame <= settings.start:
            return
        for _ in range(settings.steps_per_training):
            values = loss(buffer.sample())
            (values["loss_qvalue"] + values["loss_actor"] + values["loss_alpha"]).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            target.step()

    return actor, learn


def measure(job: Job) -> Measured:
    """Train until enough was measured."""
    counter, meter = StepCounter(), Meter(job)
    torch.manual_seed(0)
    spec = build_spec(ROW_BY_NAME[job.row], job.quick, job.overrides)
    settings, num_envs = read_settings(spec), spec.env.num_envs

    def make() -> GymWrapper:
        # gymnasium's checker of every step is off, as it is in the lab
        return GymWrapper(gym.make(spec.env.name, disable_env_checker=True))

    env = TimedEnvs(num_envs, make)
    obs_size = env.observation_spec["observation"].shape[-1]
    if isinstance(settings, OnPolicySettings):
        frames = settings.horizon * num_envs
        actor, learn = build_ppo(settings, env, obs_size)
    else:
        frames = num_envs
        actor, learn = build_sac(settings, env, obs_size)
    collector = Collector(env, actor, frames_per_batch=frames, total_frames=-1)
    frame, update_seconds = 0, 0.0
    for data in collector:
        frame += data.numel()
        start = time.perf_counter()
        learn(data)
        update_seconds += time.perf_counter() - start
        if meter.end_round(frame, counter.opt_step, {"env": TimedEnvs.seconds, "update": update_seconds}):
            break
    collector.shutdown()
    return meter.measured(counter.num_param)


if __name__ == "__main__":
    answer_with(measure)
