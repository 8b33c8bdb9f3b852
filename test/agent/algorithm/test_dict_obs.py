"""Observations with named parts: what must be read is read, what must not be seen is not."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from slm_lab.agent.agent import Agent
from slm_lab.env.probe import ProbeEnv
from slm_lab.lib.errors import SpecError

SIDE = 8
CONV: dict[str, Any] = {
    "type": "ConvNet",
    "conv_hid_layers": [[4, 4, 2]],
    "fc_hid_layers": [16],
    "normalize": True,
}
DICT_NET: dict[str, Any] = {
    "type": "DictNet",
    "encoders": {"image": CONV, "vector": {"type": "MLPNet", "hid_layers": [8]}},
    "hid_layers": [16],
    "hid_layers_activation": "tanh",
}
OPTIM: dict[str, Any] = {"optim_spec": {"name": "Adam", "lr": 0.01}}
REPLAY: dict[str, Any] = {"name": "Replay", "batch_size": 16, "max_size": 2000}
PPO: dict[str, Any] = {"name": "PPO", "gamma": 0.9, "time_horizon": 8, "minibatch_size": 32, "training_epoch": 4}
A2C: dict[str, Any] = {"name": "ActorCritic", "gamma": 0.9, "training_frequency": 4}
SOFT: dict[str, Any] = {"gamma": 0.9, "training_start_step": 32, "training_iter": 4}
Q: dict[str, Any] = {"gamma": 0.9, "explore_var_spec": 0.3}
IMITATION: dict[str, Any] = {"training_iter": 1, "sil_memory": {"name": "Replay", "batch_size": 16}}
# name -> algorithm, memory, net keys
TABLE: dict[str, tuple[dict[str, Any], Any, dict[str, Any]]] = {
    "PPO": (PPO, "OnPolicyBatchReplay", {}),
    "PPO-shared": (PPO, "OnPolicyBatchReplay", {"shared": True}),
    "ActorCritic": (A2C, "OnPolicyBatchReplay", {}),
    "Reinforce": ({"name": "Reinforce", "training_frequency": 4}, "OnPolicyBatchReplay", {}),
    "SIL": ({**A2C, **IMITATION, "name": "SIL"}, "OnPolicyBatchReplay", {}),
    "PPOSIL": ({**PPO, **IMITATION, "name": "PPOSIL"}, "OnPolicyBatchReplay", {}),
    "SARSA": ({**Q, "name": "SARSA", "training_frequency": 4}, "OnPolicyBatchReplay", {}),
    "DQN": ({**Q, "name": "DQN", "training_start_step": 32}, REPLAY, {"polyak_coef": 0.2}),
    "DoubleDQN": ({**Q, "name": "DoubleDQN", "training_start_step": 32}, REPLAY, {"polyak_coef": 0.2}),
    "SoftActorCritic": ({**SOFT, "name": "SoftActorCritic"}, REPLAY, {}),
    "CrossQ": ({**SOFT, "name": "CrossQ"}, REPLAY, {"critic_batch_norm": True}),
}


class Picture(ProbeEnv):
    """Four actions, two questions: the picture answers one (bright on the left?), the vector the other (its sign)."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(4)
        self.observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (1, SIDE, SIDE), np.uint8),
                "vector": spaces.Box(-1, 1, (3,), np.float32),
                "answer": spaces.Box(-1, 1, (1,), np.float32),
            }
        )  # type: ignore[assignment]

    def begin(self) -> None:
        self.is_left, self.is_up = self.np_random.integers(2, size=2).astype(bool)

    @property
    def answer(self) -> bool:
        """What neither part alone tells."""
        return bool(self.is_left == self.is_up)

    def obs(self) -> Any:
        image = np.zeros((1, SIDE, SIDE), np.uint8)
        image[:, :, : SIDE // 2] = 255 * self.is_left
        image[:, :, SIDE // 2 :] = 255 * (not self.is_left)
        sign = np.array([0.5, 1.0 if self.is_up else -1.0, 0.0], np.float32)
        return {"image": image, "vector": sign, "answer": np.array([1.0 if self.answer else -1.0], np.float32)}

    def reward(self, action: Any) -> float:
        return float(np.mean([action // 2 == self.is_left, action % 2 == self.is_up])) * 2 - 1


class ContinuousPicture(Picture):
    """The same, answered by the signs of two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reward(self, action: Any) -> float:
        truth = np.where([self.is_left, self.is_up], 0.5, -0.5)
        return -float(np.square(action - truth).sum())


class Told(Picture):
    """The reward is the answer, whatever is done."""

    def reward(self, action: Any) -> float:
        return 1.0 if self.answer else -1.0


for kind in (Picture, ContinuousPicture, Told):
    if f"test/{kind.__name__}-v0" not in gym.registry:
        gym.register(f"test/{kind.__name__}-v0", entry_point=lambda kind=kind, **_: kind())


def build_spec(lab, which: str, env: str = "Picture", **changes: Any) -> Any:
    algorithm, memory, net = TABLE[which]
    given = {"obs_keys": ["image", "vector"], **DICT_NET, **OPTIM, **net, **changes.pop("net", {})}
    given = {key: value for key, value in given.items() if value is not None}
    return lab.spec(f"test/{env}-v0", algorithm, memory=memory, net=given, num_envs=8, **changes)


def every_picture() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The four observations of the env, flat as an agent gets them, and both answers (4, 2)."""
    env = Picture()
    rows: list[Any] = []
    truth = np.array([(is_left, is_up) for is_left in (False, True) for is_up in (False, True)])
    for env.is_left, env.is_up in truth:
        rows.append(spaces.flatten(env.observation_space, env.obs()))
    return np.stack(rows).astype(np.float32), truth


def is_solved(agent: Agent) -> bool:
    obs, truth = every_picture()
    action = agent.act(obs).action.numpy()
    given = action > 0 if action.ndim > 1 else np.stack([action // 2, action % 2], -1) == 1
    return bool((given == truth).all())


# --- learning


@pytest.mark.parametrize(
    ("which", "env", "num_frame"),
    [
        ("PPO", "Picture", 4_000),
        ("DQN", "Picture", 4_000),
        pytest.param("SoftActorCritic", "ContinuousPicture", 2_000, marks=pytest.mark.slow),
    ],
)
def test_what_must_be_read_is_read(lab, which: str, env: str, num_frame: int) -> None:
    """Neither the picture nor the vector alone tells what is right."""
    trained = lab.train(build_spec(lab, which, env), num_frame, until=is_solved)
    assert is_solved(trained.agent), trained.frame


@pytest.mark.parametrize("keys", [["image"], ["vector"]], ids=str)
def test_one_part_alone_is_not_enough(lab, keys: list[str]) -> None:
    encoders = {name: DICT_NET["encoders"][name] for name in keys}
    trained = lab.train(build_spec(lab, "PPO", net={"obs_keys": keys, "encoders": encoders}), 300, until=is_solved)
    assert not is_solved(trained.agent)
    obs, _ = every_picture()
    blind = obs.copy()
    blind[:, {"image": slice(1 + SIDE * SIDE, None), "vector": slice(1, 1 + SIDE * SIDE)}[keys[0]]] = 0
    blind[:, 0] = 0
    # what it does not see changes nothing
    np.testing.assert_array_equal(trained.agent.act(obs).action, trained.agent.act(blind).action)


# --- a critic that knows more

PRIVILEGED: dict[str, Any] = {
    "type": "MLPNet",
    "encoders": None,
    "obs_keys": None,
    "actor_obs_keys": ["vector"],
    "critic_obs_keys": ["answer", "vector"],
}


@pytest.mark.parametrize(
    ("which", "env"),
    [("PPO", "Picture"), ("ActorCritic", "Picture"), ("SoftActorCritic", "ContinuousPicture")],
)
def test_the_actor_is_blind_to_what_the_critic_is_told(lab, which: str, env: str) -> None:
    trained = lab.train(build_spec(lab, which, env, net=PRIVILEGED), 64)
    modules = trained.agent.algorithm.modules
    obs = torch.as_tensor(every_picture()[0]).requires_grad_()
    if which == "SoftActorCritic":
        param, value = modules["actor"](obs), modules["critic"](obs, torch.zeros(4, 2))
        target = modules["target_critic"](obs, torch.zeros(4, 2))
        assert seen(target, obs) == {"answer", "vector"}
    else:
        param, value = modules["net"](obs)
    assert seen(param, obs) == {"vector"}
    assert seen(value, obs) == {"answer", "vector"}


def seen(out: torch.Tensor, obs: torch.Tensor) -> set[str]:
    """Parts that an output depends on."""
    [grad] = torch.autograd.grad(out.square().sum(), obs, retain_graph=True)
    used = grad.abs().sum(0)
    end = 1 + SIDE * SIDE
    parts = {"answer": used[:1], "image": used[1:end], "vector": used[end:]}
    return {name for name, slopes in parts.items() if bool(slopes.any())}


def values(agent: Agent) -> np.ndarray[Any, Any]:
    """V of the four observations."""
    with torch.inference_mode():
        return agent.algorithm.modules["net"].value(torch.as_tensor(every_picture()[0])).numpy()


@pytest.mark.parametrize("is_told", [True, False])
def test_only_a_critic_that_is_told_knows_the_reward(lab, is_told: bool) -> None:
    """The reward is what `answer` says: V is -1 or 1 where it is seen, and 0 where it is not."""
    expected = every_picture()[0][:, 0] * is_told
    net = {**PRIVILEGED, "critic_obs_keys": ["answer"] if is_told else ["vector"]}

    def is_near(agent: Agent) -> bool:
        return bool(np.abs(values(agent) - expected).max() < 0.25)

    trained = lab.train(build_spec(lab, "PPO", "Told", net=net), 1_000, until=is_near if is_told else None)
    assert np.abs(values(trained.agent) - expected).max() < (0.25 if is_told else 0.5)


def test_critic_net_has_keys_of_its_own(lab) -> None:
    spec = build_spec(lab, "SoftActorCritic", "ContinuousPicture", net={"obs_keys": ["vector", "image"]})
    critic = spec.agent.net.model_copy(update={"obs_keys": ("answer", "image"), "encoders": {}})
    agent, env = lab.build(spec.model_copy(update={"agent": spec.agent.model_copy(update={"critic_net": critic})}))
    obs = torch.as_tensor(every_picture()[0]).requires_grad_()
    modules = agent.algorithm.modules
    assert seen(modules["actor"](obs), obs) == {"vector", "image"}
    assert seen(modules["critic"](obs, torch.zeros(4, 2)), obs) == {"answer", "image"}
    env.close()


# --- every algorithm


@pytest.mark.parametrize(
    ("which", "env"),
    [
        *((which, "Picture") for which in TABLE),
        ("SoftActorCritic", "ContinuousPicture"),
        ("CrossQ", "ContinuousPicture"),
    ],
)
def test_every_algorithm_trains_every_encoder_and_its_weights_load_exactly(lab, which: str, env: str) -> None:
    spec = build_spec(lab, which, env, normalize_obs=which == "ActorCritic")
    agent = lab.train(spec, 64).agent
    other, envs = lab.build(spec)
    envs.close()
    encoders = set()
    for name, module in agent.algorithm.modules.items():
        for key, parameter in module.named_parameters():
            if "encoders." in key:
                encoders.add(key.split("encoders.")[1][0])
                assert not torch.equal(parameter, other.algorithm.modules[name].get_parameter(key)), key
    assert len(encoders) == 2
    other.load_model_state(agent.model_state())
    for name, module in agent.algorithm.modules.items():
        loaded = other.algorithm.modules[name].state_dict()
        assert all(torch.equal(value, loaded[key]) for key, value in module.state_dict().items())
    obs, _ = every_picture()
    assert torch.equal(agent.act(obs).action, other.act(obs).action)


# --- mistakes


@pytest.mark.parametrize(
    ("which", "net", "match"),
    [
        (
            "PPO",
            {"obs_keys": ["imag"]},
            r"agent.net.obs_keys: the observation has no part 'imag'; did you mean 'image'",
        ),
        ("PPO", {"actor_obs_keys": ["vectr"]}, r"agent.net.actor_obs_keys: .* did you mean 'vector'\?"),
        (
            "PPO",
            {"critic_obs_keys": ["zzz"]},
            r"agent.net.critic_obs_keys: .* \(its parts: answer \(1,\), image \(1, 8",
        ),
        ("PPO", {"encoders": {"imag": CONV}}, r"agent.net.encoders: .* did you mean 'image'"),
        ("PPO", {"critic_encoders": {"pic": CONV}}, "agent.net.critic_encoders: the observation has no part 'pic'"),
        (
            "PPO",
            {"critic_obs_keys": ["answer"]},
            "agent.net.encoders.image: the net does not see this part, only answer",
        ),
        ("DQN", {**CONV, "encoders": None, "obs_keys": None}, "name one of them in obs_keys, or use DictNet"),
    ],
)
def test_names_that_are_no_part(lab, which: str, net: dict[str, Any], match: str) -> None:
    net = {key: value for key, value in net.items() if key != "encoders" or value is not None}
    drop = {"hid_layers": None, "encoders": None} if net.get("type") == "ConvNet" else {}
    with pytest.raises(SpecError, match=match) as caught:
        lab.build(build_spec(lab, which, net={**drop, **net}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("which", "net", "match"),
    [
        (
            "PPO-shared",
            {"actor_obs_keys": ["image"]},
            "with shared: true the actor has no net of its own for 'actor_obs_",
        ),
        ("DQN", {"critic_obs_keys": ["image"]}, "DQN has one net; give the key without prefix"),
        ("Reinforce", {"critic_obs_keys": ["image"]}, "Reinforce has no critic"),
        ("PPO", {"obs_keys": []}, "agent.net.obs_keys: a net that sees nothing cannot learn"),
        ("PPO", {"obs_keys": ["image", "image"]}, "names a part twice"),
        (
            "PPO",
            {"encoders": {"image": {"type": "RecurrentNet"}}},
            r"agent.net.encoders.image.type: unknown 'Recurrent",
        ),
        ("PPO", {"encoders": {"image": {**CONV, "norm": True}}}, "encoders.image.norm: unknown key; did you mean 'nor"),
    ],
)
def test_keys_that_make_no_sense(lab, which: str, net: dict[str, Any], match: str) -> None:
    with pytest.raises(SpecError, match=match):
        build_spec(lab, which, net=net)


class Robot(ProbeEnv):
    """What MuJoCo Playground gives: a state, and a privileged one for critics."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(2)
        part = spaces.Box(-1, 1, (3,), np.float32)
        self.observation_space = spaces.Dict({"privileged_state": part, "state": part})  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._draw(), {}

    def _draw(self) -> dict[str, Any]:
        return {key: self.np_random.uniform(-1, 1, 3).astype(np.float32) for key in ("privileged_state", "state")}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self._draw(), 1.0, True, False, {}


@pytest.mark.parametrize("which", ["PPO", "Reinforce", "SARSA", "DQN", "SoftActorCritic"])
def test_only_critics_see_the_privileged_state(lab, which: str) -> None:
    if "test/Robot-v0" not in gym.registry:
        gym.register("test/Robot-v0", entry_point=lambda **_: Robot())
    algorithm, memory, keys = TABLE[which]
    net = {"type": "MLPNet", "hid_layers": [8], **OPTIM, **keys}
    agent, env = lab.build(lab.spec("test/Robot-v0", algorithm, memory=memory, net=net))
    obs = torch.as_tensor(env.reset()).requires_grad_()
    modules = agent.algorithm.modules
    name = {"SoftActorCritic": "actor", "Reinforce": next(iter(modules))}.get(which, "net")
    out = modules[name](obs)
    param, *value = out if isinstance(out, tuple) else [out]
    if which == "SoftActorCritic":
        value = [modules["critic"](obs)]

    def is_seen(number: torch.Tensor) -> list[bool]:
        [grad] = torch.autograd.grad(number.square().sum(), obs, retain_graph=True)
        return [bool(grad[:, :3].any()), bool(grad[:, 3:].any())]

    assert is_seen(param) == [False, True]
    assert [is_seen(one) for one in value] == [[True, True]] * len(value)
    assert len(value) == (which in ("PPO", "SoftActorCritic"))
