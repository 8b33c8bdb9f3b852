"""Learning from recorded steps: the losses, exact runs, compiled steps, files that do not fit, and warm starts."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from slm_lab.agent.algorithm.iql import calc_expectile_loss
from slm_lab.agent.memory.dataset import FIELDS, KEY, load_steps, save_steps
from slm_lab.audit.difference import find_difference
from slm_lab.experiment.checkpoint.state import load_state
from slm_lab.experiment.collect import collect
from slm_lab.experiment.control import Session
from slm_lab.experiment.launch import prepare, start
from slm_lab.experiment.options import Options
from slm_lab.experiment.play import load_trained
from slm_lab.lib.errors import CheckpointError, LabError, SpecError
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import dump_spec, parse_spec
from slm_lab.spec.schema import Spec

NUM_ROW = 400


def write_steps(path: Path, is_discrete: bool = False, **changes: Any) -> Path:
    """Steps of an expert with a simple rule: push back, the harder the further."""
    generator = np.random.default_rng(0)
    size = 4 if is_discrete else 3
    obs = generator.normal(size=(NUM_ROW, size)).astype(np.float32)
    action = (obs[:, 2] > 0).astype(np.int64) if is_discrete else np.tanh(-obs[:, :1]).astype(np.float32)
    steps = {
        "obs": obs,
        "action": action,
        "reward": generator.normal(size=NUM_ROW),
        "terminated": generator.random(NUM_ROW) < 0.1,
        "truncated": np.zeros(NUM_ROW, bool),
        "next_obs": generator.normal(size=(NUM_ROW, size)).astype(np.float32),
    }
    save_steps(path, {**steps, **changes}, {"env": "CartPole-v1" if is_discrete else "Pendulum-v1"})
    return path


def spoil(part: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same with one number that is not finite."""
    part[7] = np.nan
    return part


def make_spec(name: str, data: Path, is_discrete: bool = False, **keys: Any) -> Spec:
    net = {"type": "MLPNet", "hid_layers": [16], "optim_spec": {"name": "Adam", "lr": 0.003}, **keys.pop("net", {})}
    raw = {
        "name": "tiny",
        "agent": {
            "algorithm": {"name": name, "data": str(data), **keys.pop("algorithm", {})},
            "memory": {"name": "Replay", "batch_size": 64},
            "net": net,
        },
        "env": {"name": "CartPole-v1" if is_discrete else "Pendulum-v1", "max_frame": 300, **keys.pop("env", {})},
        "meta": {"log_frequency": 100, "rigorous_eval": 0, "final_eval": 2, "compile": False, **keys.pop("meta", {})},
    }
    return parse_spec(raw)[0]


def test_expectile_loss_is_that_of_the_paper() -> None:
    error = torch.tensor([-2.0, 0.0, 3.0])
    assert_close(calc_expectile_loss(error, 0.7), torch.tensor([0.3 * 4, 0.0, 0.7 * 9]))
    assert_close(calc_expectile_loss(error, 0.5), 0.5 * error.square())
    # the minimum over a constant is the expectile: of 0 and 1 it is tau itself
    value = torch.tensor(0.7)
    slope = torch.func.grad(lambda v: calc_expectile_loss(torch.tensor([0.0, 1.0]) - v, 0.7).mean())(value)
    assert abs(float(slope)) < 1e-6


@pytest.mark.parametrize(("name", "is_discrete"), [("BC", False), ("BC", True), ("IQL", False), ("TD3BC", False)])
def test_a_stopped_run_ends_like_a_whole_one(name: str, is_discrete: bool, tmp_path: Path) -> None:
    data = write_steps(tmp_path / "steps.safetensors", is_discrete)
    spec = make_spec(name, data, is_discrete, env={"normalize_obs": True})
    whole, stopped = (RunFolder(tmp_path / place, "tiny") for place in ("whole", "stopped"))
    result = Session(spec, whole).run()
    assert (result.is_done, result.frame, len(result.final_eval)) == (True, 300, 2)
    for frame in (1, 57, 200, 300):
        session = Session(spec, stopped)
        session.should_stop = lambda session=session, frame=frame: session.frame >= frame  # type: ignore[misc]
        session.run()
    assert find_difference(whole.path, stopped.path, "tiny") is None


