"""What Stable-Baselines3 and SBX share: envs, arguments, the loop with its log, and where its time goes."""

import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

import ale_py
import gymnasium as gym
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.logger import configure
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecFrameStack, VecNormalize, VecTransposeImage
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from bench.job import Job, Measured
from bench.meter import Meter
from bench.peers.settings import OffPolicySettings, OnPolicySettings
from slm_lab.spec.schema import Spec

gym.register_envs(ale_py)


class EnvTimer(VecEnvWrapper):
    """Takes the time of the envs' own steps."""

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)
        self.seconds = 0.0

    def reset(self) -> VecEnvObs:
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        start = time.perf_counter()
        result = self.venv.step_wait()
        self.seconds += time.perf_counter() - start
        return result


def build_options(
    settings: OnPolicySettings | OffPolicySettings,
    env: VecEnv,
    activations: Mapping[str, Any],
    optimizers: Mapping[str, Any],
) -> dict[str, Any]:
    """Arguments that both libraries' algorithms take, from the numbers of a spec."""
    policy: dict[str, Any] = {}
    if not settings.is_image:
        policy["activation_fn"] = activations[settings.activation]
    options = {
        "policy": "CnnPolicy" if settings.is_image else "MlpPolicy",
        "env": env,
        "policy_kwargs": policy,
        "gamma": settings.gamma,
        "learning_rate": settings.lr,
        "seed": 0,
    }
    if isinstance(settings, OffPolicySettings):
        policy["net_arch"] = list(settings.widths)
        return options | {
            "buffer_size": settings.replay_size,
            "learning_starts": settings.start,
            "batch_size": settings.batch,
            "tau": settings.polyak_coef,
            "train_freq": 1,
            "gradient_steps": settings.steps_per_training,
            "n_steps": settings.num_step_returns,
        }
    policy["optimizer_class"] = optimizers[settings.optimizer]
    if not settings.is_image:
        policy["net_arch"] = {"pi": list(settings.widths), "vf": list(settings.widths)}
    options |= {
        "n_steps": settings.horizon,
        "gae_lambda": settings.lam,
        "ent_coef": settings.entropy_coef,
        "vf_coef": settings.val_loss_coef,
        "max_grad_norm": settings.max_norm,
    }
    if settings.minibatch is None:
        return options
    return options | {
        "batch_size": settings.minibatch,
        "n_epochs": settings.epochs,
        "clip_range": settings.clip_eps,
    }


def build_env(spec: Spec) -> tuple[VecEnv, EnvTimer]:
    """The envs of a spec in one process, with the library's own wrappers, and their clock."""
    env = spec.env
    if env.name.startswith("ALE/"):
        # the lab's defaults: no sticky actions, an end at each lost life, rewards clipped to their sign
        name = env.name.removeprefix("ALE/").removesuffix("-v5") + "NoFrameskip-v4"
        timer = EnvTimer(make_atari_env(name, env.num_envs, seed=0))
        return VecTransposeImage(VecFrameStack(timer, 4)), timer
    # gymnasium's checker of every step is off, as it is in the lab
    timer = EnvTimer(make_vec_env(env.name, env.num_envs, seed=0, env_kwargs={"disable_env_checker": True}))
    if env.normalize_obs or env.normalize_reward:
        gamma = spec.agent.algorithm.gamma
        return VecNormalize(timer, norm_obs=env.normalize_obs, norm_reward=env.normalize_reward, gamma=gamma), timer
    return timer, timer


class Rounds(BaseCallback):
    """Tells the meter of each round: collecting, then learning."""

    def __init__(self, meter: Meter, timer: EnvTimer, opt_step: Callable[[], int]) -> None:
        super().__init__()
        self.meter = meter
        self.timer = timer
        self.opt_step = opt_step
        self.update_seconds = 0.0
        self.collected = 0.0
        self.is_enough = False

    def _on_rollout_end(self) -> None:
        self.collected = time.perf_counter()

    def _on_rollout_start(self) -> None:
        if self.collected:
            self.update_seconds += time.perf_counter() - self.collected
        phases = {"env": self.timer.seconds, "update": self.update_seconds}
        self.is_enough = self.meter.end_round(self.num_timesteps, self.opt_step(), phases)

    def _on_step(self) -> bool:
        return not self.is_enough


def train(
    model: BaseAlgorithm, timer: EnvTimer, job: Job, opt_step: Callable[[], int], num_param: Callable[[], int]
) -> Measured:
    """Train with a table on disk, as the lab does, until enough was measured."""
    meter = Meter(job)
    with tempfile.TemporaryDirectory() as folder:
        model.set_logger(configure(folder, ["csv"]))
        model.learn(10**9, callback=Rounds(meter, timer, opt_step))
    return meter.measured(num_param())
