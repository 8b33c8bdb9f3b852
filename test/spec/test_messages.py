"""What a wrong spec is told: one line per mistake, with its dotted path and the nearest valid choice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import yaml

from slm_lab.lib.errors import SpecError
from slm_lab.spec.algorithm import ReinforceSpec
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.net import NetSpec
from slm_lab.spec.problem import MAX_PROBLEMS
from slm_lab.spec.schema import ALGORITHM_SPECS, NET_SPECS
from slm_lab.spec.types import PositiveInt

Changes = dict[str, Any]
Make = Callable[..., dict[str, Any]]
Problems = Callable[..., list[str]]
ROWS = yaml.safe_load(Path(__file__).with_name("messages.yaml").read_text())


@pytest.mark.parametrize(
    ("changes", "names", "says"),
    [
        pytest.param(row["set"], row.get("of", "PPO"), row["says"], id=f"{title} {number}")
        for title, rows in ROWS.items()
        for number, row in enumerate(rows)
    ],
)
def test_messages(problems: Problems, changes: Changes, names: str | list[str], says: str | list[str]) -> None:
    for name in [names] if isinstance(names, str) else names:
        expected = [line.replace("{name}", name) for line in ([says] if isinstance(says, str) else says)]
        found = problems(name, changes)
        assert len(found) == len(expected), found
        for line, wanted in zip(found, expected, strict=True):
            start, is_cut, _ = wanted.partition("...")
            assert line.startswith(start) if is_cut else line == wanted


BORDER: list[tuple[str, Changes]] = [
    ("ActorCritic", {"agent.algorithm.action_policy": "boltzmann", "agent.algorithm.explore_var_spec": 1.0}),
    ("ActorCritic", {"env.num_envs": 8, "env.max_frame": 8, "env.num_workers": 8}),
    ("ActorCritic", {"agent.algorithm.num_step_returns": 5, "agent.algorithm.training_frequency": 5}),
    ("ActorCritic", {"agent.algorithm.num_step_returns": 6, "agent.memory.name": "OnPolicyReplay"}),
    ("PPO", {"agent.algorithm.clip_vloss": True}),
    ("DQN", {"agent.algorithm.training_start_step": 4999, "env.max_frame": 5000}),
    ("DQN", {"agent.memory": {"name": "PrioritizedReplay", "batch_size": 64, "max_size": 64, "alpha": 0.6}}),
    ("CrossQ", {"agent.critic_net": {"type": "MLPNet"}}),
    *((name, {"agent.net.polyak_coef": 0.1}) for name in ("DQN", "DoubleDQN", "SoftActorCritic")),
    *(
        (name, {"agent.net.type": f"Dueling{kind}"})
        for name in ("VanillaDQN", "DQN", "DoubleDQN", "SARSA")
        for kind in ("MLPNet", "ConvNet")
    ),
    # PQN learns from parallel envs: those of one are fewer than a minibatch
    *((name, {"env.num_envs": 4} if name == "PQN" else {}) for name in ALGORITHM_SPECS),
]


@pytest.mark.parametrize(("name", "changes"), BORDER)
def test_what_is_just_inside_the_border_is_accepted(make: Make, name: str, changes: Changes) -> None:
    spec, notes = parse_spec(make(name, changes))
    assert spec.agent.algorithm.name == name
    assert notes == ()


def test_thousands_of_mistakes_are_counted_and_the_first_shown(make: Make) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(make("PPO", {f"env.k{i}": 1 for i in range(3000)}))
    first, *lines = str(caught.value).splitlines()
    assert first == "spec has 3000 errors:"
    assert lines[0] == "  env.k0: unknown key"
    assert lines[MAX_PROBLEMS:] == [f"  ... and {3000 - MAX_PROBLEMS} more"]


def test_a_message_stays_on_its_line_whatever_the_key(problems: Problems) -> None:
    for key in ("a\nb", "\x1b[2Jx", "a\u2028b", "\x9bx", "k" * 10_000):
        (line,) = problems("PPO", {f"env.{key}": 1})
        assert line.isprintable()
        assert len(line) < 200
    (line,) = problems("PPO", {"agent.algorithm.name": "x\n\x1b[2J" + "y" * 10_000})
    assert line.isprintable()
    (line,) = problems("PPO", {"env.num_envs": "x\n\x1b[2J" + "y" * 10_000})
    assert line.isprintable()


def test_a_plugin_is_checked_by_its_config(make: Make, problems: Problems, monkeypatch: pytest.MonkeyPatch) -> None:
    class OwnSpec(ReinforceSpec):
        """An algorithm of one's own."""

        name: Literal["Own"] = "Own"  # type: ignore[assignment]
        takes_recurrent: ClassVar = False
        memories: ClassVar = ("OnPolicyReplay",)

        def find_conflicts(self, memory: str) -> dict[str, str]:
            return {"gamma": f"{self.gamma} does not go with {memory}"}

        def find_remarks(self, num_envs: int) -> list[str]:
            return [f"{num_envs} env is few"]

    monkeypatch.setitem(ALGORITHM_SPECS, "Own", OwnSpec)
    own = {"agent.algorithm": {"name": "Own"}}
    lines = problems("PPO", {**own, "agent.net": {"type": "RecurrentNet", "critic_init_std": 1, "polyak_coef": 0.1}})
    assert [line.partition(";")[0] for line in lines] == [
        "agent.algorithm.gamma: 0.99 does not go with OnPolicyBatchReplay",
        "agent.memory.name: Own needs OnPolicyReplay, got OnPolicyBatchReplay",
        "agent.net.polyak_coef: Own has no target net",
        "agent.net.critic_init_std: Own has no critic",
        "agent.net.type: Own has no use for a hidden state",
    ]
    monkeypatch.setattr(OwnSpec, "find_conflicts", lambda *_: {})
    assert parse_spec(make("PPO", {**own, "agent.memory.name": "OnPolicyReplay"}))[1] == ("1 env is few",)