def test_other_steps_under_the_same_name_end_nothing_that_began(tmp_path: Path) -> None:
    data = write_steps(tmp_path / "steps.safetensors")
    folder = RunFolder(tmp_path / "run", "tiny")
    session = Session(make_spec("IQL", data), folder)
    session.should_stop = lambda: session.frame >= 100
    session.run()
    write_steps(data, reward=np.ones(NUM_ROW))
    with pytest.raises(CheckpointError, match=r"agent\.algorithm\.data: .*steps\.safetensors has changed"):
        Session(make_spec("IQL", data), folder).run()
    # the same steps written again are the same
    write_steps(data)
    assert Session(make_spec("IQL", data), folder).run().is_done


def test_bc_finds_the_rule_of_the_expert(tmp_path: Path) -> None:
    for is_discrete in (False, True):
        data = write_steps(tmp_path / f"{is_discrete}.safetensors", is_discrete)
        session = Session(make_spec("BC", data, is_discrete), RunFolder(tmp_path / str(is_discrete), "tiny"))
        session.run()
        assert session.tracker.last("action_error") < (0.1 if is_discrete else 0.2)
        assert session.tracker.last("action_error") < 0.5 * session.tracker.rows[0][-2]


def test_iql_prefers_the_better_of_two_recorded_actions(tmp_path: Path) -> None:
    # a bandit: action 0.5 gives 1, action -0.5 gives 0, and both were taken as often
    action = np.where(np.arange(NUM_ROW) % 2, 0.5, -0.5).astype(np.float32)[:, None]
    ends = np.ones(NUM_ROW, bool)
    obs = np.zeros((NUM_ROW, 3), np.float32)
    found = {}
    for beta in (0.0, 5.0):
        data = write_steps(
            tmp_path / f"{beta}.safetensors", obs=obs, action=action, reward=(action[:, 0] > 0) * 1.0, terminated=ends
        )
        spec = make_spec("IQL", data, algorithm={"beta": beta}, env={"max_frame": 600})
        session = Session(spec, RunFolder(tmp_path / str(beta), "tiny"))
        session.run()
        found[beta] = float(session.agent.act(obs[:1]).action[0, 0])
    assert abs(found[0.0]) < 0.15
    assert found[5.0] > 0.3


def test_the_size_of_rewards_does_not_change_what_iql_prefers(tmp_path: Path) -> None:
    # the same bandit with rewards of 1/1000: a weight in units of the rewards sees no difference between its actions
    action = np.where(np.arange(NUM_ROW) % 2, 0.5, -0.5).astype(np.float32)[:, None]
    ends, obs = np.ones(NUM_ROW, bool), np.zeros((NUM_ROW, 3), np.float32)
    reward = (action[:, 0] > 0) * 1e-3
    data = write_steps(tmp_path / "steps.safetensors", obs=obs, action=action, reward=reward, terminated=ends)
    found = {}
    for unit in ("rms", "none"):
        algorithm = {"normalize_advantages": unit, "beta": 3.0, "max_weight": 20.0}
        spec = make_spec("IQL", data, algorithm=algorithm, env={"max_frame": 1500})
        session = Session(spec, RunFolder(tmp_path / unit, "tiny"))
        session.run()
        found[unit] = float(session.agent.act(obs[:1]).action[0, 0])
    assert abs(found["none"]) < 0.15
    assert found["rms"] > 0.3


def test_td3bc_clones_as_values_weigh_less(tmp_path: Path) -> None:
    data = write_steps(tmp_path / "steps.safetensors")
    errors = []
    for alpha in (100.0, 0.01):
        spec = make_spec("TD3BC", data, algorithm={"alpha": alpha}, env={"max_frame": 400})
        session = Session(spec, RunFolder(tmp_path / str(alpha), "tiny"))
        session.run()
        steps, _ = load_steps(data)
        action = session.agent.act(steps["obs"].numpy()).action
        errors.append(float((action - steps["action"]).abs().mean()))
    assert errors[1] < 0.15 < errors[0]


def test_iql_trains_norm_layers_on_what_it_learns_from_alone(tmp_path: Path) -> None:
    """Targets are values of the net as it acts: V(s') must not move the statistics that V(s) is normalised by."""
    data = write_steps(tmp_path / "steps.safetensors", next_obs=np.full((NUM_ROW, 3), 1e3, np.float32))
    spec = make_spec("IQL", data, net={"critic_batch_norm": True})
    agent = Session(spec, RunFolder(tmp_path / "run", "tiny")).agent
    for frame in range(1, 21):
        agent.update(frame)
    modules = agent.algorithm.modules["value"].modules()
    layer: Any = next(one for one in modules if isinstance(one, torch.nn.BatchNorm1d))
    assert int(layer.num_batches_tracked) == 20
    assert float(layer.running_mean.abs().max()) < 10


