"""Same seed, same result; stop anywhere, resume exactly: a grid of algorithms, nets, memories and envs."""

import csv
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from bench.faults.specs import ALGORITHMS, NAME, NETS, OTHERS, make_spec
from slm_lab.audit.difference import find_difference
from slm_lab.experiment import evaluation
from slm_lab.experiment.checkpoint.state import load_state
from slm_lab.experiment.control import Session
from slm_lab.results.folder import RunFolder
from slm_lab.spec.schema import Spec

# algorithms of the table, with other keys
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ActorCritic-n": ("ActorCritic", {"lam": None, "num_step_returns": 8}),
    "PPO-percentile": (
        "PPO",
        {
            "normalize_advantages": "percentile",
            "symlog": True,
            "clip_eps_spec": {"name": "linear_decay", "start_val": 0.3, "end_val": 0.0, "end_step": 2000},
        },
    ),
    # a target that is replaced at frames between two trainings
    "DQN-replace": ("DQN", {"training_frequency": 40}),
    "IQN": ("DQN", {"critic": {"kind": "implicit", "num_quantile": 4}}),
    "Rainbow": ("DoubleDQN", {"critic": {"kind": "categorical", "num_atom": 11}, "explore_var_spec": 0.0}),
    "TQC": (
        "SoftActorCritic",
        {"q_reduction": "mean", "num_critic": 3, "critic": {"kind": "quantile", "num_quantile": 5, "num_drop": 2}},
    ),
    "CrossQ-anneal": ("CrossQ", {"entropy_anneal": {"start_ratio": 0.9, "end_ratio": 0.1, "frames": 800}}),
}
SHARED: dict[str, Any] = {
    "type": "MLPNet",
    "hid_layers": [16],
    "shared": True,
    "batch_norm": True,
    "optim_spec": {"name": "RMSprop", "lr": 1e-3, "momentum": 0.5},
    "lr_scheduler_spec": {"name": "StepLR", "step_size": 5},
}
# a Tuple of three choices: its parts are called 0, 1 and 2
PARTS: dict[str, Any] = {
    "type": "DictNet",
    "hid_layers": [8],
    "encoders": {"0": {"type": "MLPNet", "hid_layers": [8], "batch_norm": True}},
    "actor_obs_keys": ["2", "0"],
}
RECURRENT: dict[str, Any] = {"type": "RecurrentNet", "cell_type": "LSTM", "rnn_hidden_size": 8, "seq_len": 8}
ARC: dict[str, Any] = {
    "type": "TorchArcNet",
    "arc": {"modules": {"body": {"Sequential": [{"LazyLinear": {"out_features": 16}}, {"Dropout": {"p": 0.1}}]}}},
    "optim_spec": {"name": "SGD", "lr": 1e-2, "momentum": 0.9},
    "lr_scheduler_spec": {"name": "LinearToZero", "frame": 4000},
}
IMAGE: dict[str, Any] = {
    "type": "ConvNet",
    "conv_hid_layers": [[4, 4, 2], [4, 3, 1]],
    "fc_hid_layers": [8],
    "normalize": True,
    "batch_norm": True,
}
GAME: dict[str, Any] = {"type": "ConvNet", "conv_hid_layers": [[4, 8, 4], [4, 4, 4]], "fc_hid_layers": [8]}
# in bfloat16 from the second layer on: the first reads vectors
DEEP: dict[str, Any] = {"type": "MLPNet", "hid_layers": [16, 16], "optim_spec": {"name": "Adam", "lr": 1e-3}}
NORMALIZED = {"name": "Pendulum-v1", "normalize_obs": True, "normalize_reward": True}
# lost lives, games that end between checkpoints, frames kept once, no seed at most games
BREAKOUT = {"name": "ALE/Breakout-v5", "num_envs": 2, "max_frame": 480, "max_t": 90, "kwargs": {"life_loss_info": True}}
BLACKJACK = {"name": "Blackjack-v1", "max_frame": 400}
MASKED = {"name": "probe/MaskedMulti-v0", "normalize_obs": True}


@dataclass(frozen=True)
class Case:
    """A spec, and the frames at which it is stopped."""

    algorithm: str
    net: str | dict[str, Any] = "MLP"
    env: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    # before anything was learned, in the middle of a rollout, and right after an update
    stops: tuple[int, ...] = (4, 300, 640)

    @property
    def spec(self) -> Spec:
        name, keys = VARIANTS.get(self.algorithm, (self.algorithm, {}))
        meta = {"rigorous_eval": 2, "eval_frequency": 350, "checkpoint_frequency": 10_000_000, **self.meta}
        return make_spec(name, self.net, self.env, meta, keys, self.memory)


