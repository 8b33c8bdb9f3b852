"""Loads trained agents from a run folder, a model or checkpoint in one, or an exported file."""

import re
from dataclasses import replace
from pathlib import Path

import torch

from slm_lab.agent.agent import Agent
from slm_lab.deploy.agent_file import SUFFIX, read_agent
from slm_lab.deploy.contract import Origin
from slm_lab.deploy.trained import TrainedAgent
from slm_lab.env.facts_document import read_facts
from slm_lab.env.make import EnvFacts
from slm_lab.experiment.play import Saved, find_saved, load_saved, read_trial_spec, to_play
from slm_lab.lib.device import pick_device, set_up
from slm_lab.lib.errors import CheckpointError, LabError
from slm_lab.results.folder import DATA_DIR, import_hint, open_run_folder
from slm_lab.spec.reader import read_document

# a model or a checkpoint of a run, by its name
_MODEL = re.compile(
    r"(?P<name>.+)_t(?P<trial>\d+)_s(?P<session>\d+)_ckpt-(?P<which>\w+)_(net_model|resume)\.safetensors"
)


def load(
    source: str | Path,
    data_dir: Path = DATA_DIR,
    session: int | None = None,
    at: int | None = None,
    device: str | None = None,
) -> TrainedAgent:
    """The agent of a run folder, of a model or checkpoint file in one, or of an exported file."""
    if str(source).endswith(SUFFIX):
        if session is not None or at is not None:
            raise LabError(f"{source} holds one agent; session and at are for run folders: leave them out")
        return read_agent(Path(source), None if device is None else pick_device(device, 0))
    return load_with_origin(source, data_dir, session, at, device)[0]


def load_with_origin(
    source: str | Path,
    data_dir: Path = DATA_DIR,
    session: int | None = None,
    at: int | None = None,
    device: str | None = None,
) -> tuple[TrainedAgent, Origin]:
    """An agent of a run, and which one of it."""
    saved = _find(source, data_dir, session, at)
    match = None if saved.path is None else _MODEL.fullmatch(saved.path.name)
    frame = int(match["which"]) if match is not None and match["which"].isdecimal() else None
    origin = Origin(saved.folder.path, saved.trial, saved.session, frame)
    facts = _read_facts(saved)
    if facts is None:
        # a run of another version, or of an env whose spaces have no JSON form
        if device is not None:
            saved = replace(saved, spec=saved.spec.replace(meta={"device": device}))
        agent, env, spec = load_saved(saved)
        env.close()
        return TrainedAgent(agent, spec), origin
    spec = to_play(saved.spec)
    where = pick_device(device or spec.meta.device, saved.session)
    set_up(where)
    with import_hint(saved.folder), torch.random.fork_rng(devices=[]):
        agent = Agent(spec, facts, 1, (spec.meta.seed, saved.session), where, only_acts=True)
    saved.load_into(agent)
    return TrainedAgent(agent, saved.spec), origin


def _find(source: str | Path, data_dir: Path, session: int | None, at: int | None) -> Saved:
    path = Path(source)
    match = _MODEL.fullmatch(path.name)
    if match is None or session is not None or at is not None or not path.is_file():
        return find_saved(str(source), data_dir, session, at)
    folder, spec = open_run_folder(str(source), data_dir)
    trial = int(match["trial"])
    return Saved(folder, read_trial_spec(folder, spec, trial), trial, int(match["session"]), path)


def _read_facts(saved: Saved) -> EnvFacts | None:
    """The facts of the env that the run saved; None if it saved none."""
    path = saved.folder.spaces_file(saved.trial, saved.session)
    if saved.folder.is_published or not path.exists():
        return None
    try:
        return read_facts(read_document(path))
    except LabError as error:
        raise CheckpointError(f"{path}: {error}; delete it to have the env made instead") from None
