"""The agent: an algorithm behind its normalisers, from arrays of the env to arrays of the env."""

import numpy as np
import torch

from slm_lab.agent.action.build import build_family
from slm_lab.agent.action.mask import ActionMask
from slm_lab.agent.action.sde import use_state_noise
from slm_lab.agent.algorithm.base import Act, Carry, Context, Metrics
from slm_lab.agent.learn.gradient import ADVICE, GradientFaultError, Guard
from slm_lab.agent.memory.batch import Transition
from slm_lab.agent.net.model import use_bf16, use_mask
from slm_lab.agent.net.parts import check_names
from slm_lab.agent.registry import ALGORITHMS
from slm_lab.env.goal import build_goal
from slm_lab.env.make import EnvFacts
from slm_lab.env.normalize import MaskedEncoder, ObsEncoder, RewardScaler
from slm_lab.env.vec_env import Obs, Step
from slm_lab.lib.array import Array
from slm_lab.lib.data import State
from slm_lab.lib.device import as_tensor, upload
from slm_lab.lib.errors import CheckpointError, DivergenceError, SpecError
from slm_lab.lib.runtime import derive_seed
from slm_lab.spec.memory import HindsightReplaySpec
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
        only_acts: bool = False,
    ) -> None:
        obs_space = facts.obs_space
        self.device = device
        self.facts = facts
        # images stay as small as they are, unless normalising makes them fractions
        is_small = obs_space.dtype == np.uint8 and len(obs_space.shape) > 1 and not spec.env.normalize_obs
        obs_dtype = torch.uint8 if is_small else torch.float32
        encoding = (spec.env.normalize_obs, spec.env.clip_obs, obs_dtype, device)
        mask = facts.mask
        self.encode = (
            ObsEncoder(obs_space.shape, *encoding) if mask is None else MaskedEncoder((mask.start,), *encoding)
        )
        raw_dtype = torch.from_numpy(np.empty(0, obs_space.dtype)).dtype
        check_names({"agent.net": spec.agent.net, "agent.critic_net": spec.agent.critic_net}, facts.parts)
        config = spec.agent.algorithm
        family = build_family(facts.action_space, config.action_pdtype, config.actions)
        family = family if config.state_noise is None else use_state_noise(family)
        family.is_masked = mask is not None
        has_goal = isinstance(spec.agent.memory, HindsightReplaySpec)
        env, algorithm = spec.env, ALGORITHMS[config.name].for_actions(family)
        scaling = (env.reward_scale, env.normalize_reward, env.clip_reward)
        self.reward_scaler = RewardScaler(num_envs, config.gamma, *scaling, at_sampling=algorithm.stores_raw)
        # initial weights come from torch's global generator; nothing after them does, but for dropout layers
        torch.manual_seed(derive_seed(*seed_key, _INIT))
        context = Context(
            obs_shape=obs_space.shape,
            raw_dtype=raw_dtype,
            obs_dtype=obs_dtype,
            encode=self.encode,
            finish_reward=self.reward_scaler.finish,
            frame_stack=facts.frame_stack,
            parts=facts.parts,
            family=family,
            num_envs=num_envs,
            device=device,
            act_generator=torch.Generator(device).manual_seed(derive_seed(*seed_key, _ACT)),
            train_generator=torch.Generator(device).manual_seed(derive_seed(*seed_key, _TRAIN)),
            guard=Guard(device),
            is_compiled=spec.meta.compile is True,
            mask=None if mask is None else ActionMask(family, mask.start),
            only_acts=only_acts,
            goal=build_goal(spec.env, facts) if has_goal and not only_acts else None,
        )
        self.context = context
        self.algorithm = algorithm(spec.agent, context)
        if context.mask is not None:
            for module in self.algorithm.modules.values():
                use_mask(module, context.mask)
        if spec.meta.precision == "bf16":
            for module in self.algorithm.modules.values():
                use_bf16(module)
        context.guard.count = lambda: self.algorithm.opt_step
        if config.action_policy == "boltzmann" and not context.family.is_discrete:
            raise SpecError("agent.algorithm.action_policy: boltzmann needs discrete actions; use default")
        is_on = (env.normalize_obs, env.normalize_reward)
        self.norm_names = tuple(name for name, is_own in zip(NORM_COLUMNS, is_on, strict=True) if is_own)

    def init_carry(self, num_envs: int) -> Carry:
        """Hidden state at the start of episodes."""
        return self.algorithm.init_carry(num_envs)

    def act(self, obs: Obs, carry: Carry = None, explore: bool = False) -> Act:
        """Actions for a batch of raw observations; deterministic unless asked to explore."""
        return self.algorithm.act(self.encode(obs), carry, explore)

    def observe(self, obs: Obs, act: Act, step: Step) -> None:
        """Remember a step; on-policy memories keep the policy's own view of the observation, a replay the env's."""
        stats = self.encode.stats
        if stats is not None:
            # the statistics include what is acted on next; beside the first few samples alone it could look extreme
            if not stats.count:
                stats.update(obs)
            stats.update(step.obs)
        reward = self.reward_scaler(step.reward, step.terminated | step.truncated)
        self.algorithm.observe(
            Transition(
                obs=as_tensor(obs) if self.algorithm.stores_raw else act.obs,
                action=act.sample,
                reward=torch.from_numpy(reward.astype(np.float32)),
                terminated=torch.from_numpy(step.terminated),
                truncated=torch.from_numpy(step.truncated),
                next_obs=as_tensor(step.next_obs),
                extra=act.extra,
                next_carry=act.carry,
            )
        )

    def break_off(self, obs: Obs, carry: Carry) -> None:
        """End the episodes under way at these observations, as by a time limit: the next step is of other ones."""
        self.reward_scaler.ret[:] = 0
        self.algorithm.break_off(self.encode(obs), carry)

    def measure_norms(self) -> Metrics:
        """Where the normalisers stand, for a row of the table: how far they moved since the row before."""
        metrics: Metrics = {}
        obs_column, reward_column = NORM_COLUMNS
        if self.encode.stats is not None:
            metrics[obs_column] = self.encode.measure_shift()
        if self.reward_scaler.normalize:
            metrics[reward_column] = self.reward_scaler.std
        return metrics

    def update(self, frame: int) -> Metrics | None:
        """Train if training is due; a number that is not finite ends it with the weights of before that step."""
        try:
            try:
                return self.algorithm.update(frame)
            finally:
                # what a GPU has not reported yet is the cause of whatever else was noticed
                if self.context.guard.calls:
                    self.context.guard.check()
        except GradientFaultError as fault:
            fault.frame = frame
            if fault.opt_step is not None:
                # steps behind the bad one were refused too
                self.algorithm.opt_step = fault.opt_step
            raise

    def check_weights(self) -> None:
        """Raise where a weight is not finite, which a step that is too long makes of a finite gradient."""
        for role, optimizer in self.algorithm.optimizers.items():
            if not bool(optimizer.flat.data.isfinite().all()):
                raise DivergenceError(f"weights of {role} are not finite; {ADVICE}")

    def model_state(self) -> State:
        """What acting needs: weights and normalisers."""
        return {
            "modules": {name: module.state_dict() for name, module in self.algorithm.modules.items()},
            "obs_normalizer": None if self.encode.stats is None else self.encode.stats.state_dict(),
        }

    def load_model_state(self, state: State) -> None:
        """Take weights and normalisers for acting."""
        self.algorithm.load_weights(state["modules"])
        if self.encode.stats is not None:
            self.encode.stats.load_state_dict(state["obs_normalizer"])

    def state_dict(self) -> State:
        """Everything a continuation needs."""
        return {
            "device": self.device.type,
            "algorithm": self.algorithm.state_dict(),
            "obs_normalizer": self.encode.state_dict(),
            "reward_scaler": self.reward_scaler.state_dict(),
            "act_generator": self.context.act_generator.get_state(),
            "train_generator": self.context.train_generator.get_state(),
            "torch_generator": torch.get_rng_state(),
            "cuda_generator": torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None,
        }

    def load_state_dict(self, state: State) -> None:
        """Continue from a saved state."""
        # generators of a CPU and of a GPU draw other numbers; checkpoints of before this was noted are taken as ours
        if (device := state.get("device", self.device.type)) != self.device.type:
            raise CheckpointError(
                f"it was trained on {device}, this is {self.device.type}: resume it there, or play it with enjoy"
            )
        self.algorithm.load_state_dict(state["algorithm"])
        self.encode.load_state_dict(state["obs_normalizer"])
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
    return carry.masked_fill(upload(torch.as_tensor(done), carry.device).unsqueeze(-1), 0.0)
