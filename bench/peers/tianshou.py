"""Tianshou, set to a row's work and run by its own trainers."""

import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from tianshou.algorithm.modelfree.a2c import A2C
from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy, ProbabilisticActorPolicy
from tianshou.algorithm.modelfree.sac import SAC, AutoAlpha, SACPolicy
from tianshou.algorithm.optim import TorchOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv, VectorEnvNormObs
from tianshou.trainer import OffPolicyTrainer, OffPolicyTrainerParams, OnPolicyTrainer, OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic
from torch.distributions import Distribution, Independent, Normal

from bench.job import Job, Measured, answer_with
from bench.meter import Meter
from bench.peers.counting import StepCounter
from bench.peers.settings import OffPolicySettings, OnPolicySettings, read_settings
from bench.rows import ROW_BY_NAME, build_spec
from slm_lab.spec.schema import Spec

ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}
OPTIMIZERS = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}


class EnoughError(Exception):
    """Ends the trainer, which has no other way out between two rounds."""


class TimedEnvs(DummyVectorEnv):
    """Takes the time of the envs' own steps."""

    seconds = 0.0

    def step(self, action: Any, id: int | Sequence[int] | None = None) -> Any:
        start = time.perf_counter()
        result = super().step(action, id)
        self.seconds += time.perf_counter() - start
        return result


def build_normal(param: tuple[torch.Tensor, torch.Tensor]) -> Distribution:
    """The distribution of continuous actions."""
    return Independent(Normal(*param), 1)


def build_on_policy(settings: OnPolicySettings, env: gym.Env[Any, Any], scales_return: bool) -> Any:
    """PPO or A2C on two nets."""
    obs_space, action_space = env.observation_space, env.action_space
    assert obs_space.shape is not None
    body = {"hidden_sizes": settings.widths, "activation": ACTIVATIONS[settings.activation]}
    actor_body, critic_body = (Net(state_shape=obs_space.shape, **body) for _ in range(2))
    critic: torch.nn.Module
    policy: ProbabilisticActorPolicy
    if isinstance(action_space, gym.spaces.Discrete):
        actor = DiscreteActor(preprocess_net=actor_body, action_shape=int(action_space.n), softmax_output=False)
        critic = DiscreteCritic(preprocess_net=critic_body)
        policy = DiscreteActorPolicy(actor=actor, action_space=action_space)
    else:
        assert action_space.shape is not None
        mean = ContinuousActorProbabilistic(preprocess_net=actor_body, action_shape=action_space.shape, unbounded=True)
        critic = ContinuousCritic(preprocess_net=critic_body)
        policy = ProbabilisticActorPolicy(actor=mean, dist_fn=build_normal, action_space=action_space)
    common: dict[str, Any] = {
        "policy": policy,
        "critic": critic,
        "optim": TorchOptimizerFactory(OPTIMIZERS[settings.optimizer], lr=settings.lr),
        "vf_coef": settings.val_loss_coef,
        "ent_coef": settings.entropy_coef,
        "max_grad_norm": settings.max_norm,
        "gae_lambda": settings.lam,
        "gamma": settings.gamma,
        "return_scaling": scales_return,
    }
    if settings.minibatch is None:
        return A2C(**common)
    return PPO(**common, eps_clip=settings.clip_eps, value_clip=settings.clips_value, advantage_normalization=True)


