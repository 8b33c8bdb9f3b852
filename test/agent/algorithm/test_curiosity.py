"""A bonus for new observations: what it is, exact runs, compiled steps, and an env that is not solved without it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.audit.difference import find_difference
from slm_lab.experiment.control import Session
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.schema import Spec

PPO = {"name": "PPO", "time_horizon": 56, "minibatch_size": 112, "training_epoch": 4, "entropy_coef_spec": 0.01}
A2C = {"name": "ActorCritic", "training_frequency": 8, "lam": 0.95}


def make_spec(algorithm: dict[str, Any], rnd: dict[str, Any] | None, **env: Any) -> Spec:
    raw = {
        "name": "tiny",
        "agent": {
            "algorithm": {**algorithm, "rnd": rnd},
            "memory": {"name": "OnPolicyBatchReplay"},
            "net": {"type": "MLPNet", "hid_layers": [64], "optim_spec": {"name": "Adam", "lr": 1e-3}},
        },
        "env": {"name": "probe/Lock-v0", "num_envs": 8, "max_frame": 16_000, **env},
        "meta": {"log_frequency": 4000, "rigorous_eval": 0, "final_eval": 0, "compile": False},
    }
    return parse_spec(raw)[0]


def train(spec: Spec, path: Path, *stops: int) -> Session:
    for stop in (*stops, spec.env.max_frame):
        session = Session(spec, RunFolder(path, "tiny"))
        session.should_stop = lambda stop=stop, session=session: session.frame >= stop  # type: ignore[misc]
        session.run()
    return session


def test_a_lock_is_opened_with_the_bonus_alone(tmp_path: Path) -> None:
    assert train(make_spec(PPO, None), tmp_path / "without").tracker.last("total_reward") == 0.0
    session = train(make_spec(PPO, {}), tmp_path / "with")
    assert session.tracker.last("total_reward") > 0.8
    bonus = [row[session.tracker.columns.index("rnd_bonus")] for row in session.tracker.rows]
    assert bonus[-1] < 0.5 * bonus[0]


def test_what_was_seen_often_has_a_small_bonus(tmp_path: Path) -> None:
    session = train(make_spec(PPO, {}, max_frame=4000), tmp_path)
    algorithm: Any = session.agent.algorithm
    curiosity = algorithm.curiosity
    seen, unseen = np.eye(13, dtype=np.float32)[:1], np.full((1, 13), 1.0, np.float32)
    with torch.inference_mode():
        known, new = (float(curiosity.calc_error(curiosity.whiten(torch.from_numpy(obs)))) for obs in (seen, unseen))
    assert new > 20 * known


class Corridor(gym.Env[np.ndarray, int]):
    """Eight places in a row; every step goes on to the next, and the last one ends the episode."""

    observation_space = spaces.Box(0.0, 1.0, (8,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self.place = 0
        return np.eye(8, dtype=np.float32)[0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.place += 1
        return np.eye(8, dtype=np.float32)[self.place], 0.0, self.place == 7, False, {}


def test_the_last_observation_of_an_episode_becomes_known_too(tmp_path: Path) -> None:
    gym.register("test/Corridor-v0", entry_point=lambda **_: Corridor())
    session = train(make_spec(PPO, {"batch_size": 56}, name="test/Corridor-v0"), tmp_path)
    algorithm: Any = session.agent.algorithm
    curiosity = algorithm.curiosity
    with torch.inference_mode():
        error = curiosity.calc_error(curiosity.whiten(torch.eye(8)))
    gym.registry.pop("test/Corridor-v0")
    # only the first place is never a successor
    assert error[7] < 0.1 * error[0]
    assert error[7] < 3 * error[1:7].max()


@pytest.mark.parametrize("algorithm", [PPO, A2C], ids=["PPO", "A2C"])
def test_a_stopped_run_ends_like_a_whole_one(algorithm: dict[str, Any], tmp_path: Path) -> None:
    spec = make_spec(algorithm, {"coef": 0.3}, max_frame=2000, normalize_obs=True)
    train(spec, tmp_path / "whole")
    train(spec, tmp_path / "stopped", 8, 504, 1200)
    assert find_difference(tmp_path / "whole", tmp_path / "stopped", "tiny") is None
    # and the bonus was learned from
    train(make_spec(algorithm, None, max_frame=2000, normalize_obs=True), tmp_path / "without")
    assert find_difference(tmp_path / "whole", tmp_path / "without", "tiny") is not None


def test_the_prediction_follows_the_schedule_of_the_learning_rate(lab: Any) -> None:
    raw = {**make_spec(PPO, {}, max_frame=2000).model_dump(mode="json", serialize_as_any=True), "name": "tiny"}
    raw["agent"]["net"]["lr_scheduler_spec"] = {"name": "LinearToZero"}
    agent = lab.train(parse_spec(raw)[0], 1000).agent
    optimizer = agent.algorithm.curiosity.learner.optimizer
    assert optimizer.lr == agent.algorithm.lr < 0.6e-3


def test_features_do_not_begin_small_like_the_output_of_an_actor(lab: Any) -> None:
    stds = []
    for own in ({}, {"init_std": 0.01}, {"actor": {"init_std": 0.01, "out_layer_activation": "tanh"}}):
        raw = {**make_spec(PPO, {}).model_dump(mode="json", serialize_as_any=True), "name": "tiny"}
        raw["agent"]["net"] |= {"init_fn": "orthogonal_", **own}
        curiosity = lab.build(parse_spec(raw)[0])[0].algorithm.curiosity
        obs = torch.randn(256, 13, generator=torch.Generator().manual_seed(0))
        stds += [float(net(obs).detach().std()) for net in (curiosity.random.net, curiosity.learner.net)]
    assert min(stds) > 0.5 * max(stds)


CONV = {"type": "ConvNet", "conv_hid_layers": [[4, 3, 2]], "fc_hid_layers": [8]}
IMAGE_NETS: dict[str, Callable[[bool], dict[str, Any]]] = {
    "ConvNet": lambda normalize: {**CONV, "normalize": normalize},
    "DictNet": lambda normalize: {
        "type": "DictNet",
        "hid_layers": [8],
        "encoders": {"obs": {**CONV, "normalize": normalize}},
    },
}


@pytest.mark.parametrize("kind", IMAGE_NETS)
def test_whitened_images_are_not_divided_by_255(kind: str, lab: Any) -> None:
    errors = []
    for normalize in (False, True):
        raw = {**make_spec(PPO, {}).model_dump(mode="json", serialize_as_any=True), "name": "tiny"}
        raw["agent"]["net"] = IMAGE_NETS[kind](normalize)
        raw["env"]["name"] = "probe/Image-v0"
        agent, env = lab.build(parse_spec(raw)[0])
        curiosity, obs = agent.algorithm.curiosity, agent.encode(env.reset())
        curiosity.stats.update(obs.numpy())
        errors.append(curiosity.calc_error(curiosity.whiten(obs)).tolist())
    assert errors[0] == errors[1]
