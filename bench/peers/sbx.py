"""SBX, Stable-Baselines3's interface on compiled JAX, set to a row's work."""

from collections.abc import Callable

import flax.linen as nn
import jax
import optax
from sbx import DQN, PPO, SAC
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from bench.job import Job, Measured, answer_with
from bench.peers.sb3_loop import build_env, build_options, train
from bench.peers.settings import OffPolicySettings, read_settings
from bench.rows import ROW_BY_NAME, build_spec
from slm_lab.spec.schema import Spec

ACTIVATIONS = {"tanh": nn.tanh, "relu": nn.relu}
OPTIMIZERS = {"Adam": optax.adam, "AdamW": optax.adamw}


def build_model(spec: Spec, env: VecEnv) -> BaseAlgorithm:
    """The library's own algorithm with the numbers of a spec."""
    settings = read_settings(spec)
    options = build_options(settings, env, ACTIVATIONS, OPTIMIZERS)
    if isinstance(settings, OffPolicySettings):
        if settings.is_soft:
            return SAC(**options)
        return DQN(**options, target_update_interval=1, **settings.exploration)
    assert settings.minibatch is not None, "SBX has no A2C"
    return PPO(**options)


def count_param(model: BaseAlgorithm) -> int:
    """Numbers that are trained."""
    states = [getattr(model.policy, name, None) for name in ("actor_state", "vf_state", "qf_state")]
    states.append(getattr(model, "ent_coef_state", None))
    return sum(leaf.size for state in states if state is not None for leaf in jax.tree_util.tree_leaves(state.params))


def steps_per_count(spec: Spec) -> Callable[[int], int]:
    """From the library's own count to gradient steps: PPO counts epochs."""
    settings = read_settings(spec)
    if isinstance(settings, OffPolicySettings) or settings.minibatch is None:
        return lambda count: count
    per_epoch = settings.horizon * spec.env.num_envs // settings.minibatch
    return lambda count: count * per_epoch


def measure(job: Job) -> Measured:
    """Train until enough was measured."""
    spec = build_spec(ROW_BY_NAME[job.row], job.quick, job.overrides)
    env, timer = build_env(spec)
    model = build_model(spec, env)
    to_steps = steps_per_count(spec)
    return train(model, timer, job, lambda: to_steps(model._n_updates), lambda: count_param(model))


if __name__ == "__main__":
    answer_with(measure)