def test_statistics_of_many_recorded_observations_are_exact(tmp_path: Path) -> None:
    """Summed in single precision, a million times 0.1 is one percent too much."""
    num = 1_000_000
    obs = np.full((num, 3), 0.1, np.float32)
    ends, zeros = np.zeros(num, bool), np.zeros((num, 1), np.float32)
    data = write_steps(
        tmp_path / "steps.safetensors",
        obs=obs,
        next_obs=obs,
        action=zeros,
        reward=zeros[:, 0],
        terminated=ends,
        truncated=ends,
    )
    agent = Session(make_spec("BC", data, env={"normalize_obs": True}), RunFolder(tmp_path / "run", "tiny")).agent
    assert agent.encode.stats is not None
    np.testing.assert_allclose(agent.encode.stats.mean, 0.1, rtol=1e-6)


@pytest.mark.parametrize(("name", "is_discrete"), [("BC", True), ("IQL", False), ("TD3BC", False)])
def test_compiled_steps_are_plain_ones(name: str, is_discrete: bool, tmp_path: Path, lab: Any) -> None:
    data = write_steps(tmp_path / "steps.safetensors", is_discrete)
    metrics = []
    for is_compiled in (False, True):
        spec = make_spec(
            name, data, is_discrete, meta={"compile": is_compiled}, net={"optim_spec": {"name": "SGD", "lr": 1e-3}}
        )
        trained = lab.train(spec, 40)
        metrics.append(trained.metrics)
    for plain, compiled in zip(*metrics, strict=True):
        assert compiled == pytest.approx(plain, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs": np.zeros((NUM_ROW, 5), np.float32)}, r"is of Pendulum-v1, whose obs has shape \[5\], not \[3\]"),
        ({"action": np.zeros(NUM_ROW, np.int64)}, r"whose action has shape \[\], not \[1\]"),
        ({"action": np.zeros((NUM_ROW, 1), np.int64)}, "whose actions are of another kind"),
        ({"reward": np.zeros(3)}, "its parts are of unequal length"),
        ({"reward": np.zeros((NUM_ROW, 1))}, r"whose reward has shape \[400, 1\]; one number per step expected"),
        ({"reward": spoil(np.zeros(NUM_ROW))}, "reward of step 7 in .* is not finite; leave the step out"),
        ({"next_obs": spoil(np.zeros((NUM_ROW, 3), np.float32))}, "next_obs of step 7 in .* is not finite"),
    ],
)
def test_steps_that_do_not_fit_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    data = write_steps(tmp_path / "steps.safetensors", **change)
    with pytest.raises(SpecError, match=message):
        prepare(make_spec("IQL", data))


def test_bc_needs_observations_and_actions_alone(tmp_path: Path) -> None:
    data = write_steps(tmp_path / "steps.safetensors", reward=spoil(np.zeros(NUM_ROW)))
    prepare(make_spec("BC", data))
    steps, facts = load_steps(data)
    bare = tmp_path / "bare.safetensors"
    save_file({name: steps[name] for name in ("obs", "action")}, bare, {KEY: json.dumps(facts)})
    whole, cloned = (Session(make_spec("BC", path), RunFolder(tmp_path / path.stem, "tiny")) for path in (data, bare))
    for session in (whole, cloned):
        session.run()
    assert whole.tracker.last("loss") == cloned.tracker.last("loss")
    for name in ("IQL", "TD3BC"):
        with pytest.raises(
            SpecError, match=r"bare\.safetensors has no reward and no terminated and no next_obs; write"
        ):
            prepare(make_spec(name, bare))


def test_a_run_tells_what_it_learns_from(tmp_path: Path) -> None:
    _, notes = prepare(make_spec("IQL", write_steps(tmp_path / "steps.safetensors")))
    assert "400 recorded steps of Pendulum-v1: 0.0 MB of memory per session" in notes


