"""Runs of the published SLM-Lab are played: its specs are read, and its weights land in our nets."""

import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from slm_lab.agent.agent import Agent
from slm_lab.agent.net.mlp import MLPNet
from slm_lab.agent.net.model import DuelingHead, PolicyNet, QNet
from slm_lab.agent.net.recurrent import RecurrentNet
from slm_lab.api import load_agent
from slm_lab.cli import retro
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import build_settings
from slm_lab.experiment.build import build_session_agent
from slm_lab.experiment.checkpoint.published import MismatchError, _load_net, _RepeatedBody
from slm_lab.experiment.launch import resume
from slm_lab.experiment.options import Options
from slm_lab.experiment.play import load_trained, to_play
from slm_lab.lib.errors import CheckpointError, RunFolderError
from slm_lab.spec.loading import dump_spec, load_spec, parse_spec
from slm_lab.spec.net import (
    ConvNetSpec,
    DuelingConvNetSpec,
    DuelingMLPNetSpec,
    MLPNetSpec,
    NetSpec,
    RecurrentNetSpec,
    TorchArcNetSpec,
)
from slm_lab.spec.schema import Spec

ARC = {
    "modules": {
        "body": {"Sequential": [{"LazyLinear": {"out_features": 6}}, {"Tanh": None}, {"LazyBatchRenorm1d": None}]}
    },
    "graph": {"input": "x", "modules": {"body": ["x"]}, "output": "body"},
}
CONV = {"conv_hid_layers": [[4, 3, 2], [6, 3, 1]], "fc_hid_layers": [10], "batch_norm": True, "normalize": True}


def name_body(net: Any) -> dict[str, Tensor]:
    """The weights of a body under the names that the published lab gave them."""
    if isinstance(net.body, MLPNet):
        return {f"model.{name}": tensor for name, tensor in net.body.state_dict().items()}
    named = {}
    layers: Any = net.body.layers if isinstance(net.body.layers, nn.Sequential) else []
    flat = next((place for place, layer in enumerate(layers) if isinstance(layer, nn.Flatten)), None)
    for name, tensor in net.body.state_dict().items():
        part, _, rest = name.partition(".")
        if part == "rnn":
            named[f"rnn_model.{rest}"] = tensor
        elif isinstance(net.body, RecurrentNet):
            named[f"fc_model.{rest}"] = tensor
        elif not len(layers):
            named[f"body.{rest.replace('num_batches_tracked', 'step')}"] = tensor
        else:
            place, _, leaf = rest.partition(".")
            is_conv = int(place) < flat
            named[f"conv_model.{rest}" if is_conv else f"fc_model.{int(place) - flat - 1}.{leaf}"] = tensor
    return named


def name_tails(net: Any, *sizes: int) -> dict[str, Tensor]:
    """An output layer as one tail, or cut into several."""
    if not sizes:
        return {"tails.0.weight": net.head.weight, "tails.0.bias": net.head.bias}
    layer = net.head.state_dict()
    parts = [(leaf, i, part) for leaf, tensor in layer.items() for i, part in enumerate(tensor.split(sizes))]
    return {f"tails.{i}.0.{leaf}": part for leaf, i, part in parts}


def shake(module: nn.Module) -> None:
    """Give every weight and statistic another value."""
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor))


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        (MLPNetSpec(type="MLPNet", hid_layers=(8, 6)), (5,)),
        (MLPNetSpec(type="MLPNet", hid_layers=(8, 6), layer_norm=True), (5,)),
        (ConvNetSpec.model_validate({"type": "ConvNet", **CONV}), (3, 12, 12)),
        (DuelingMLPNetSpec(type="DuelingMLPNet", hid_layers=(8,)), (5,)),
        (DuelingConvNetSpec.model_validate({"type": "DuelingConvNet", **CONV}), (3, 12, 12)),
        (TorchArcNetSpec.model_validate({"type": "TorchArcNet", "arc": ARC}), (5,)),
    ],
    ids=lambda value: value.type if isinstance(value, NetSpec) else "",
)
def test_a_mapped_net_computes_the_same(spec: NetSpec, shape: tuple[int, ...]) -> None:
    theirs, ours = QNet(spec, shape, 3).eval(), QNet(spec, shape, 3).eval()
    for net in (theirs, ours):
        shake(net)
    obs = torch.rand(7, *shape)
    assert not torch.equal(ours(obs), theirs(obs))
    tails = name_tails(theirs)
    if isinstance(theirs.head, DuelingHead):
        value, adv = (
            {"weight": theirs.head.weight[part], "bias": theirs.head.bias[part]} for part in (slice(1), slice(1, None))
        )
        tails = {
            f"{lead}.{leaf}": tensor for lead, layer in (("v", value), ("adv", adv)) for leaf, tensor in layer.items()
        }
        tails |= {f"model_tails.{i}.{leaf}": t for i, layer in enumerate((value, adv)) for leaf, t in layer.items()}
    _load_net(ours, {**name_body(theirs), **tails})
    assert torch.equal(ours(obs), theirs(obs))


