"""The agent: an algorithm behind its normalisers, from arrays of the env to arrays of the env."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.action.distribution import build_family
from slm_lab.agent.algorithm.base import Act, Array, Carry, Context, Metrics
from slm_lab.agent.learn.gradient import ADVICE, GradientFaultError, Guard
from slm_lab.agent.memory.batch import Transition
from slm_lab.agent.net.parts import check_names
from slm_lab.agent.registry import ALGORITHMS
from slm_lab.env.make import EnvFacts
from slm_lab.env.normalize import ObsNormalizer, RewardScaler
from slm_lab.env.vec_env import Obs, Step
from slm_lab.lib.errors import DivergenceError, SpecError
from slm_lab.lib.runtime import derive_seed
from slm_lab.spec.schema import Spec

# Parts of the seed key that keep the random streams of a session apart.
_INIT, _ACT, _TRAIN = 101, 102, 103
# columns of a run's table on what normalises its observations and its rewards
NORM_COLUMNS = ("obs_norm_shift", "reward_norm_std")


class Agent:
    """Acts, observes and learns on arrays (N, ...)."""

    def __init__(
        self,
        spec: Spec,
        facts: EnvFacts,
        num_envs: int,
        seed_key: tuple[int, ...],
        device: torch.device,
    ) -> None:
        obs_space = facts.obs_space
        self.device = device
        self.facts = facts
        # images stay as small as they are, unless normalising makes them fractions
        is_small = obs_space.dtype == np.uint8 and not spec.env.normalize_obs
        self.obs_dtype = torch.uint8 if is_small else torch.float32
        raw_dtype = torch.from_numpy(np.empty(0, obs_space.dtype)).dtype
        check_names({"agent.net": spec.agent.net, "agent.critic_net": spec.agent.critic_net}, facts.parts)
        config = spec.agent.algorithm
        # initial weights come from torch's global generator; nothing after them does, but for dropout layers
        torch.manual_seed(derive_seed(*seed_key, _INIT))
        context = Context(
            obs_shape=obs_space.shape,
            raw_dtype=raw_dtype,
            obs_dtype=self.obs_dtype,
            encode=self.encode,
            frame_stack=facts.frame_stack,
            parts=facts.parts,
            family=build_family(facts.action_space, config.action_pdtype, config.actions),
            num_envs=num_envs,
            device=device,
            act_generator=torch.Generator(device).manual_seed(derive_seed(*seed_key, _ACT)),
            train_generator=torch.Generator(device).manual_seed(derive_seed(*seed_key, _TRAIN)),
            guard=Guard(device),
            is_compiled=spec.meta.compile is True,
        )
        self.context = context
        self.algorithm = ALGORITHMS[config.name].for_actions(context.family)(spec.agent, context)
        if config.action_policy == "boltzmann" and not context.family.is_discrete:
            raise SpecError("agent.algorithm.action_policy: boltzmann needs discrete actions; use default")
        env = spec.env
        self.obs_normalizer = ObsNormalizer(obs_space.shape, env.clip_obs) if env.normalize_obs else None
        self.clip_obs = env.clip_obs if not env.normalize_obs else None
        self.reward_scaler = RewardScaler(
            num_envs, config.gamma, env.reward_scale, env.normalize_reward, env.clip_reward
        )
        is_on = (env.normalize_obs, env.normalize_reward)
        self.norm_names = tuple(name for name, is_own in zip(NORM_COLUMNS, is_on, strict=True) if is_own)

    def encode(self, obs: Obs) -> Tensor:
        """Raw observations as the nets see them."""
        if self.obs_normalizer is not None:
            obs = self.obs_normalizer(obs)
        elif self.clip_obs is not None:
            obs = torch.as_tensor(obs).clamp(-self.clip_obs, self.clip_obs)
        return torch.as_tensor(obs).to(self.device, self.obs_dtype)

    def init_carry(self, num_envs: int) -> Carry:
        """Hidden state at the start of episodes."""
        return self.algorithm.init_carry(num_envs)

    def act(self, obs: Obs, carry: Carry = None, explore: bool = False) -> Act:
        """Actions for a batch of raw observations; deterministic unless asked to explore."""
        return self.algorithm.act(self.encode(obs), carry, explore)

    def observe(self, obs: Obs, act: Act, step: Step) -> None:
        """Remember a step; on-policy memories keep the policy's own view of the observation, a replay the env's."""
        if self.obs_normalizer is not None:
            # what is acted on next is part of the statistics by then, so that no few samples make it look extreme
            if not self.obs_normalizer.stats.count:
                self.obs_normalizer.update(obs)
            self.obs_normalizer.update(step.obs)
        is_raw = self.algorithm.stores_raw_obs
        self.algorithm.observe(
            Transition(
                obs=torch.as_tensor(obs) if is_raw else act.obs,
                action=act.sample,
                reward=self.reward_scaler(step.reward, step.done),
                terminated=step.terminated,
                truncated=step.truncated,
                next_obs=torch.as_tensor(step.next_obs) if is_raw else self.encode(step.next_obs),
                extra=act.extra,
                next_carry=act.carry,
            )
        )

    def measure_norms(self) -> Metrics:
        """Where the normalisers stand, for a row of the table: how far they moved since the row before."""
        metrics: Metrics = {}
        obs_column, reward_column = NORM_COLUMNS
        if self.obs_normalizer is not None:
            metrics[obs_column] = self.obs_normalizer.measure_shift()
        if self.reward_scaler.normalize:
            metrics[reward_column] = self.reward_scaler.std
        return metrics

    def update(self, frame: int) -> Metrics | None:
        """Train if training is due; a number that is not finite ends it with the weights of before that step."""
        try:
            try:
                return self.algorithm.update(frame)
            finally:
                # what a GPU has not told yet is the cause of whatever else was noticed
                self.context.guard.check()
        except GradientFaultError as fault:
            fault.frame = frame
            raise

    def check_weights(self) -> None:
        """Raise where a weight is not finite, which a step that is too long makes of a finite gradient."""
        for role, optimizer in self.algorithm.optimizers.items():
            if not bool(optimizer.flat.data.isfinite().all()):
                raise DivergenceError(f"weights of {role} are not finite; {ADVICE}")

    def model_state(self) -> dict[str, Any]:
        """What acting needs: weights and normalisers."""
        return {
            "modules": {name: module.state_dict() for name, module in self.algorithm.modules.items()},
            "obs_normalizer": self.obs_normalizer.stats.state_dict() if self.obs_normalizer else None,
        }

    def load_model_state(self, state: dict[str, Any]) -> None:
        """Take weights and normalisers for acting."""
        self.algorithm.load_weights(state["modules"])
        if self.obs_normalizer is not None:
            self.obs_normalizer.stats.load_state_dict(state["obs_normalizer"])

    def state_dict(self) -> dict[str, Any]:
        """Everything a continuation needs."""
        return {
            "algorithm": self.algorithm.state_dict(),
            "obs_normalizer": self.obs_normalizer.state_dict() if self.obs_normalizer else None,
            "reward_scaler": self.reward_scaler.state_dict(),
            "act_generator": self.context.act_generator.get_state(),
            "train_generator": self.context.train_generator.get_state(),
            "torch_generator": torch.get_rng_state(),
            "cuda_generator": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a saved state."""
        self.algorithm.load_state_dict(state["algorithm"])
        if self.obs_normalizer is not None:
            self.obs_normalizer.load_state_dict(state["obs_normalizer"])
        self.reward_scaler.load_state_dict(state["reward_scaler"])
        self.context.act_generator.set_state(state["act_generator"])
        self.context.train_generator.set_state(state["train_generator"])
        torch.set_rng_state(state["torch_generator"])
        if state["cuda_generator"] is not None and self.device.type == "cuda":
            torch.cuda.set_rng_state(state["cuda_generator"], self.device)


def reset_rows(carry: Carry, done: Array) -> Carry:
    """Clear the hidden state (N, S) of the envs whose episode ended."""
    if carry is None or not done.any():
        return carry
    # filled rather than multiplied by 0, which would keep a NaN
    return carry.masked_fill(torch.as_tensor(done, device=carry.device).unsqueeze(-1), 0.0)
