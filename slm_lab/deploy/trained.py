"""A trained policy behind one call: observations of the env in, its actions out."""

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.agent import Agent, reset_rows
from slm_lab.agent.algorithm.base import Carry
from slm_lab.deploy.policy import Policy
from slm_lab.env.hybrid import HybridSpace
from slm_lab.env.layout import flatten_obs
from slm_lab.env.mask import MASK, read_masks
from slm_lab.env.vec_env import ActionMap
from slm_lab.lib.array import Array
from slm_lab.lib.data import Document
from slm_lab.lib.errors import LabError
from slm_lab.spec.schema import Spec


class TrainedAgent:
    """A trained policy: observations in, actions of the env out.

    `observation_space` and `action_space` are those of the env it was trained in, `spec` is that of the run, and
    `contract` what an exported file says about the agent; None for an agent of a run folder.
    """

    def __init__(self, agent: Agent, spec: Spec, contract: Document | None = None) -> None:
        self.agent = agent
        self.spec = spec
        self.contract = contract
        facts = agent.facts
        self.observation_space = facts.obs_space if facts.source_space is None else facts.source_space
        space = facts.action_space
        self.action_space = space.source if isinstance(space, HybridSpace) else space
        self._action_map = ActionMap(space)
        # observations that nets read as they are
        self._is_plain = facts.source_space is None
        self._shape, self._dtype = facts.obs_space.shape, facts.obs_space.dtype
        # what decays while training, such as epsilon, is at its last value
        agent.algorithm.frame = spec.env.max_frame
        # hidden state of a recurrent net; None at the start of episodes
        self._carry: Carry = None
        start = agent.init_carry(1)
        self._state_size = 0 if start is None else start.shape[1]

    @cached_property
    def policy(self) -> Policy:
        """The deterministic policy as a plain `nn.Module`, from raw observations (B, ...) to actions of the env.

        With a recurrent net it is called with `state=` (B, S) too, and returns the next one beside the action; an agent
        trained with masks is called with `mask=`.
        """
        if "net" not in vars(self.agent.algorithm):
            raise LabError(f"agent.algorithm.name: {self.spec.agent.algorithm.name} has no net, so it has no policy")
        return Policy(self.agent)

    def reset(self, done: Array | None = None) -> None:
        """Clear the hidden state of a recurrent net, which `act` keeps between calls; other nets have none.

        Call it at the start of an episode; in a batch with `done` (N,), to clear it for the envs that ended only.
        """
        self._carry = None if done is None else reset_rows(self._carry, np.asarray(done, bool))

    def init_state(self, num: int = 1) -> Array:
        """The hidden state (N, S) at the start of `num` episodes, for `act(..., state=...)`; S is 0 without one."""
        return np.zeros((num, self._state_size), np.float32)

    def act(self, obs: Any, deterministic: bool = True, mask: Any = None, *, state: Array | None = None) -> Any:
        """The action for one observation, or actions (N, ...) for a batch, as the env's own `step` takes them.

        Observations are as the env returns them, Dict and Tuple included; a batch is what a gymnasium vector env
        returns. With `deterministic=False` it samples from the policy as at the end of training. `mask` is the
        `action_mask` of the env's `info`, if it gives one there; a batch has a row for each observation.

        The agent keeps the hidden state of a recurrent net between calls, until `reset`. With `state` (N, S), from
        `init_state` at the start of an episode, it keeps nothing and returns the pair of actions and next state.
        """
        rows, is_batch = self.read(obs, mask)
        num = len(rows)
        if state is not None:
            actions, next_state = self.act_rows(rows, state, deterministic)
            return self.finish(actions, is_batch), next_state
        carry = self._carry
        if carry is None:
            carry = self.agent.init_carry(num)
        elif len(carry) != num:
            raise LabError(f"the hidden state is that of {len(carry)} env(s), not of {num}; call reset() in between")
        act = self.agent.act(rows, carry, explore=not deterministic)
        self._carry = act.carry
        return self.finish(self._to_env(act.action), is_batch)

    def act_rows(self, rows: Array, state: Array, deterministic: bool = True) -> tuple[Any, Array]:
        """Actions (N, ...) of the env for what `read` returned, and the next hidden state."""
        act = self.agent.act(rows, self._read_state(state, len(rows)), explore=not deterministic)
        return self._to_env(act.action), state if act.carry is None else act.carry.numpy(force=True)

    def read(self, obs: Any, mask: Any) -> tuple[Array, bool]:
        """Observations as the agent was trained on them (N, ...), and whether they are a batch."""
        facts = self.agent.facts
        if self._is_plain and mask is None:
            array = np.asarray(obs, self._dtype)
            if array.shape == self._shape:
                return array[None], False
            if array.shape[1:] == self._shape:
                return array, True
        rows, is_batch = flatten_obs(self.observation_space, obs)
        if mask is None and isinstance(obs, dict):
            mask = obs.get(MASK)
        is_masked = facts.mask is not None
        if is_masked != (mask is not None):
            hint = f"with masks; give it mask=info['{MASK}']" if is_masked else "without masks; leave it out"
            raise LabError(f"mask: the agent was trained {hint}")
        if is_masked:
            rows = np.append(rows, read_masks(mask if is_batch else [mask], facts.action_space, len(rows)), 1)
        return rows.reshape(len(rows), *self._shape).astype(self._dtype), is_batch

    def _read_state(self, state: Array, num: int) -> Carry:
        array = np.asarray(state, np.float32)
        if array.shape != (num, self._state_size):
            raise LabError(
                f"state has the shape {array.shape}; expected {(num, self._state_size)}: init_state({num}) at the "
                "start of episodes, then what act returns"
            )
        if not self._state_size:
            return None
        return torch.tensor(array, device=self.agent.device)

    def _to_env(self, action: Tensor) -> Any:
        """Actions of the policy as a batch of the env's."""
        mapped = self._action_map(action.numpy(force=True))
        space = self.agent.facts.action_space
        return space.unflatten(mapped) if isinstance(space, HybridSpace) else mapped

    def finish(self, actions: Any, is_batch: bool) -> Any:
        """A batch of actions, or its only one as the env takes it."""
        return actions if is_batch else _take_first(actions)


def _take_first(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _take_first(part) for key, part in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_take_first(part) for part in tree)
    first = tree[0]
    return first.item() if first.ndim == 0 else first