EPISODES = {"name": "OnPolicyReplay"}
GRID: dict[str, Case] = {
    **{name: Case(name) for name in (*ALGORITHMS, *OTHERS, *VARIANTS)},
    "Rainbow": Case("Rainbow", {"type": "DuelingMLPNet", "hid_layers": [16], "noisy": True}),
    "TQC": Case("TQC", {"type": "SimbaNet", "width": 8}, {"name": "Pendulum-v1"}),
    "DQN-replace": Case("DQN-replace", {**NETS["MLP"], "update_frequency": 30}),
    **{f"{name}, TorchArcNet": Case(name, ARC) for name in ("Reinforce", "ActorCritic")},
    **{f"{name}, shared": Case(name, SHARED) for name in ("ActorCritic", "SIL")},
    **{f"{name}, RecurrentNet": Case(name, RECURRENT) for name in ("Reinforce", "ActorCritic", "PPO", "VanillaDQN")},
    **{f"{name}, parts": Case(name, PARTS, BLACKJACK) for name in ("ActorCritic", "SoftActorCritic")},
    **{f"{name}, normalised": Case(name, env=NORMALIZED, stops=(148, 300, 752)) for name in ("PPO", "SoftActorCritic")},
    **{f"{name}, bf16": Case(name, DEEP, meta={"precision": "bf16"}) for name in ("PPO", "SoftActorCritic", "CrossQ")},
    "PPO, LunarLander": Case("PPO", env={"name": "LunarLander-v3", "max_t": 150}),
    "PPO, a worker": Case(
        "PPO", env={"name": "Acrobot-v1", "num_envs": 1, "max_t": 60, "num_workers": 1}, stops=(300,)
    ),
    "PPO, two workers": Case("PPO", env={"name": "Hopper-v5", "num_workers": 2}, stops=(300,)),
    "ActorCritic, episodes": Case("ActorCritic", env={"name": "probe/MultiAction-v0"}, memory=EPISODES),
    "Reinforce, episodes": Case("Reinforce", env={"normalize_obs": True, "clip_reward": [-1, 1]}, memory=EPISODES),
    "ActorCritic, images": Case("ActorCritic", IMAGE, {"name": "probe/Image-v0", "max_frame": 480}, stops=(200, 444)),
    "DQN, Atari": Case("DQN", GAME, BREAKOUT, meta={"rigorous_eval": 0, "checkpoint_frequency": 100}, stops=(250,)),
    "PPO, Atari": Case("PPO", GAME, BREAKOUT, meta={"rigorous_eval": 0, "checkpoint_frequency": 100}, stops=(250,)),
    **{f"{name}, masks": Case(name, env=MASKED) for name in ("PPO", "DoubleDQN", "SoftActorCritic")},
    "DQN, masks, RecurrentNet": Case("DQN", "RNN", MASKED),
    "PPOSIL, masks, two workers": Case("PPOSIL", env={**MASKED, "num_workers": 2}, stops=(300,)),
    "PPO, hybrid actions": Case("PPO", env={"name": "probe/HybridAction-v0"}),
    "ActorCritic, hybrid actions, two workers": Case(
        "ActorCritic", env={"name": "probe/HybridAction-v0", "num_workers": 2}, stops=(300,)
    ),
    # not stopped at all: the same seed again
    **{f"{name}, again": Case(name, stops=()) for name in ("PPO", "DQN", "SoftActorCritic")},
}
# what differs from another case only in a part that others have too
SLOW = {
    *("ActorCritic, TorchArcNet", "SIL, shared", "Reinforce, RecurrentNet", "ActorCritic, RecurrentNet", "PPO, Atari"),
    "SoftActorCritic, masks",
}


def train(spec: Spec, path: Path, stops: tuple[int, ...] = ()) -> Path:
    """Train to the end, stopping and resuming in a new session at each of some frames."""
    for stop in (*stops, spec.env.max_frame):
        session = Session(spec, RunFolder(path, spec.name), 0, 0, lambda _: None, lambda: False)
        session.should_stop = lambda stop=stop, session=session: session.frame >= stop  # type: ignore[misc]
        session.run()
    return path


