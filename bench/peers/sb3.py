"""Stable-Baselines3, set to a row's work."""

from typing import Any

import torch
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from bench.job import Job, Measured, answer_with
from bench.peers.counting import StepCounter
from bench.peers.sb3_loop import build_env, train
from bench.peers.settings import OffPolicySettings, read_settings
from bench.rows import ROW_BY_NAME, build_spec
from slm_lab.spec.schema import Spec

ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}
OPTIMIZERS = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}


def build_model(spec: Spec, env: VecEnv) -> BaseAlgorithm:
    """The library's own algorithm with the numbers of a spec."""
    settings = read_settings(spec)
    common: dict[str, Any] = {"gamma": settings.gamma, "learning_rate": settings.lr, "seed": 0, "device": "cpu"}
    if isinstance(settings, OffPolicySettings):
        return _build_off_policy(settings, env, common)
    policy: dict[str, Any] = {"optimizer_class": OPTIMIZERS[settings.optimizer]}
    if not settings.is_image:
        policy["net_arch"] = {"pi": list(settings.widths), "vf": list(settings.widths)}
        policy["activation_fn"] = ACTIVATIONS[settings.activation]
    common |= {
        "policy": "CnnPolicy" if settings.is_image else "MlpPolicy",
        "env": env,
        "policy_kwargs": policy,
        "n_steps": settings.horizon,
        "gae_lambda": settings.lam,
        "ent_coef": settings.entropy_coef,
        "vf_coef": settings.val_loss_coef,
        "max_grad_norm": settings.max_norm,
    }
    if settings.minibatch is None:
        return A2C(**common, use_rms_prop=False, normalize_advantage=True)
    return PPO(
        **common,
        batch_size=settings.minibatch,
        n_epochs=settings.epochs,
        clip_range=settings.clip_eps,
        clip_range_vf=settings.clip_eps if settings.clips_value else None,
    )


def _build_off_policy(settings: OffPolicySettings, env: VecEnv, common: dict[str, Any]) -> BaseAlgorithm:
    common |= {
        "policy": "MlpPolicy",
        "env": env,
        "policy_kwargs": {"net_arch": list(settings.widths), "activation_fn": ACTIVATIONS[settings.activation]},
        "buffer_size": settings.replay_size,
        "learning_starts": settings.start,
        "batch_size": settings.batch,
        "tau": settings.polyak_coef,
        "train_freq": 1,
        "gradient_steps": settings.steps_per_training,
        "n_steps": settings.num_step_returns,
    }
    if settings.is_soft:
        return SAC(**common)
    return DQN(**common, target_update_interval=1, max_grad_norm=settings.max_norm, **settings.exploration)


def measure(job: Job) -> Measured:
    """Train until enough was measured."""
    counter = StepCounter()
    spec = build_spec(ROW_BY_NAME[job.row], job.quick, job.overrides)
    env, timer = build_env(spec)
    return train(build_model(spec, env), timer, job, lambda: counter.opt_step, lambda: counter.num_param)


if __name__ == "__main__":
    answer_with(measure)
