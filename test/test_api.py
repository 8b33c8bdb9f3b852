"""Use from Python: trained agents that act on what an env returns, one observation or a batch."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

import slm_lab
from slm_lab.agent.algorithm.random import Random
from slm_lab.agent.registry import register_algorithm
from slm_lab.deploy.trained import TrainedAgent
from slm_lab.env.layout import flatten_obs
from slm_lab.lib.errors import LabError, SpecError
from slm_lab.results.folder import find_run_path
from slm_lab.spec.algorithm import AlgorithmSpec

pytestmark = pytest.mark.usefixtures("undrawn")
ENVIRON = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
SPACES: dict[str, gym.Space[Any]] = {
    "dict": spaces.Dict(
        {
            "picture": spaces.Box(0, 255, (1, 2, 2), np.uint8),
            "mode": spaces.Discrete(3, start=1),
            "arm": spaces.Dict({"angle": spaces.Box(-1.0, 1.0, (2,)), "on": spaces.MultiBinary(2)}),
        }
    ),
    "tuple": spaces.Tuple((spaces.Box(-1.0, 1.0, (3,)), spaces.MultiDiscrete([2, 3]))),
    "discrete": spaces.Discrete(5),
    "picture": spaces.Box(0, 255, (1, 4, 4), np.uint8),
}


class ShapeEnv(gym.Env[Any, Any]):
    """Random observations of one of the spaces above; every move earns its first number."""

    def __init__(self, kind: str) -> None:
        self.observation_space = SPACES[kind]
        self.action_space = spaces.MultiDiscrete([2, 3], start=[0, 5])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observation_space.sample(), float(action[0]), self.t >= 8, False, {}


gym.register("Shape-v0", entry_point=f"{__name__}:ShapeEnv")


def train(path: Path, source: str = "ppo_cartpole", **changes: Any) -> TrainedAgent:
    """An agent that has hardly learned anything."""
    short = {"env__max_frame": 600, "meta__max_session": 1, "meta__compile": False, "meta__final_eval": 0}
    changes = {**short, **changes}
    return slm_lab.load_agent(slm_lab.run(slm_lab.load(source, **changes), path, log_level="ERROR").folder)


def in_batch(space: gym.Space[Any], observations: list[Any]) -> Any:
    """Observations as a gymnasium vector env returns them."""
    out: Any = create_empty_array(space, len(observations))
    return concatenate(space, observations, out)


@pytest.mark.parametrize("kind", SPACES)
def test_observations_of_any_structure_one_or_many(tmp_path: Path, kind: str) -> None:
    agent = train(tmp_path, env__name="Shape-v0", env__kwargs={"kind": kind})
    env = gym.make("Shape-v0", kind=kind)
    obs, _ = env.reset(seed=1)
    observations, actions = [], []
    for _ in range(8):
        action = agent.act(obs)
        assert env.action_space.contains(action)
        # what training sees: the very numbers of gymnasium's own wrapper
        flat: Any = obs if kind == "picture" else spaces.flatten(env.observation_space, obs)
        seen = agent.agent.act(flat[None]).action.cpu().numpy()
        assert np.array_equal(seen[0] + [0, 5], action)
        observations.append(obs)
        actions.append(action)
        obs = env.step(action)[0]
    assert agent.observation_space == env.observation_space
    assert np.array_equal(agent.act(in_batch(env.observation_space, observations)), np.stack(actions))


def test_actions_are_those_of_the_env(tmp_path: Path) -> None:
    agent = train(tmp_path / "a")
    assert type(agent.act(np.zeros(4))) is int
    envs = gym.make_vec("CartPole-v1", 3, vectorization_mode="sync")
    actions = agent.act(envs.reset(seed=0)[0])
    assert envs.action_space.contains(actions)
    agent = train(tmp_path / "b", "ppo_pendulum")
    action = agent.act([1.0, 0.0, 0.5])
    assert gym.make("Pendulum-v1").action_space.contains(action)
    assert np.allclose(agent.act([[1.0, 0.0, 0.5]] * 2), [action, action])


def test_sampling_uses_the_exploration_of_the_end_of_training(tmp_path: Path) -> None:
    agent = train(tmp_path / "a")
    obs = np.zeros((200, 4), np.float32)
    assert set(agent.act(obs, deterministic=False).tolist()) == {0, 1}
    assert len(set(agent.act(obs).tolist())) == 1
    # epsilon falls from 1 to 0, so that nothing is left to chance at the end
    decay = {"name": "linear_decay", "start_val": 1.0, "end_val": 0.0, "start_step": 0, "end_step": 600}
    small = {"agent__algorithm__training_start_step": 32, "agent__algorithm__explore_var_spec": decay}
    agent = train(tmp_path / "b", "dqn_boltzmann_cartpole", **small)
    assert np.array_equal(agent.act(obs, deterministic=False), agent.act(obs))


def test_a_recurrent_agent_keeps_its_state_until_it_is_reset(tmp_path: Path) -> None:
    agent = train(tmp_path, "ppo_gru_cartpole_hidden", env__max_frame=1200)
    rng = np.random.default_rng(0)
    steps = rng.normal(size=(6, 2, 2)).astype(np.float32)

    def replay(*, stop: int = 6) -> np.ndarray[Any, Any]:
        """The hidden state of each env, stepped alone."""
        carries = []
        for env in range(2):
            agent.reset()
            for t in range(stop):
                agent.act(steps[t, env])
            carries.append(agent._carry)
        return np.concatenate([carry.cpu().numpy() for carry in carries if carry is not None])

    alone = replay()
    assert np.abs(alone).max() > 0
    agent.reset()
    for step in steps:
        agent.act(step)
    assert agent._carry is not None
    assert np.allclose(agent._carry.cpu().numpy(), alone, atol=1e-5)
    agent.reset(np.array([True, False]))
    after = agent._carry.cpu().numpy()
    assert not after[0].any()
    assert np.allclose(after[1], alone[1], atol=1e-5)
    with pytest.raises(LabError, match=r"hidden state is that of 2 env\(s\), not of 1; call reset\(\)"):
        agent.act(steps[0, 0])


@pytest.mark.parametrize(
    ("kind", "obs", "message"),
    [
        ("dict", [1, 2], "observation: expected a dict with the keys arm, mode, picture"),
        ("dict", {"mode": 1}, "expected a dict with the keys"),
        ("tuple", (1,), "expected a tuple of 2 parts"),
        ("tuple", (np.zeros(4), np.zeros(2)), r"part '0' of the observation has the shape \(4,\); expected \(3,\), or"),
        ("tuple", (np.zeros((4, 3)), np.zeros((5, 2), int)), "batches of different size: 0 4, 1 5"),
        ("tuple", (np.zeros((4, 3)), np.zeros(2, int)), r"part '1' of the observation has the shape \(2,\)"),
        ("picture", np.zeros((210, 160, 3)), r"has the shape \(210, 160, 3\); expected \(1, 4, 4\), or \(N, 1, 4, 4\)"),
    ],
)
def test_an_observation_that_does_not_fit_is_named(kind: str, obs: Any, message: str) -> None:
    with pytest.raises(LabError, match=message):
        flatten_obs(SPACES[kind], obs)


# --- modules of one's own

SCRIPT = """
from typing import Literal