@pytest.fixture(scope="module")
def train_whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Trains a case without a stop, once for all tests."""
    done: dict[str, Path] = {}

    def get(name: str) -> Path:
        name = name.removesuffix(", again")
        if name not in done:
            done[name] = train(GRID[name].spec, tmp_path_factory.mktemp("whole"))
        return done[name]

    return get


def rows(path: Path, kind: str = "train") -> list[dict[str, str]]:
    with RunFolder(path, NAME).table_file(0, 0, kind).open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in GRID]
)
def test_a_stopped_run_ends_bit_for_bit_like_a_whole_one(
    name: str, train_whole: Callable[[str], Path], tmp_path: Path
) -> None:
    whole, stopped = train_whole(name), train(GRID[name].spec, tmp_path, GRID[name].stops)
    assert find_difference(whole, stopped, NAME) is None
    assert len(rows(whole)) >= 4
    if "Atari" in name:
        env = load_state(RunFolder(whole, NAME).resume_file(0, 0))["env"]
        assert env["num_episode"] >= 4
        assert (env["origin"] == 0).all()


def test_another_seed_gives_another_run(train_whole: Callable[[str], Path], tmp_path: Path) -> None:
    other = train(GRID["PPO"].spec.replace(meta={"seed": 1}), tmp_path)
    assert find_difference(train_whole("PPO"), other, NAME) is not None


@pytest.mark.parametrize(
    ("algorithm", "net"),
    [
        pytest.param(*case, marks=[] if case[0] == "DQN" else pytest.mark.slow)
        for case in [
            ("DQN", "MLP"),
            ("PPO", "MLP"),
            ("ActorCritic", SHARED),
            ("ActorCritic", ARC),
            ("SoftActorCritic", "MLP"),
            ("CrossQ", "MLP"),
            ("SIL", "MLP"),
            ("TD3", "MLP"),
            ("PQN", "MLP"),
        ]
    ],
)
def test_a_compiled_run_repeats_and_resumes_exactly(algorithm: str, net: str | dict[str, Any], tmp_path: Path) -> None:
    spec = Case(algorithm, net, {"max_frame": 500}, meta={"compile": True}).spec
    whole = train(spec, tmp_path / "whole")
    assert find_difference(whole, train(spec, tmp_path / "stopped", stops=(300,)), NAME) is None
    # and it was not the plain engine all along
    plain = train(spec.replace(meta={"compile": False}), tmp_path / "plain")
    assert find_difference(whole, plain, NAME) is not None


def test_columns_of_normalisers(train_whole: Callable[[str], Path]) -> None:
    table = rows(train_whole("PPO, normalised"))
    assert list(table[0])[-2:] == ["obs_norm_shift", "reward_norm_std"]
    assert [row["obs_norm_shift"] == "" for row in table] == [True] + [False] * (len(table) - 1)
    assert all(float(row["obs_norm_shift"]) > 0 for row in table[1:])
    assert all(float(row["reward_norm_std"]) > 1 for row in table)
    # evaluations have no such columns, nor has a run that normalises nothing
    assert "obs_norm_shift" not in rows(train_whole("PPO, normalised"), "eval")[0]
    assert not {"obs_norm_shift", "reward_norm_std"} & set(rows(train_whole("PPO"))[0])
    assert load_state(RunFolder(train_whole("PPO"), NAME).resume_file(0, 0))["agent"]["obs_normalizer"] is None


def test_evaluations_that_are_skipped_are_the_same_after_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # such a short run has not the steps for more than one
    monkeypatch.setattr(evaluation, "EVAL_SHARE", 0.3)
    spec = Case("PPO", env={"max_frame": 4000}, meta={"rigorous_eval": None, "eval_frequency": None}).spec
    whole = train(spec, tmp_path / "whole")
    assert find_difference(whole, train(spec, tmp_path / "stopped", stops=(204, 1000, 2404)), NAME) is None
    frames = [int(row["frame"]) for row in rows(whole, "eval")]
    # some of the twenty points are held, others are too dear
    assert 1 < len(frames) < 20
    assert all(frame % 200 == 0 for frame in frames)


def test_an_evaluation_that_is_cut_short_is_made_up_for(train_whole: Callable[[str], Path], tmp_path: Path) -> None:
    spec = GRID["PPO"].spec
    session = Session(spec, RunFolder(tmp_path, NAME), 0, 0, lambda _: None, lambda: False)
    # its envs are made when the first evaluation begins
    session.should_stop = lambda: session.evaluation.env is not None
    session.run()
    assert session.evaluation.is_owed
    assert not session.evaluation.tracker.rows
    assert find_difference(train_whole("PPO"), train(spec, tmp_path), NAME) is None
