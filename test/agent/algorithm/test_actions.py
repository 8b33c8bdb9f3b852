"""Every kind of action space trains with the algorithms that can take it; the others say so in one line."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from slm_lab.env.probe import ProbeEnv
from slm_lab.lib.errors import LabError

INF = np.inf
SPACES: dict[str, gym.Space[Any]] = {
    "MultiDiscrete": spaces.MultiDiscrete([2, 3]),
    "MultiDiscreteTable": spaces.MultiDiscrete(np.array([[2, 3], [2, 2]])),
    "MultiDiscreteStart": spaces.MultiDiscrete([2, 3], start=[5, -1]),
    "MultiBinary": spaces.MultiBinary(3),
    "MultiBinaryTable": spaces.MultiBinary([2, 2]),
    "BoxUnequal": spaces.Box(np.array([-1, 0, -5], np.float32), np.array([3, 0.5, 20], np.float32)),
    "BoxInfinite": spaces.Box(-INF, INF, (2,), np.float32),
    "BoxHalf": spaces.Box(np.array([5, -INF, -1], np.float32), np.array([INF, -2, 1], np.float32)),
    "BoxTable": spaces.Box(-2.0, 1.0, (2, 2), np.float64),
    "BoxWhole": spaces.Box(0, 255, (2,), np.uint8),
    "BoxNumber": spaces.Box(-1.0, 1.0, (), np.float32),
}
MANY = spaces.MultiDiscrete([100, 100])
REPLAY: dict[str, Any] = {"name": "Replay", "batch_size": 8, "max_size": 200}
ALGORITHMS: dict[str, tuple[dict[str, Any], Any]] = {
    "PPO": ({"name": "PPO", "time_horizon": 8, "minibatch_size": 16}, "OnPolicyBatchReplay"),
    "ActorCritic": ({"name": "ActorCritic", "training_frequency": 8}, "OnPolicyBatchReplay"),
    "DQN": ({"name": "DQN", "training_start_step": 16, "explore_var_spec": 0.1}, REPLAY),
    "SARSA": ({"name": "SARSA", "training_frequency": 8, "explore_var_spec": 0.1}, "OnPolicyBatchReplay"),
    "SoftActorCritic": ({"name": "SoftActorCritic", "training_start_step": 16, "training_iter": 1}, REPLAY),
    "CrossQ": ({"name": "CrossQ", "training_start_step": 16, "training_iter": 1}, REPLAY),
}
DISCRETE = [name for name in SPACES if name.startswith("Multi")]
BOX = [name for name in SPACES if name.startswith("Box")]
PAIRS = [
    *((which, name) for which in ("PPO", "ActorCritic") for name in SPACES),
    *(("DQN", name) for name in DISCRETE),
    *(("SoftActorCritic", name) for name in (*BOX, "MultiDiscrete")),
    ("SARSA", "MultiBinary"),
    ("CrossQ", "BoxUnequal"),
]


class Strict(ProbeEnv):
    """Refuses actions that are not of its space."""

    length = 3

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()
        self.action_space = space

    def reward(self, action: Any) -> float:
        assert self.action_space.contains(np.asarray(action)), (action, self.action_space)
        return 0.01 * float(np.sum(action))


for name, space in {**SPACES, "Many": MANY, "Text": spaces.Text(3), "Dict": spaces.Dict(a=MANY)}.items():
    if f"test/{name}Action-v0" not in gym.registry:
        gym.register(f"test/{name}Action-v0", entry_point=lambda kind=space, **_: Strict(kind))


def build_spec(lab, which: str, name: str, **changes: Any) -> Any:
    algorithm, memory = ALGORITHMS[which]
    return lab.spec(f"test/{name}Action-v0", {**algorithm, **changes}, memory=memory)


@pytest.mark.parametrize(("which", "name"), PAIRS)
def test_actions_of_every_kind(lab, which: str, name: str) -> None:
    trained = lab.train(build_spec(lab, which, name), 36)
    assert trained.metrics
    deterministic = trained.agent.act(np.zeros((3, 1), np.float32)).action.numpy()
    mapped = trained.env.action_map(deterministic)
    assert all(trained.env.action_space.contains(np.asarray(action)) for action in mapped)


@pytest.mark.parametrize(
    ("which", "name", "changes", "match"),
    [
        ("DQN", "BoxUnequal", {}, "agent.algorithm.name: DQN values each of a number of actions"),
        ("SARSA", "BoxInfinite", {}, "agent.algorithm.name: SARSA values each of a number of actions"),
        ("DQN", "Many", {}, "10,000 combinations, more than the 4,096 .* use PPO or ActorCritic"),
        ("SoftActorCritic", "Many", {}, "10,000 combinations"),
        ("PPO", "Text", {}, "env.name: actions of Text are not supported"),
    ],
)
def test_what_does_not_go_together_is_said_in_one_line(
    lab, which: str, name: str, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(LabError, match=match) as caught:
        lab.build(build_spec(lab, which, name, **changes))
    assert "\n" not in str(caught.value)


def test_actions_beyond_one_bound_can_be_told_apart(lab) -> None:
    """SAC's actions lie within [-1, 1]: around 0 all of them would be the bound 5, and nothing could be learned."""
    agent, env = lab.build(build_spec(lab, "SoftActorCritic", "BoxHalf"))
    obs = np.zeros((50, 1), np.float32)
    action = env.action_map(agent.act(obs, explore=True).action.numpy())
    assert len(np.unique(action[:, 0])) == len(np.unique(action[:, 1])) == 50
    assert action[:, 0].min() >= 5
    assert action[:, 1].max() <= -2
