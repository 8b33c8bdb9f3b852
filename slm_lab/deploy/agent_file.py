"""`agent.slm`: a trained agent in one file that needs neither its run nor its env.

It is a safetensors file: the weights of the net that acts, the statistics of observations, and in its header the
contract as JSON with a hash over all of it. The reader is the one of checkpoints: it executes nothing in a file.
"""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from slm_lab.agent.agent import Agent
from slm_lab.deploy.contract import check_contract
from slm_lab.deploy.trained import TrainedAgent
from slm_lab.env.facts_document import read_facts
from slm_lab.env.make import EnvFacts
from slm_lab.experiment.checkpoint.state import check_form, content_errors, encode_state, load_state
from slm_lab.experiment.play import to_play
from slm_lab.lib.data import Document, State
from slm_lab.lib.errors import CheckpointError, LabError
from slm_lab.lib.io import write_bytes
from slm_lab.spec.schema import Spec

SUFFIX = ".slm"
# calls of torch to build an agent: usually a few hundred, more for deep nets
MAX_CALLS = 100_000


def write_agent(path: Path, trained: TrainedAgent, contract: Document) -> str:
    """Write an agent with its contract; returns the SHA-256 of the file."""
    trained.policy  # noqa: B018 -- raises for an algorithm without a net
    model = trained.agent.model_state()
    state = {
        "contract": contract,
        "net": trained.agent.algorithm.net.state_dict(),
        "obs_normalizer": model["obs_normalizer"],
    }
    try:
        data = encode_state(state)
        # a net that was changed after it was built, for example, cannot be rebuilt from its spec
        _build(check_contract(contract, path), read_facts(contract), state, torch.device("cpu"), path)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise LabError(f"this agent cannot be exported as {SUFFIX} ({reason}); ONNX may work") from None
    write_bytes(path, data)
    return hashlib.sha256(data).hexdigest()


def read_agent(path: Path, device: torch.device | None = None) -> TrainedAgent:
    """Read an agent, perhaps a stranger's: the hash detects damage, it is no signature."""
    state = load_state(path)
    spec = check_contract(state.get("contract"), path)
    contract = state["contract"]
    with content_errors(path, "what it holds does not fit together"):
        agent = _build(spec, read_facts(contract), state, device or torch.device("cpu"), path)
    return TrainedAgent(agent, spec, contract)


def _build(spec: Spec, facts: EnvFacts, state: State, device: torch.device, path: Path) -> Agent:
    """The agent of a file: built as an outline, and then given the file's own tensors."""
    # initial weights would be drawn from torch's global generator, which belongs to the caller
    with torch.random.fork_rng(devices=[]), torch.device("meta"), Outline(path):
        agent = Agent(to_play(spec), facts, 1, (spec.meta.seed, 0), device, only_acts=True)
    if "net" not in vars(agent.algorithm):
        raise CheckpointError(f"{path}: refused ({spec.agent.algorithm.name} has no net)")
    net: nn.Module = agent.algorithm.net
    check_form(state["net"], net.state_dict(), "the net")
    if any(not bool(tensor.isfinite().all()) for tensor in state["net"].values()):
        raise CheckpointError(f"{path}: refused (its weights are not finite)")
    net.load_state_dict(state["net"], assign=True)
    net.to(device)
    saved, stats = state["obs_normalizer"], agent.encode.stats
    if (saved is None) != (stats is None):
        raise CheckpointError(f"{path}: refused (its spec and its normaliser differ)")
    if saved is not None and stats is not None:
        stats.load_state_dict(saved)
        if not (torch.as_tensor(stats.mean).isfinite().all() and (torch.as_tensor(stats.var) >= 0).all()):
            raise CheckpointError(f"{path}: refused (its statistics of observations are not finite)")
    return agent


class Outline(TorchFunctionMode):
    """Within it, nets on the device "meta" stay there, and a spec that asks for endless layers is refused.

    So an agent takes memory for what its file holds, whatever its spec claims.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.num_call = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.num_call += 1
        if self.num_call > MAX_CALLS:
            raise CheckpointError(f"{self.path}: refused (its spec asks for too many layers)")
        if func is Tensor.to and args[0].is_meta:
            return args[0]
        return func(*args, **(kwargs or {}))