import gymnasium as gym
import slm_lab
from gymnasium.envs.classic_control import CartPoleEnv
from slm_lab.agent.algorithm.random import Random
from slm_lab.agent.registry import register_algorithm
from slm_lab.lib.errors import LabError
from slm_lab.spec.algorithm import AlgorithmSpec

class OwnEnv(CartPoleEnv):
    pass

class OwnSpec(AlgorithmSpec):
    name: Literal["Own"] = "Own"

class Own(Random):
    pass

gym.register("Own-v0", entry_point=OwnEnv)
register_algorithm("Own", OwnSpec, Own)

def train(call=slm_lab.run, imports=(), **changes):
    env = {"name": "CartPole-v1", "max_frame": 100, **changes.pop("env", {})}
    net = {"type": "MLPNet", "hid_layers": [4]}
    agent = {"algorithm": {"name": "Random"}, "memory": {"name": "OnPolicyReplay"}, "net": net}
    agent |= changes.pop("agent", {})
    spec = {"name": "own", "agent": agent, "env": env, "meta": {"max_session": 2, "log_frequency": 50}, **changes}
    try:
        print("score", call(spec, "data", imports, "ERROR").score > 0)
    except LabError as error:
        print(type(error).__name__, error)

if __name__ == "__main__":
    train(env={"name": "Own-v0"})
    train(agent={"algorithm": {"name": "Own"}})
    train(slm_lab.search, env={"name": "Own-v0"}, search={"agent.algorithm.gamma__uniform": [0.9, 0.99]})
    import own_module
    train(agent={"algorithm": {"name": "Other"}})
    train(agent={"algorithm": {"name": "Other"}}, env={"name": "Own-v0"}, imports=["own_script"])
"""
OWN_MODULE = """
from typing import Literal

from slm_lab.agent.algorithm.random import Random
from slm_lab.agent.registry import register_algorithm
from slm_lab.spec.algorithm import AlgorithmSpec

class OtherSpec(AlgorithmSpec):
    name: Literal["Other"] = "Other"

