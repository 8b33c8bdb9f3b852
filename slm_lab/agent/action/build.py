"""Builds the family of distributions that a spec asks for."""

import math

from gymnasium import spaces

from slm_lab.agent.action.distribution import (
    ActionFamily,
    Bernoulli,
    Categorical,
    JointCategorical,
    MultiCategorical,
    Normal,
    SquashedNormal,
    TanhNormal,
)
from slm_lab.agent.action.mixed import Mixed
from slm_lab.env.gym_types import GymSpace
from slm_lab.env.hybrid import HybridSpace
from slm_lab.env.layout import in_one_line
from slm_lab.lib.errors import SpecError
from slm_lab.spec.algorithm import Actions

# combinations of several choices that one output layer may value
MAX_JOINT = 4096


def build_family(space: GymSpace, pdtype: str, actions: Actions = "any") -> ActionFamily:
    """The family a spec asks for, checked against the action space; `actions` is what its algorithm can take."""
    choices: list[ActionFamily]
    is_joint = actions != "any"
    if isinstance(space, HybridSpace):
        return _build_mixed(space, pdtype, actions)
    if actions == "continuous" and not isinstance(space, spaces.Box):
        raise SpecError(
            f"agent.algorithm.name: the algorithm needs continuous actions, this env's are {in_one_line(space)}; "
            "use PPO or DoubleDQN, or BC for recorded steps"
        )
    if is_joint and isinstance(space, (spaces.MultiDiscrete, spaces.MultiBinary)):
        choices = [_build_joint(space)]
    elif isinstance(space, spaces.Discrete):
        choices = [Categorical(int(space.n))]
    elif isinstance(space, spaces.MultiDiscrete):
        choices = [MultiCategorical([int(count) for count in space.nvec.flatten()])]
    elif isinstance(space, spaces.MultiBinary):
        choices = [Bernoulli(math.prod(space.shape))]
    elif isinstance(space, spaces.Box):
        size = math.prod(space.shape)
        choices = [SquashedNormal(size)] if actions in ("squashed", "continuous") else [Normal(size), TanhNormal(size)]
    else:
        raise SpecError(f"env.name: actions of {type(space).__name__} are not supported")
    if pdtype == "default":
        return choices[0]
    for family in choices:
        if family.name == pdtype:
            return family
    shown = in_one_line(space)
    if is_joint and choices[0].name == JointCategorical.name:
        raise SpecError(f"agent.algorithm.action_pdtype: {pdtype} does not fit actions of {shown}; use default")
    names = " or ".join(family.name for family in choices)
    raise SpecError(f"agent.algorithm.action_pdtype: {pdtype} does not fit actions of {shown}; use default or {names}")


def _build_joint(space: spaces.MultiDiscrete | spaces.MultiBinary) -> JointCategorical:
    if isinstance(space, spaces.MultiBinary):
        counts = [2] * math.prod(space.shape)
    else:
        counts = [int(count) for count in space.nvec.flatten()]
    if math.prod(counts) > MAX_JOINT:
        raise SpecError(
            f"env.name: actions of {in_one_line(space)} have {math.prod(counts):,} combinations, more than the "
            f"{MAX_JOINT:,} an algorithm that values each of them can take; use PPO or ActorCritic"
        )
    return JointCategorical(counts)


def _build_mixed(space: HybridSpace, pdtype: str, actions: Actions) -> Mixed:
    """A family for each part of hybrid actions; a distribution that is named is that of the Box parts."""
    if actions != "any":
        raise SpecError(
            f"agent.algorithm.name: it takes no hybrid actions, and this env's are {in_one_line(space)}; use PPO, "
            "ActorCritic or Reinforce"
        )
    if pdtype not in ("default", "Normal", "TanhNormal"):
        raise SpecError(
            f"agent.algorithm.action_pdtype: {pdtype} does not fit actions of {in_one_line(space)}; use default, or "
            "Normal or TanhNormal for the Box parts"
        )
    return Mixed([build_family(leaf, pdtype if isinstance(leaf, spaces.Box) else "default") for leaf in space.leaves])