def test_a_net_of_ones_own_has_keys_for_one_role(
    make: Make, problems: Problems, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WideSpec(NetSpec):
        """A net whose own key is required."""

        type: Literal["Wide"] = "Wide"
        width: PositiveInt

    monkeypatch.setitem(NET_SPECS, "Wide", WideSpec)
    net = {"type": "Wide", "width": 4, "actor_width": 8}
    agent: Any = parse_spec(make("PPO", {"agent.net": net}))[0].agent
    assert (agent.actor.width, agent.critic.width) == (8, 4)
    assert problems("PPO", {"agent.net": {**net, "actor_width": 0, "critic_widht": 1}}) == [
        "agent.net.actor_width: greater than 0 expected, got 0",
        "agent.net.critic_widht: unknown key; did you mean 'critic_width'?",
    ]


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        # the largest divisor of 300 up to 64 is 60
        (
            {"agent.algorithm.time_horizon": 100, "env.num_envs": 3},
            "agent.algorithm.minibatch_size 64 does not divide time_horizon*num_envs = 100*3 = 300: the last minibatch "
            "of each epoch has 44 samples; 60 would divide it",
        ),
        # larger than the whole batch
        (
            {"agent.algorithm.time_horizon": 8},
            "agent.algorithm.minibatch_size 64 does not divide time_horizon*num_envs = 8*1 = 8: the last minibatch of "
            "each epoch has 8 samples; 8 would divide it",
        ),
    ],
)
def test_a_minibatch_that_does_not_divide_the_batch_gets_a_note(make: Make, changes: Changes, remark: str) -> None:
    assert parse_spec(make("PPO", changes))[1] == (remark,)
    assert parse_spec(make("PQN", {**changes, "agent.algorithm.minibatch_size": 64}))[1] == (remark,)


def test_actor_critic_trains_each_num_step_returns_unless_told_otherwise(make: Make) -> None:
    spec, _ = parse_spec(make("PPO", {"agent.algorithm": {"name": "ActorCritic", "num_step_returns": 7}}))
    assert spec.model_dump(serialize_as_any=True)["agent"]["algorithm"]["training_frequency"] == 7


def test_a_key_of_one_net_is_given_once(make: Make) -> None:
    message = "^spec: agent.net.actor_init_std: also given in agent.net.actor; remove one of them$"
    with pytest.raises(SpecError, match=message):
        parse_spec(make("PPO", {"agent.net.actor.init_std": 1, "agent.net.actor_init_std": 2}))


def test_a_shared_net_may_still_have_heads_of_its_own(make: Make) -> None:
    spec, _ = parse_spec(make("PPO", {"agent.net.shared": True, "agent.net.actor_init_std": 0.01}))
    assert spec.agent.net.for_role("actor").init_std == 0.01
    assert spec.agent.net.for_role("critic").init_std is None


@pytest.mark.parametrize(
    ("key", "arguments"),
    [
        ("agent.algorithm.gamma__uniform", [0.9, 1]),
        ("agent.algorithm.training_epoch__qrandint", [1, 1e1, 1]),
        ("agent.algorithm.clip_eps_spec.start_val__qloguniform", [0.1, 0.3, 0.1]),
        ("agent.algorithm.entropy_coef_spec__randn", [-1, 0.5]),
        ("agent.net.hid_layers__choice", [[32, 32], [64, 64]]),
        ("agent.net.optim_spec.lr__loguniform", [1e-4, 1e-3]),
        ("agent.net.actor_optim_spec.lr__loguniform", [1e-4, 1e-3]),
        ("agent.net.actor.optim_spec.lr__loguniform", [1e-4, 1e-3]),
        ("env.kwargs.continuous__choice", [True, False]),
        ("meta.search_resources.cpu__choice", [1]),
    ],
)
def test_every_key_of_the_spec_may_be_searched(make: Make, key: str, arguments: list[Any]) -> None:
    changes = {
        "search": {key: arguments},
        "agent.algorithm.clip_eps_spec": {"start_val": 0.2},
        "agent.net.actor_optim_spec": {"name": "Adam", "lr": 0.1},
        "env.continuous": False,
    }
    assert parse_spec(make("PPO", changes))[0].search == {key: arguments}