register_algorithm("Other", OtherSpec, Random)
"""


def test_what_only_a_script_knows_is_refused_for_session_processes(tmp_path: Path) -> None:
    (tmp_path / "own_script.py").write_text(SCRIPT + "\nimport own_module\n")
    (tmp_path / "own_module.py").write_text(OWN_MODULE)
    done = subprocess.run(
        [sys.executable, "own_script.py"], cwd=tmp_path, env=ENVIRON, capture_output=True, text=True, check=False
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    refused = (
        "is registered by your script (__main__), which the processes of sessions do not import; "
        "move it to a module, such as my_module.py, and pass imports=['my_module'], or --import my_module"
    )
    assert lines == [
        f"EnvError env.name: 'Own-v0' {refused}",
        f"SpecError agent.algorithm.name: OwnSpec {refused}",
        f"EnvError env.name: 'Own-v0' {refused}",
        "SpecError agent.algorithm.name: OtherSpec is registered by own_module, which the processes of sessions do not "
        "import; pass imports=['own_module'], or --import own_module",
        "score True",
    ]
    # nothing is written before that
    assert len(list((tmp_path / "data").iterdir())) == 1


@pytest.fixture(scope="module")
def random_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of random play."""
    agent = {"algorithm": {"name": "Random"}, "memory": {"name": "OnPolicyReplay"}}
    spec = {
        "name": "random",
        "agent": agent | {"net": {"type": "MLPNet", "hid_layers": [4]}},
        "env": {"name": "CartPole-v1", "max_frame": 100},
        "meta": {"log_frequency": 50, "max_session": 1},
    }
    return slm_lab.run(spec, tmp_path_factory.mktemp("data"), log_level="ERROR").folder


@pytest.mark.parametrize(("known", "unknown"), [("Random", "Mine"), ("CartPole-v1", "Mine-v0"), ("MLPNet", "MineNet")])
@pytest.mark.parametrize("use", [slm_lab.load_agent, slm_lab.resume])
def test_the_modules_a_run_was_started_with_are_named(
    random_run: Path, tmp_path: Path, known: str, unknown: str, use: Callable[[Path], Any]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(random_run, folder)
    # as in runs of older versions, whose agents need the env
    next(folder.glob("info/*_spaces.json")).unlink()
    for file in folder.glob("*_spec.yaml"):
        file.write_text(re.sub(rf": {known}$", f": {unknown}", file.read_text(), flags=re.M))
    file = folder / "info" / "random_provenance.json"
    facts = json.loads(file.read_text()) | {"imports": ["my.mine", "json", "; rm x", 3, "other"]}
    with pytest.raises(LabError, match=unknown) as caught:
        use(folder)
    assert "--import my.mine" not in str(caught.value)
    file.write_text(json.dumps(facts))
    with pytest.raises(LabError, match=unknown) as caught:
        use(folder)
    words = "--import my.mine --import other"
    assert str(caught.value).endswith(f"The run was started with {words}: run again with {words}")


@pytest.mark.parametrize(
    "inside",
    [
        "random_spec.yaml",
        "info/random_t0_s0_session_df_train.csv",
        "model/random_t0_s0_ckpt-best_net_model.safetensors",
    ],
)
def test_a_run_may_be_named_by_any_file_in_it(random_run: Path, inside: str) -> None:
    file = random_run / inside
    assert slm_lab.load_agent(file).spec.name == "random"
    assert find_run_path(str(file), Path("elsewhere")) == random_run
    assert find_run_path(f"{random_run.name}/{inside}", random_run.parent) == random_run
    assert find_run_path(str(file.with_name("*random*" + file.suffix)), Path("elsewhere")) == random_run
    assert find_run_path(str(file.parent), Path("elsewhere")) == random_run


def test_a_spec_beside_a_folder_does_not_make_it_a_run(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "my_spec.yaml").touch()
    assert find_run_path(str(tmp_path / "data"), tmp_path) == tmp_path / "data"


def test_keys_without_their_name_are_refused_when_registered() -> None:
    class Nameless(AlgorithmSpec):
        name: str = "Nameless"

    with pytest.raises(SpecError, match='Nameless: its keys need `name: Literal\\["Mine"\\] = "Mine"`'):
        register_algorithm("Mine", Nameless, Random)


@pytest.mark.parametrize("callbacks", [slm_lab.Callback(), [slm_lab.Callback], [3]])
def test_what_is_no_callback_is_refused_before_anything_is_written(tmp_path: Path, callbacks: Any) -> None:
    spec = slm_lab.load("ppo_cartpole", env__max_frame=400)
    with pytest.raises(LabError, match=r"^callbacks: a list of slm_lab\.Callback objects expected"):
        slm_lab.run(spec, tmp_path, callbacks=callbacks)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", [slm_lab.run, slm_lab.build, slm_lab.search])
def test_a_name_in_place_of_a_spec_is_refused(call: Callable[..., Any]) -> None:
    with pytest.raises(SpecError, match=r"^spec: a spec or a dict expected, got 'ppo_cartpole'; slm_lab\.load"):
        call("ppo_cartpole")
