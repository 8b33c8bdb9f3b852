"""Load weights of the published SLM-Lab into the nets of this lab.

It wrote one file per net, with other names of layers. The layers of a body have the same order in both labs, so they
are matched by order. Each is checked: its tensors, their shapes, and the number of layers without weights before it.
"""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from loguru import logger
from torch import Tensor, nn

from slm_lab.agent.agent import Agent
from slm_lab.agent.net.model import ActionValueNet, ActorCriticNet, DuelingHead, OutputNet, PolicyNet, QEnsemble
from slm_lab.agent.net.recurrent import RecurrentBody
from slm_lab.env.vec_env import VecEnv
from slm_lab.experiment.checkpoint.torch_file import load_weights
from slm_lab.lib.errors import CheckpointError
from slm_lab.results.folder import RunFolder
from slm_lab.results.table import read_table
from slm_lab.spec.reader import printable
from slm_lab.spec.schema import Spec

Weights = Mapping[str, Tensor]
# layers by their place in a net, each with its tensors
Layers = dict[str, dict[str, Tensor]]
_BODIES = ("model", "conv_model", "fc_model", "rnn_model", "body")
_TAILS = ("tails", "model_tails", "model_tail", "v", "adv")
# the net that acts
_POLICY = "net"
_OUR_NAMES = {"step": "num_batches_tracked"}
# steps to gather statistics of observations, which the published lab did not save
NUM_WARMUP = 10_000


class MismatchError(Exception):
    """Weights that do not fit a net."""


class PublishedAgent:
    """The nets of one session, at their best score or at the end."""

    def __init__(self, folder: RunFolder, trial: int, session: int) -> None:
        # of the net that acts; the files of other nets are beside it
        self.path = _choose_file(folder, trial, session)
        self.policy = load_weights(self.path)

    def fit_spec(self, spec: Spec) -> Spec:
        """The spec as the published lab used it: it ignored `log_std_init` for nets without a `log_std`."""
        net = spec.agent.net
        if net.log_std_init is None or "log_std" in self.policy:
            return spec
        fitted = net.model_copy(update={"log_std_init": None})
        return spec.model_copy(update={"agent": spec.agent.model_copy(update={"net": fitted})})

    def load_into(self, agent: Agent, env: VecEnv) -> None:
        """Load the weights into an agent. Only the net that acts must fit; the others are not needed to play."""
        for name, net in _find_nets(agent.algorithm.modules).items():
            path = self.path.with_name(self.path.name.removesuffix("_net_model.pt") + f"_{name}_model.pt")
            try:
                if name == _POLICY:
                    _load_net(net, self.policy, _find_shared_critic(agent.algorithm.modules))
                elif path.exists():
                    _load_net(net, load_weights(path))
            except (MismatchError, CheckpointError) as error:
                if name == _POLICY:
                    raise CheckpointError(
                        f"{path}: these weights of the published SLM-Lab cannot be played here: {error}"
                    ) from None
                logger.warning(f"{path.name} is left out, which playing does not need: {error}")
            if isinstance(net.body, RecurrentBody):
                net.body = _RepeatedBody(net.body)
        if agent.encode.stats is not None:
            logger.warning(
                "The published SLM-Lab did not save the statistics of env.normalize_obs; they are gathered over "
                f"{NUM_WARMUP:,} steps before playing, and scores may be lower than in training"
            )
            _gather_statistics(agent, env)


def _choose_file(folder: RunFolder, trial: int, session: int) -> Path:
    """The file of the best or of the last weights, whichever has the higher return in the table.

    The best weights were chosen by a mean over up to 100 rows. In a short run this can be the first row, of an
    untrained agent.
    """
    best = folder.find_model(trial, session, "best")
    last = best.with_name(best.name.replace("_ckpt-best", ""))
    try:
        table = read_table(folder.table_file(trial, session, "train"))
        reward, mean = table["total_reward"], table["total_reward_ma"]
        # saved at every row that was at least as good as all before
        row = int(np.flatnonzero(mean >= np.fmax.accumulate(mean))[-1])
    except (OSError, ValueError, LookupError):
        return best
    if not last.exists() or not reward[-1] > reward[row]:
        return best
    logger.info(
        f"Playing the last weights: total_reward was {reward[-1]:.2f} then, and {reward[row]:.2f} when those marked "
        "best were saved"
    )
    return last


