"""Stable-Baselines3, set to a row's work."""

import torch
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from bench.job import Job, Measured, answer_with
from bench.peers.counting import StepCounter
from bench.peers.sb3_loop import build_env, build_options, train
from bench.peers.settings import OffPolicySettings, read_settings
from bench.rows import ROW_BY_NAME, build_spec
from slm_lab.spec.schema import Spec

ACTIVATIONS = {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}
OPTIMIZERS = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}


def build_model(spec: Spec, env: VecEnv) -> BaseAlgorithm:
    """The library's own algorithm with the numbers of a spec."""
    settings = read_settings(spec)
    options = {**build_options(settings, env, ACTIVATIONS, OPTIMIZERS), "device": "cpu"}
    if isinstance(settings, OffPolicySettings):
        if settings.is_soft:
            return SAC(**options)
        return DQN(**options, target_update_interval=1, max_grad_norm=settings.max_norm, **settings.exploration)
    if settings.minibatch is None:
        return A2C(**options, use_rms_prop=False, normalize_advantage=True)
    return PPO(**options, clip_range_vf=settings.clip_eps if settings.clips_value else None)


def measure(job: Job) -> Measured:
    """Train until enough was measured."""
    counter = StepCounter()
    spec = build_spec(ROW_BY_NAME[job.row], job.quick, job.overrides)
    env, timer = build_env(spec)
    return train(build_model(spec, env), timer, job, lambda: counter.opt_step, lambda: counter.num_param)


if __name__ == "__main__":
    answer_with(measure)