def build_off_policy(settings: OffPolicySettings, env: gym.Env[Any, Any]) -> Any:
    """SAC or DQN."""
    obs_space, action_space = env.observation_space, env.action_space
    assert obs_space.shape is not None
    body: dict[str, Any] = {
        "state_shape": obs_space.shape,
        "hidden_sizes": settings.widths,
        "activation": ACTIVATIONS[settings.activation],
    }
    optim = TorchOptimizerFactory(OPTIMIZERS[settings.optimizer], lr=settings.lr)
    if not settings.is_soft:
        assert isinstance(action_space, gym.spaces.Discrete)
        net = Net(action_shape=int(action_space.n), **body)
        return DQN(
            policy=DiscreteQLearningPolicy(model=net, action_space=action_space, eps_training=settings.final_epsilon),
            optim=optim,
            gamma=settings.gamma,
            n_step_return_horizon=settings.num_step_returns,
            target_update_freq=1,
            is_double=False,
            huber_loss_delta=1.0,
        )
    assert action_space.shape is not None
    actor = ContinuousActorProbabilistic(
        preprocess_net=Net(**body), action_shape=action_space.shape, unbounded=True, conditioned_sigma=True
    )
    critics = [
        ContinuousCritic(preprocess_net=Net(action_shape=action_space.shape, concat=True, **body)) for _ in range(2)
    ]
    return SAC(
        policy=SACPolicy(actor=actor, action_space=action_space),
        policy_optim=optim,
        critic=critics[0],
        critic_optim=optim,
        critic2=critics[1],
        critic2_optim=optim,
        tau=settings.polyak_coef,
        gamma=settings.gamma,
        alpha=AutoAlpha(-float(np.prod(action_space.shape)), 0.0, optim),
    )


def build_trainer(spec: Spec, algorithm: Any, venv: Any, on_round: Any) -> Any:
    """The library's trainer over a collector; `on_round` is called before each collection."""
    settings = read_settings(spec)
    num_envs = spec.env.num_envs
    params: dict[str, Any] = {
        "max_epochs": 10**6,
        "epoch_num_steps": 10**9,
        "training_fn": on_round,
        "show_progress": False,
    }
    if isinstance(settings, OffPolicySettings):
        buffer = VectorReplayBuffer(settings.replay_size, num_envs)
        collector = Collector(algorithm, venv, buffer, exploration_noise=True)
        collector.reset()
        collector.collect(n_step=settings.start, random=True)
        return OffPolicyTrainer(
            algorithm,
            OffPolicyTrainerParams(
                **params,
                training_collector=collector,
                collection_step_num_env_steps=num_envs,
                batch_size=settings.batch,
                update_step_num_gradient_steps_per_sample=settings.steps_per_training / num_envs,
            ),
        )
    size = settings.horizon * num_envs
    return OnPolicyTrainer(
        algorithm,
        OnPolicyTrainerParams(
            **params,
            training_collector=Collector(algorithm, venv, VectorReplayBuffer(size, num_envs)),
            collection_step_num_env_steps=size,
            batch_size=settings.minibatch,
            update_step_num_repetitions=settings.epochs,
        ),
    )


def measure(job: Job) -> Measured:
    """Train until enough was measured."""
    counter, meter = StepCounter(), Meter(job)
    spec = build_spec(ROW_BY_NAME[job.row], job.quick, job.overrides)
    settings = read_settings(spec)

    def make() -> gym.Env[Any, Any]:
        # gymnasium's checker of every step is off, as it is in the lab
        return gym.make(spec.env.name, disable_env_checker=True)

    envs = TimedEnvs([make for _ in range(spec.env.num_envs)])
    if isinstance(settings, OffPolicySettings):
        algorithm = build_off_policy(settings, make())
    else:
        algorithm = build_on_policy(settings, make(), scales_return=spec.env.normalize_reward)
    update, update_seconds = algorithm.update, [0.0]

    def timed_update(*args: Any, **kwargs: Any) -> Any:
        start = time.perf_counter()
        result = update(*args, **kwargs)
        update_seconds[0] += time.perf_counter() - start
        return result

    def on_round(epoch: int, frame: int) -> None:
        if meter.end_round(frame, counter.opt_step, {"env": envs.seconds, "update": update_seconds[0]}):
            raise EnoughError

    algorithm.update = timed_update
    venv = VectorEnvNormObs(envs) if spec.env.normalize_obs else envs
    with suppress(EnoughError):
        build_trainer(spec, algorithm, venv, on_round).run()
    return meter.measured(counter.num_param)


if __name__ == "__main__":
    answer_with(measure)