def test_files_that_hold_no_steps_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"there is no file .*; write one with slm-lab collect"):
        prepare(make_spec("BC", tmp_path / "none.safetensors"))
    (tmp_path / "text.safetensors").write_text("no steps")
    with pytest.raises(SpecError, match="cannot be read"):
        prepare(make_spec("BC", tmp_path / "text.safetensors"))
    discrete = write_steps(tmp_path / "discrete.safetensors", is_discrete=True)
    with pytest.raises(SpecError, match="IQL needs continuous actions; use BC"):
        prepare(make_spec("IQL", discrete, is_discrete=True))


@pytest.mark.usefixtures("undrawn")
def test_collected_steps_are_those_of_the_env(tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    spec = tiny_spec("SoftActorCritic", env={"name": "Pendulum-v1", "max_t": 30, "max_frame": 200})
    folder = start(spec, Options(tmp_path / "data")).folder
    done = collect(str(folder), tmp_path / "steps.safetensors", Options(tmp_path / "data"), 250, num_envs=4)
    steps, facts = load_steps(done.path)
    assert (done.num_step, facts["env"], facts["num_episode"]) == (250, "Pendulum-v1", 8)
    assert facts["mean_return"] == pytest.approx(np.mean(done.returns))
    # an env that is put into a recorded state and given the recorded action does what was recorded
    env = gym.make("Pendulum-v1").unwrapped
    for row in (0, 17, 100):
        cosine, sine, speed = steps["obs"][row].tolist()
        env.state = np.array([math.atan2(sine, cosine), speed])  # type: ignore[attr-defined]
        env.last_u = None  # type: ignore[attr-defined]
        obs, reward, *_ = env.step(2 * steps["action"][row].numpy())
        assert_close(torch.from_numpy(obs), steps["next_obs"][row], rtol=1e-3, atol=1e-4)
        assert float(reward) == pytest.approx(float(steps["reward"][row]), rel=1e-3, abs=1e-4)
    # steps of an env follow each other
    assert torch.equal(steps["next_obs"][:20], steps["obs"][1:21])
    assert set(FIELDS) == set(steps)
    with pytest.raises(LabError, match=r"must end in \.safetensors"):
        collect(str(folder), tmp_path / "steps.csv", Options(tmp_path / "data"))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(("name", "net"), [("BC", {}), ("BC", {"log_std_init": -1.0}), ("TD3BC", {})])
def test_a_deterministic_policy_starts_from_recorded_steps(name: str, net: dict[str, Any], tmp_path: Path) -> None:
    data = write_steps(tmp_path / "steps.safetensors")
    keys = {"action_pdtype": "TanhNormal"} if name == "BC" else {}
    cloned = start(make_spec(name, data, algorithm=keys, net=net), Options(tmp_path / "data")).folder
    document = dump_spec(make_spec("TD3BC", data))["tiny"]
    document["agent"] |= {"algorithm": {"name": "TD3"}, "init_from": {"path": str(cloned), "parts": "actor"}}
    document["env"]["max_frame"] = 2000
    session = Session(
        parse_spec({**document, "name": "tiny"})[0], RunFolder(tmp_path / "td3", "tiny"), should_stop=lambda: True
    )
    session.run()
    modules, (steps, _) = session.agent.algorithm.modules, load_steps(data)
    assert_close(modules["target_actor"].state_dict(), modules["actor"].state_dict(), rtol=0, atol=0)
    agent, env, _ = load_trained(str(cloned))
    env.close()
    assert_close(session.agent.act(steps["obs"].numpy()).action, agent.act(steps["obs"].numpy()).action)


@pytest.mark.usefixtures("undrawn")
def test_bc_is_a_warm_start(tiny_spec: Callable[..., Spec], tmp_path: Path) -> None:
    data = write_steps(tmp_path / "steps.safetensors", is_discrete=True)
    cloned = start(make_spec("BC", data, is_discrete=True), Options(tmp_path / "data")).folder
    document = dump_spec(tiny_spec("PPO"))["tiny"]
    document["agent"]["init_from"] = {"path": str(cloned), "parts": "actor"}
    session = Session(
        parse_spec({**document, "name": "tiny"})[0], RunFolder(tmp_path / "ppo", "tiny"), should_stop=lambda: True
    )
    session.run()
    own = session.agent.algorithm.net.actor.state_dict()
    saved = load_state(RunFolder(cloned, "tiny").model_file(0, 0, "best"))["modules"]["actor"]
    assert all(torch.equal(own[key], saved[key]) for key in own)
