"""Whether an exported agent acts as the lab does: the same observations through both."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm_lab.agent.action.distribution import ActionFamily, Bernoulli, Categorical, MultiCategorical, Normal
from slm_lab.agent.action.mixed import Mixed
from slm_lab.deploy.graph import MASK, NEXT_STATE, STATE, Graph, rebuild
from slm_lab.deploy.policy import list_leaves
from slm_lab.lib.array import Array
from slm_lab.lib.errors import LabError

# inputs by name -> outputs in order
Run = Callable[[dict[str, Array]], list[Array]]
NUM_OBS = 1000
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Parity:
    """How far an exported agent is from the lab."""

    num: int
    # of numbers in actions and hidden states, relative where they are larger than 1
    max_difference: float
    # choices that differ from the lab's, between options that are equally good
    num_tie: int
    # choices that differ from the lab's where one option is clearly better
    num_wrong: int

    @property
    def is_equal(self) -> bool:
        """Whether it is near enough to be the same agent."""
        return self.num_wrong == 0 and self.max_difference <= TOLERANCE

    def describe(self, runtime: str) -> str:
        """The result in one line."""
        ties = f", {self.num_tie} other choice(s) among equals" if self.num_tie else ""
        return f"{runtime}: {self.num:,} observations, largest difference {self.max_difference:.1e}{ties}"


def compare(graph: Graph, run: Run, num: int = NUM_OBS, seed: int = 0) -> Parity:
    """Compare actions and hidden states of a runtime with those of the lab, one batch and single observations."""
    inputs = graph.sample(num, seed)
    expected = act_in_lab(graph, inputs)
    outputs = run(inputs)
    # a batch of one is the usual case, and a runtime may compute it differently
    singles = [run({name: value[index : index + 1] for name, value in inputs.items()}) for index in range(8)]
    difference, gaps = 0.0, find_gaps(graph, inputs)
    is_tie, is_wrong = np.zeros(num, bool), np.zeros(num, bool)
    for place, (name, lab) in enumerate(expected.items()):
        found = outputs[place]
        if found.shape != lab.shape or found.dtype != lab.dtype:
            raise LabError(
                f"{name} is {found.dtype} {found.shape} in the exported file, in the lab {lab.dtype} {lab.shape}"
            )
        for got, want in ((found, lab), (np.concatenate([one[place] for one in singles]), lab[:8])):
            if lab.dtype.kind == "f":
                difference = max(difference, _measure(got, want))
                continue
            rows = np.flatnonzero((got != want).reshape(len(want), -1).any(1))
            is_near = gaps[place][rows] <= TOLERANCE
            is_tie[rows[is_near]], is_wrong[rows[~is_near]] = True, True
    return Parity(num, difference, int((is_tie & ~is_wrong).sum()), int(is_wrong.sum()))


def _measure(got: Array, want: Array) -> float:
    if not np.array_equal(np.isfinite(got), np.isfinite(want)):
        return float("inf")
    scale = np.maximum(1.0, np.abs(np.where(np.isfinite(want), want, 0.0)))
    with np.errstate(invalid="ignore"):
        gap = np.where(got == want, 0.0, np.abs(got - want)) / scale
    return float(gap.max(initial=0.0))


def check_parity(graph: Graph, run: Run, runtime: str) -> str:
    """One line that says how equal an exported agent is; refused where it acts differently."""
    parity = compare(graph, run)
    line = parity.describe(runtime)
    if not parity.is_equal:
        more = f", {parity.num_wrong} other choices" if parity.num_wrong else ""
        raise LabError(
            f"the exported agent does not act as the lab does, so nothing was written ({line}{more}; at most "
            f"{TOLERANCE:.0e} is accepted); export it as .slm"
        )
    return line


def act_in_lab(graph: Graph, inputs: dict[str, Array]) -> dict[str, Array]:
    """Actions, and the next hidden state, as the lab computes them: by name."""
    trained = graph.trained
    obs, mask, state = split_inputs(graph, inputs)
    num = len(next(iter(inputs.values())))
    start = trained.init_state(num) if state is None else state
    action, next_state = trained.act(obs, mask=mask, state=start)
    named = dict(zip((name for name in graph.output_names if name != NEXT_STATE), list_leaves(action), strict=True))
    return named if state is None else named | {NEXT_STATE: next_state}


def split_inputs(graph: Graph, inputs: dict[str, Array]) -> tuple[Any, Array | None, Array | None]:
    """The observation in its structure, the mask and the hidden state of named inputs."""
    leaves: list[Any] = [value for name, value in inputs.items() if name not in (MASK, STATE)]
    return rebuild(graph.space, leaves), inputs.get(MASK), inputs.get(STATE)


def find_gaps(graph: Graph, inputs: dict[str, Array]) -> list[Array]:
    """How near (N,) each row was to another choice, for each part of the action; infinite where a part has none."""
    leaves: list[Any] = [torch.from_numpy(value) for value in inputs.values()]
    obs, rest = rebuild(graph.space, leaves), leaves
    mask = rest.pop(0) if graph.policy.mask_size else None
    policy = graph.policy
    with torch.inference_mode():
        param, _ = policy.calc_param(obs, mask, rest[0] if rest else None)
        if isinstance(policy.family, Mixed):
            triples = zip(policy.family._parts(param), policy.to_env.parts, strict=True)
            gaps = [_calc_gap(family, one, to_env) for (family, one), to_env in triples]
        else:
            # one choice among all combinations may stand for several parts
            gaps = [_calc_gap(policy.family, param, policy.to_env)] * len(graph.output_names)
        return [gap.double().numpy() for gap in gaps]


def _calc_gap(family: ActionFamily, param: Tensor, to_env: Any) -> Tensor:
    if isinstance(family, Categorical):
        return _between_best(param)
    if isinstance(family, MultiCategorical):
        return torch.stack([_between_best(part) for part in param.split(family.num_choices, -1)]).amin(0)
    if isinstance(family, Bernoulli):
        return param.abs().amin(-1)
    assert isinstance(family, Normal)
    if not to_env.is_whole:
        return torch.full((len(param),), torch.inf)
    # numbers that are rounded: the distance from half-way between two
    scaled = to_env.scale_up(family.to_env(family.mode(param))).flatten(1)
    return (((scaled - scaled.floor()) - 0.5).abs() / scaled.abs().clamp(min=1)).amin(-1)


def _between_best(logits: Tensor) -> Tensor:
    if logits.shape[-1] == 1:
        return torch.full((len(logits),), torch.inf)
    best = logits.topk(2, -1).values
    return best[..., 0] - best[..., 1]
