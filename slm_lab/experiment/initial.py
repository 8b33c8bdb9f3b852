"""Start agents from trained weights: `agent.init_from`."""

from pathlib import Path
from typing import Any

from torch import nn

from slm_lab.agent.agent import Agent
from slm_lab.agent.net.model import ActorCriticNet, PolicyNet
from slm_lab.experiment.checkpoint.state import content_errors
from slm_lab.experiment.play import best_session, pick_model, read_checkpoint_model, read_model
from slm_lab.lib.data import State
from slm_lab.lib.errors import LabError, SpecError
from slm_lab.results.folder import DATA_DIR, STATE_SUFFIX, find_best_trial, open_run_folder
from slm_lab.spec.schema import InitSpec

KEY = "agent.init_from"


def load_initial(agent: Agent, spec: InitSpec) -> str:
    """Load the weights that a new agent starts from; returns a line that says where they are from."""
    path = _find_file(spec)
    with content_errors(path, "is not the model of a run"):
        state = read_model(path)
        if spec.optimizer:
            state = read_checkpoint_model(state)
        _load(agent, spec, state, path)
    return f"Starts from the weights of {path}"


def _load(agent: Agent, spec: InitSpec, state: State, path: Path) -> None:
    modules = dict(state["modules"])
    if spec.parts == "actor":
        _load_actor(agent, spec, modules, path)
    else:
        _load_all(agent, spec, modules, path)
    if spec.normalizer:
        _load_normalizer(agent, state["obs_normalizer"], path)
    if spec.optimizer:
        for name, optimizer in agent.algorithm.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])


def _load_actor(agent: Agent, spec: InitSpec, modules: State, path: Path) -> None:
    """Load the weights of the policy, from a separate net or from one that it shares with the critic."""
    saved = modules.get("actor")
    if saved is None:
        saved = {key.removeprefix("actor."): value for key, value in modules.get("net", {}).items() if "actor." in key}
    net, own = agent.algorithm.net, agent.algorithm.modules
    actor = net.actor if isinstance(net, ActorCriticNet) else own.get("actor", net)
    if not saved or actor is None or not (isinstance(actor, PolicyNet) or "actor" in own):
        raise SpecError(f"{KEY}: parts actor: there is no policy net in {path if not saved else 'this agent'}")
    if not isinstance(actor, PolicyNet):
        saved = _take_means(saved, actor)
    actor.load_state_dict(_fit(saved, actor, f"{KEY}: {path}: actor", spec.head == "new"))
    if "target_actor" in own:
        own["target_actor"].load_state_dict(actor.state_dict())


def _take_means(saved: State, actor: nn.Module) -> State:
    """The weights of a deterministic policy from one with a std: the means are the first half of its outputs."""
    sizes = {key: len(value) for key, value in actor.state_dict().items() if key.startswith("head.")}
    return {
        key: value[: sizes[key]] if key in sizes and len(value) == 2 * sizes[key] else value
        for key, value in saved.items()
        if key != "log_std"
    }


def _load_all(agent: Agent, spec: InitSpec, modules: State, path: Path) -> None:
    for name, module in agent.algorithm.modules.items():
        if name not in modules:
            raise SpecError(
                f"{KEY}: {path} has the nets {', '.join(modules)}, but this agent trains '{name}'; start from a run of "
                "the same algorithm, or take parts: actor"
            )
        modules[name] = _fit(modules[name], module, f"{KEY}: {path}: {name}", spec.head == "new")
    agent.algorithm.load_weights(modules)


def _find_file(spec: InitSpec) -> Path:
    """The model file, or the checkpoint if the optimiser state is wanted too."""
    if spec.path.endswith(STATE_SUFFIX):
        if not Path(spec.path).is_file():
            raise SpecError(f"{KEY}: there is no file {spec.path}")
        return Path(spec.path)
    where, sign, frame = spec.path.rpartition("@")
    if sign and not frame.isdecimal():
        raise SpecError(f"{KEY}: '{frame}' is no frame; DIR@FRAME takes a kept checkpoint, e.g. {where}@100000")
    try:
        folder, saved = open_run_folder(where if sign else frame, DATA_DIR)
        trial = find_best_trial(folder.path)
        session = best_session(folder, saved, trial) if spec.session is None else spec.session
        if spec.optimizer:
            return folder.resume_file(trial, session)
        return pick_model(folder, trial, session, int(frame) if sign else None)
    except LabError as error:
        raise SpecError(f"{KEY}: {error}") from None


def _fit(saved: Any, module: nn.Module, where: str, is_head_new: bool) -> State:
    """Saved weights that fit a net; with `is_head_new` its own output layers stay."""
    own = module.state_dict()
    missing = [*(own.keys() - saved.keys()), *(saved.keys() - own.keys())]
    if missing:
        raise SpecError(f"{where} has other layers than agent.net makes ({min(missing)}); use the same net")
    differing = [key for key in own if saved[key].shape != own[key].shape]
    heads = [key for key in own if "head" in key.split(".") or key.endswith("log_std")]
    if is_head_new:
        differing = [key for key in differing if key not in heads]
        saved = {**saved, **{key: own[key] for key in heads}}
    if differing:
        key = differing[0]
        what = f"{where}.{key} has the shape {list(saved[key].shape)}, this run needs {list(own[key].shape)}"
        if all(key in heads for key in differing):
            raise SpecError(f"{what}: the actions differ; head: new starts with random output layers")
        raise SpecError(f"{what}: observations or layers differ, so these weights cannot be used")
    return dict(saved)


def _load_normalizer(agent: Agent, saved: State | None, path: Path) -> None:
    """Load the statistics of observations with which the weights were trained."""
    stats = agent.encode.stats
    if (stats is None) != (saved is None):
        here, there = ("on", "off") if saved is None else ("off", "on")
        raise SpecError(
            f"{KEY}: {path} was trained with env.normalize_obs {there}, it is {here} here; use the same, or set "
            "normalizer: false"
        )
    if stats is not None and saved is not None:
        stats.load_state_dict(saved)