def test_a_recurrent_net_sees_one_observation_again_and_again() -> None:
    spec = RecurrentNetSpec(type="RecurrentNet", fc_hid_layers=(6,), rnn_hidden_size=5, seq_len=4)
    theirs, ours = PolicyNet(spec, (3,), 4, True), PolicyNet(spec, (3,), 4, True)
    shake(theirs)
    _load_net(ours, {**name_body(theirs), **name_tails(theirs, 2, 2)})
    body: Any = ours.body
    ours.body = _RepeatedBody(body)
    obs = torch.rand(2, 3)
    inside = theirs.body.layers(obs).expand(4, 2, 6)
    expected = theirs.head(theirs.body.rnn(inside)[0][-1])
    for carry in (None, torch.rand(2, 5)):
        assert torch.allclose(ours.step(obs, carry)[0], expected, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda w: {**w, "model.0.weight": torch.zeros(8, 4)}, r"model\.0 has weight \(8, 4\), bias \(8,\), 0 needs"),
        (lambda w: {k.replace("l.2", "l.3"): v for k, v in w.items()}, r"layers lie between model\.0 and model\.3"),
        (lambda w: {k: v for k, v in w.items() if "l.2" not in k}, "the body has 1 layers with weights, 2 are needed"),
        (lambda w: {**w, "attention.0.weight": torch.zeros(1)}, r"'attention\.0\.weight' is no part of a net"),
        (lambda w: {k: v for k, v in w.items() if "tails" not in k}, "the output layers are none"),
        (lambda w: {**w, "tails.0.weight": torch.zeros(4, 6)}, "the output layers"),
        (lambda w: {**w, "tails.0.bias": torch.zeros(4)}, "the output layers"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said_and_changes_nothing(change: Any, told: str) -> None:
    spec = MLPNetSpec(type="MLPNet", hid_layers=(8, 6))
    net = QNet(spec, (5,), 3)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    weights = {**name_body(net), **name_tails(net)}
    with pytest.raises(MismatchError, match=told):
        _load_net(net, change({name: tensor + 1 for name, tensor in weights.items()}))
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


# --- whole runs


def make_spec(name: str, **meta: Any) -> Spec:
    return load_spec(name).spec.replace(meta={"max_session": 1, "compile": False, **meta})


def build(spec: Spec) -> Agent:
    env = build_vec_env(build_settings(spec.env, (0,), 1))
    agent = build_session_agent(to_play(spec), env, 0, 1)
    env.close()
    for module in agent.algorithm.modules.values():
        shake(module)
    return agent


def save(path: Path, weights: dict[str, Tensor]) -> None:
    """As `torch.save(net.state_dict(), path)` does, with the versions of layers beside the weights."""
    state = OrderedDict((name, tensor.detach().clone()) for name, tensor in weights.items())
    state._metadata = OrderedDict({"": {"version": 1}})  # type: ignore[attr-defined]
    torch.save(state, path)


def write_run(
    data: Path, spec: Spec, nets: dict[str, dict[str, Tensor]], rewards: tuple[float, ...] = (1.0, 2.0)
) -> Path:
    """A run in the published layout: flat JSON specs with paths and commit in `meta`, a file per net, best and last."""
    name = spec.name
    folder = data / f"{name}_2026_01_01_120000"
    for sub in ("info", "model"):
        (folder / sub).mkdir(parents=True)
    raw = json.loads(json.dumps(dump_spec(spec)[name]))
    raw["meta"] |= {"git_sha": "unknown", "prepath": f"data/{folder.name}/{name}_t0", "trial": 0, "random_seed": None}
    del raw["meta"]["seed"]
    for stem in (name, f"{name}_t0"):
        (folder / f"{stem}_spec.json").write_text(json.dumps({**raw, "name": name}))
    means = [float(np.mean(rewards[: count + 1])) for count in range(len(rewards))]
    rows = [
        f"{reward},{mean},{100 * row + 100},{row}"
        for row, (reward, mean) in enumerate(zip(rewards, means, strict=True))
    ]
    table = "\n".join(["total_reward,total_reward_ma,frame,opt_step", *rows])
    (folder / f"info/{name}_t0_s0_session_df_train.csv").write_text(table + "\n")
    (folder / f"info/{name}_t0_s0_session_metrics_scalar_train.json").write_text(
        json.dumps({"total_reward_ma": means[-1]})
    )
    for net, weights in nets.items():
        save(folder / f"model/{name}_t0_s0_ckpt-best_{net}_model.pt", weights)
        save(folder / f"model/{name}_t0_s0_{net}_model.pt", {key: -tensor for key, tensor in weights.items()})
    return folder


def same_acts(agent: Agent, other: Agent, size: int) -> bool:
    obs = np.random.default_rng(0).normal(size=(16, size)).astype(np.float32)
    return torch.equal(agent.act(obs).action, other.act(obs).action)


def test_a_published_ppo_run_plays(tmp_path: Path) -> None:
    spec = make_spec("ppo_cartpole")
    theirs = build(spec)
    net: Any = theirs.algorithm.modules["net"]
    nets = {
        "net": {**name_body(net.actor), **name_tails(net.actor)},
        "critic_net": {**name_body(net.critic), **name_tails(net.critic)},
    }
    folder = write_run(tmp_path, spec, nets)
    agent, env, played = load_trained(folder.name, tmp_path)
    env.close()
    assert played.agent == spec.agent
    for name, tensor in agent.algorithm.modules["net"].state_dict().items():
        assert torch.equal(tensor, net.state_dict()[name])
    assert load_agent(folder).act(np.zeros(4)) in (0, 1)
    # nothing to continue from was saved, and nothing is written into the folder
    with pytest.raises(RunFolderError, match="published SLM-Lab, which saved no state to resume from; play it with"):
        resume(str(folder), Options(tmp_path))
    assert not list(folder.glob("*.yaml"))


def test_a_shared_net_and_tails_of_several_actions(tmp_path: Path) -> None:
    net = {"type": "MLPNet", "shared": True, "hid_layers": [8], "log_std_init": -1.0}
    raw = dump_spec(make_spec("ppo_cartpole"))["ppo_cartpole"]
    raw |= {"agent": {**raw["agent"], "net": net}, "search": {}}
    raw["env"] = {"name": "MountainCarContinuous-v0", "max_frame": 100}
    spec, _ = parse_spec({**raw, "name": "demo"})
    # the published lab had a place for log_std_init only where actor and critic share nothing
    del raw["agent"]["net"]["log_std_init"]
    theirs = build(parse_spec({**raw, "name": "demo"})[0])
    both: Any = theirs.algorithm.modules["net"]
    value = {f"tails.1.0.{leaf}": tensor for leaf, tensor in both.critic.head.state_dict().items()}
    policy = {f"tails.0.0.{leaf}": tensor for leaf, tensor in both.actor.head.state_dict().items()}
    folder = write_run(tmp_path, spec, {"net": {**name_body(both.actor), **policy, **value}})
    agent, env, played = load_trained(str(folder))
    env.close()
    assert played.agent.net.log_std_init is None
    assert same_acts(agent, theirs, 2)
    ours = agent.algorithm.modules["net"]
    assert all(torch.equal(ours.state_dict()[name], tensor) for name, tensor in both.state_dict().items())


def test_a_published_sac_run_plays_and_a_critic_that_does_not_fit_is_left_out(tmp_path: Path) -> None:
    spec = make_spec("sac_pendulum")
    theirs = build(spec)
    modules: dict[str, Any] = theirs.algorithm.modules
    nets = {"net": {**name_body(modules["actor"]), **name_tails(modules["actor"])}}
    for lead, role in (("", "critic"), ("target_", "target_critic")):
        for number, critic in enumerate(modules[role].critics, 1):
            nets[f"{lead}q{number}_net"] = {**name_body(critic), **name_tails(critic)}
    nets["q2_net"] = {"model.0.parametrizations.weight.original": torch.zeros(1)}
    folder = write_run(tmp_path, spec, nets)
    agent, env, _ = load_trained(str(folder))
    env.close()
    assert same_acts(agent, theirs, 3)
    for role in ("actor", "target_critic"):
        for name, tensor in agent.algorithm.modules[role].state_dict().items():
            assert torch.equal(tensor, modules[role].state_dict()[name])


@pytest.mark.parametrize(("rewards", "is_last"), [((1.0, 2.0), False), ((-900.0, -1300.0, -600.0), True)])
def test_the_better_of_the_saved_weights_is_played(tmp_path: Path, rewards: tuple[float, ...], is_last: bool) -> None:
    """The best was kept by a mean over all rows, which in a short run may be that of the first."""
    spec = make_spec("sarsa_boltzmann_cartpole")
    theirs = build(spec)
    net: Any = theirs.algorithm.modules["net"]
    folder = write_run(tmp_path, spec, {"net": {**name_body(net), **name_tails(net)}}, rewards)
    agent, env, _ = load_trained(str(folder))
    env.close()
    ours: Any = agent.algorithm.modules["net"]
    assert torch.equal(ours.head.weight, -net.head.weight if is_last else net.head.weight)


def test_statistics_of_observations_are_gathered_before_playing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slm_lab.experiment.checkpoint.published.NUM_WARMUP", 200)
    spec = make_spec("ppo_cartpole").replace(env={"normalize_obs": True})
    theirs = build(spec)
    both: Any = theirs.algorithm.modules["net"]
    actor = both.actor
    folder = write_run(tmp_path, spec, {"net": {**name_body(actor), **name_tails(actor)}})
    agent, env, _ = load_trained(str(folder))
    env.close()
    assert agent.encode.stats is not None
    assert agent.encode.stats.count == 200


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch exploded",)


@pytest.mark.parametrize("content", ["code", "text", "nested", "legacy"])
def test_a_file_that_is_not_the_weights_of_a_net_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.chdir(tmp_path)
    spec = make_spec("ppo_cartpole")
    folder = write_run(tmp_path, spec, {"net": {"model.0.weight": torch.zeros(2)}})
    path = folder / f"model/{spec.name}_t0_s0_net_model.pt"
    best = folder / f"model/{spec.name}_t0_s0_ckpt-best_net_model.pt"
    if content == "code":
        torch.save({"a": Bomb()}, best)
    elif content == "text":
        best.write_text("weights")
    elif content == "nested":
        torch.save({"a": {"b": torch.zeros(1)}}, best)
    else:
        best.write_bytes(pickle.dumps({"a": Bomb()}))
    path.unlink()
    with pytest.raises(CheckpointError, match=r"ckpt-best_net_model\.pt: refused \("):
        load_trained(str(folder))
    assert not (tmp_path / "exploded").exists()


def test_weights_of_another_net_are_one_clear_line(tmp_path: Path) -> None:
    folder = write_run(tmp_path, make_spec("ppo_cartpole"), {"net": {"model.0.weight": torch.zeros(2)}})
    told = (
        "these weights of the published SLM-Lab cannot be played here: the body has 1 layers with weights, 2 are needed"
    )
    with pytest.raises(CheckpointError, match=told):
        load_trained(str(folder))


def test_retro_counts_weights_of_the_published_lab(tmp_path: Path) -> None:
    folder = write_run(tmp_path, make_spec("ppo_cartpole"), {"net": {}, "critic_net": {}})
    done = CliRunner().invoke(retro.app, [str(folder)])
    assert done.exit_code == 0
    assert (
        f"Note: 4 weight files are of the published SLM-Lab; play them with slm-lab run enjoy@{folder}" in done.stderr
    )


def test_a_published_spec_file_trains_again(tmp_path: Path) -> None:
    spec = make_spec("ppo_cartpole")
    folder = write_run(tmp_path, spec, {})
    loaded = load_spec(folder / "ppo_cartpole_t0_spec.json")
    assert loaded.spec == spec