class _RepeatedBody(RecurrentBody):
    """A recurrent body as the published lab ran it: each observation `seq_len` times, without memory of others."""

    def __init__(self, inner: RecurrentBody) -> None:
        super().__init__()
        self.inner = inner
        self.state_size, self.out_size, self.seq_len = inner.state_size, inner.out_size, inner.seq_len

    def step(self, obs: Tensor, carry: Tensor) -> tuple[Tensor, Tensor]:
        features, state = self.inner.step(obs, torch.zeros_like(carry))
        for _ in range(self.seq_len - 1):
            features, state = self.inner.step(obs, state)
        return features, carry

    def unroll(self, obs: Tensor, carry: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        return torch.stack([self.step(row, carry)[0] for row in obs]), carry


def _find_nets(modules: Mapping[str, nn.Module]) -> dict[str, OutputNet | ActionValueNet]:
    """The nets of an algorithm by their names in the published lab."""
    nets: dict[str, nn.Module | None] = {_POLICY: modules.get("net", modules.get("actor"))}
    nets["target_net"] = modules.get("target_net")
    if isinstance(both := nets[_POLICY], ActorCriticNet):
        nets |= {_POLICY: both.actor, "critic_net": None if both.is_shared else both.critic}
    for role, lead in (("critic", ""), ("target_critic", "target_")):
        if isinstance(twin := modules.get(role), QEnsemble):
            for number, critic in enumerate(twin.critics, 1):
                nets[f"{lead}q{number}_net"] = critic
    return {name: net for name, net in nets.items() if isinstance(net, OutputNet | ActionValueNet)}


def _find_shared_critic(modules: Mapping[str, nn.Module]) -> nn.Linear | None:
    both = modules.get("net")
    return both.critic.linear if isinstance(both, ActorCriticNet) and both.is_shared else None


def _load_net(net: OutputNet | ActionValueNet, weights: Weights, value_head: nn.Linear | None = None) -> None:
    """Load weights into a net, and into a value head on the same body; changes nothing unless all of them fit."""
    parts = {name: name.partition(".")[0] for name in weights}
    if unknown := [name for name, part in parts.items() if part not in (*_BODIES, *_TAILS, "log_std")]:
        raise MismatchError(f"'{printable(unknown[0])}' is no part of a net that is known")
    body = _match(_group(weights, _BODIES, parts), _group(net.body.state_dict(), None, {}))
    tails = [layer for layer in _group(weights, _TAILS, parts).values() if layer.keys() == {"weight", "bias"}]
    states: list[tuple[nn.Module, dict[str, Tensor]]] = [(net.body, body)]
    if value_head is not None:
        *tails, value = tails or [{}]
        states.append((value_head, _join([value], value_head)))
    if isinstance(net.head, DuelingHead):
        # the value, then the advantages; some versions saved each under two names
        tails = sorted({layer["bias"].numel(): layer for layer in tails}.values(), key=lambda layer: len(layer["bias"]))
    head = net.linear if isinstance(net, OutputNet) else net.head
    if not isinstance(head, nn.Linear):
        raise MismatchError("its values of actions in images are computed in another way")
    states.append((head, _join(tails, head)))
    if isinstance(net, PolicyNet) and net.log_std is not None:
        if (log_std := weights["log_std"]).numel() != net.log_std.numel():
            raise MismatchError(f"log_std has {log_std.numel()} numbers, {net.log_std.numel()} are needed")
        net.log_std.data.copy_(log_std.view_as(net.log_std))
    for module, state in states:
        module.load_state_dict(state)


def _group(weights: Weights, wanted: tuple[str, ...] | None, parts: Mapping[str, str]) -> Layers:
    layers: Layers = {}
    for name, tensor in weights.items():
        if wanted is None or parts[name] in wanted:
            layer, _, leaf = name.rpartition(".")
            layers.setdefault(layer, {})[_OUR_NAMES.get(leaf, leaf)] = tensor
    return layers


def _match(theirs: Layers, ours: Layers) -> dict[str, Tensor]:
    """The state of our body from the layers of the published one."""
    if len(theirs) != len(ours):
        raise MismatchError(f"the body has {len(theirs)} layers with weights, {len(ours)} are needed")
    for (there, given), (here, needed) in zip(theirs.items(), ours.items(), strict=True):
        if _shapes(given) != _shapes(needed):
            raise MismatchError(
                f"layer {printable(there)} has {_show(_shapes(given))}, {here} needs {_show(_shapes(needed))}"
            )
    for pair, own_pair in zip(pairwise(theirs), pairwise(ours), strict=True):
        # between two parts, such as convolutions and dense layers, there is nothing to count
        if (step := _count_steps(*pair)) is not None and step != _count_steps(*own_pair):
            raise MismatchError(f"other layers lie between {printable(pair[0])} and {printable(pair[1])}")
    return {
        f"{here}.{leaf}": given[leaf].to(tensor.dtype)
        for (here, needed), given in zip(ours.items(), theirs.values(), strict=True)
        for leaf, tensor in needed.items()
    }


def _count_steps(first: str, second: str) -> int | None:
    """The distance of two layers in a sequence; None if they are in different ones."""
    (one, _, start), (two, _, end) = first.rpartition("."), second.rpartition(".")
    return int(end) - int(start) if one == two and start.isdigit() and end.isdigit() else None


def _show(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return printable(", ".join(f"{leaf} {shape}" for leaf, shape in shapes.items()), limit=200)


def _join(tails: list[dict[str, Tensor]], head: nn.Linear) -> dict[str, Tensor]:
    """The output layers concatenated into one head."""
    try:
        joined = {leaf: torch.cat([tail[leaf] for tail in tails]) for leaf in ("weight", "bias")}
    except (KeyError, RuntimeError, ValueError):
        joined = {}
    if _shapes(joined) != (needed := _shapes(head.state_dict())):
        given = "; ".join(_show(_shapes(tail)) for tail in tails) or "none"
        raise MismatchError(f"the output layers are {given}; together {_show(needed)} are needed")
    return joined


def _shapes(layer: Weights) -> dict[str, tuple[int, ...]]:
    return {leaf: tuple(tensor.shape) for leaf, tensor in layer.items()}


def _gather_statistics(agent: Agent, env: VecEnv) -> None:
    """Play some steps, and update the normaliser with the observations."""
    assert agent.encode.stats is not None
    obs = env.reset()
    carry = agent.init_carry(env.num_envs)
    for _ in range(0, NUM_WARMUP, env.num_envs):
        agent.encode.stats.update(obs)
        act = agent.act(obs, carry)
        obs = env.step(act.action.numpy(force=True)).obs
    env.pop_finished()
