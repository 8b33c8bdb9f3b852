"""The contract of an exported agent: everything that is needed to run it, as plain JSON."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, FiniteFloat, TypeAdapter, ValidationError

from slm_lab.deploy.trained import TrainedAgent
from slm_lab.env.facts_document import dump_facts
from slm_lab.env.gym_types import GymSpace
from slm_lab.env.hybrid import HybridSpace
from slm_lab.env.vec_env import ActionMap
from slm_lab.lib.data import Document
from slm_lab.lib.errors import CheckpointError, LabError
from slm_lab.lib.runtime import package_versions
from slm_lab.results.run import read_run
from slm_lab.spec.loading import dump_spec, parse_spec
from slm_lab.spec.schema import Spec

FORMAT, VERSION = "slm-agent", 1
# values in a spec, and depth of its lists and mappings: the shipped ones have some hundreds, ten deep
MAX_VALUES, MAX_DEPTH = 20_000, 50


class Score(BaseModel):
    """The score of a run with its interval, and that of the agent's own session."""

    mean: FiniteFloat
    low: FiniteFloat | None
    high: FiniteFloat | None
    session: FiniteFloat | None
    num_session: int
    kind: str
    meaning: str


_SCORE = TypeAdapter(Score | None)


@dataclass(frozen=True)
class Origin:
    """The run, session and checkpoint that an agent comes from."""

    folder: Path
    trial: int
    session: int
    # the frame of a kept checkpoint; None for the best or the last one
    frame: int | None = None


def describe_agent(trained: TrainedAgent, origin: Origin | None = None) -> Document:
    """The contract of an agent."""
    agent, spec = trained.agent, trained.spec
    facts, encoder = agent.facts, agent.encode
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": spec.name,
        "algorithm": spec.agent.algorithm.name,
        "env": spec.env.name,
        **dump_facts(facts),
        "normalizer": {"is_on": encoder.stats is not None, "clip": encoder.clip, "eps": encoder.eps},
        "action_map": _describe_map(facts.action_space),
        "state_size": trained.init_state().shape[1],
        "score": None if origin is None else find_score(origin),
        "origin": None if origin is None else {"trial": origin.trial, "session": origin.session, "frame": origin.frame},
        "versions": package_versions(),
        "spec": _dump(spec),
    }


def _dump(spec: Spec) -> Document:
    """The spec without what belongs to the machine or the search that it came from."""
    document = dump_spec(spec)[spec.name] | {"search": {}}
    agent = document["agent"] | {"init_from": None}
    algorithm = agent["algorithm"]
    if isinstance(algorithm.get("data"), str):
        algorithm = algorithm | {"data": Path(algorithm["data"]).name}
    return document | {"agent": agent | {"algorithm": algorithm}, "meta": document["meta"] | {"device": "auto"}}


def _describe_map(space: GymSpace) -> Any:
    """How actions of the policy become those of the env: per part, in the order of the action's parts."""
    known = ActionMap(space)
    if isinstance(space, HybridSpace):
        return [_describe_map(leaf) for leaf in space.leaves]
    if "scale" not in vars(known):
        return {"kind": "choice", "start": None if known.start is None else known.start.tolist()}
    return {
        "kind": "scale",
        "scale": known.scale.reshape(-1).tolist(),
        "center": known.center.reshape(-1).tolist(),
        "round": bool(known.is_whole),
    }


def find_score(origin: Origin) -> Document | None:
    """The score of a run with its interval, and that of the session; None where a run has none that can be read."""
    try:
        run = read_run(origin.folder, origin.trial)
    except (LabError, OSError):
        return None
    spread = run.spread
    if spread is None or not math.isfinite(spread.mean):
        return None
    session = run.session_scores.get(origin.session, math.nan)
    low, high, own = (value if math.isfinite(value) else None for value in (spread.low, spread.high, session))
    score = Score(
        mean=spread.mean,
        low=low,
        high=high,
        session=own,
        num_session=len(spread.values),
        kind=run.score_kind,
        meaning=run.score_meaning,
    )
    return score.model_dump()


def check_contract(contract: Any, where: Path) -> Spec:
    """The spec of a contract, perhaps a stranger's; nothing that it names is imported."""
    if not isinstance(contract, dict) or contract.get("format") != FORMAT:
        raise CheckpointError(f"{where}: not an exported agent; write one with `slm-lab export DIR -o agent.slm`")
    version = contract.get("version")
    if type(version) is not int or version < 1:
        raise CheckpointError(f"{where}: refused (its version is no number)")
    if version > VERSION:
        raise CheckpointError(
            f"{where}: has version {version} of the format, this lab reads up to {VERSION}; update it"
        )
    spec, name = contract.get("spec"), contract.get("name")
    if not isinstance(spec, dict) or type(name) is not str:
        raise CheckpointError(f"{where}: refused (it holds no spec)")
    if not _is_modest(spec):
        raise CheckpointError(
            f"{where}: refused (its spec has more than {MAX_VALUES:,} values, or is nested more than {MAX_DEPTH} deep)"
        )
    try:
        _SCORE.validate_python(contract.get("score"), strict=True)
    except ValidationError:
        raise CheckpointError(f"{where}: refused (its score is not one that the lab writes)") from None
    return parse_spec({**spec, "name": name}, f"spec in {where}")[0]


def _is_modest(spec: Document) -> bool:
    """Whether a spec is small enough to look at; without recursion, which one that is nested deep would exhaust."""
    level: list[Any] = [spec]
    count = 0
    for _ in range(MAX_DEPTH):
        values = [one for node in level for one in (node.values() if isinstance(node, dict) else node)]
        count += len(values)
        level = [value for value in values if isinstance(value, (dict, list))]
        if not level or count > MAX_VALUES:
            return count <= MAX_VALUES
    return False
