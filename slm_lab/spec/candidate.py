"""A spec with searched values in it."""

from copy import deepcopy

from slm_lab.lib.data import ReadOnlyDocument
from slm_lab.lib.errors import SpecError
from slm_lab.spec.loading import dump_spec, parse_spec
from slm_lab.spec.problem import MAX_PROBLEMS
from slm_lab.spec.reader import printable
from slm_lab.spec.roles import nested_path
from slm_lab.spec.schema import Spec
from slm_lab.spec.search_space import read_dimensions

# what makes another agent or another task of it
SEARCHED = ("agent.", "env.")


def apply_values(spec: Spec, values: ReadOnlyDocument) -> Spec:
    """A copy with values at dotted paths and no search section; SpecError if it is not valid."""
    raw = dump_spec(spec)[spec.name] | {"name": spec.name, "search": {}}
    for path, value in values.items():
        *parents, last = nested_path(path).split(".")
        node = raw
        for part in parents:
            node = node[part]
        # a choice may be a mapping, which stays as it is
        node[last] = deepcopy(value)
    return parse_spec(raw, "the trial's spec")[0]


def check_search(spec: Spec) -> None:
    """Refuse a search that could reach invalid values, before training starts.

    Checks each bound and each choice by itself; values that are invalid only in combination fail their trial.
    """
    found = read_dimensions(spec)
    if not found:
        raise SpecError(
            f"spec '{spec.name}' has no search section; add one, e.g. "
            "search: {agent.net.optim_spec.lr__loguniform: [1e-5, 1e-2]}"
        )
    problems = []
    for dimension in found:
        shown = f"search.{dimension.path}__{dimension.space}"
        if not dimension.path.startswith(SEARCHED):
            problems.append(f"{shown}: only keys of {' and '.join(SEARCHED)} can be searched")
            continue
        outer = [one.path for one in found if dimension.path.startswith(f"{one.path}.")]
        if outer:
            problems.append(f"{shown}: lies within '{outer[0]}', which is searched too; keep one of them")
            continue
        if _is_overruled(spec, dimension.path):
            problems.append(f"{shown}: has no effect, since actor and critic have that key of their own")
        for value in dimension.extremes:
            try:
                apply_values(spec, {dimension.path: value})
            except SpecError as error:
                reason = str(error).splitlines()[-1].strip()
                problems.append(f"{shown}: {printable(str(value))} is refused: {reason}")
                break
    if problems:
        lines = [f"  {problem}" for problem in problems[:MAX_PROBLEMS]]
        raise SpecError(f"spec '{spec.name}' cannot be searched as it is:\n" + "\n".join(lines))


def _is_overruled(spec: Spec, path: str) -> bool:
    """Whether actor and critic each have their own value of a net key."""
    start, _, rest = path.partition("agent.net.")
    key = rest.partition(".")[0]
    return not start and key in spec.agent.net.actor and key in spec.agent.net.critic
