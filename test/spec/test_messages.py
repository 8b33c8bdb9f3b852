"""What a wrong spec is told: one line per mistake, with its dotted path and the nearest valid choice."""

import copy
from typing import Any, ClassVar, Literal

import pytest

from slm_lab.lib.errors import SpecError
from slm_lab.spec.algorithm import ReinforceSpec
from slm_lab.spec.loading import parse_spec
from slm_lab.spec.problem import MAX_PROBLEMS
from slm_lab.spec.schema import ALGORITHM_SPECS

Changes = dict[str, Any]
DELETE = object()


def demo() -> dict[str, Any]:
    """A small valid spec; batch 128*1 is divided by the default minibatch of 64."""
    return {
        "name": "demo",
        "agent": {
            "algorithm": {"name": "PPO"},
            "memory": {"name": "OnPolicyBatchReplay"},
            "net": {"type": "MLPNet"},
        },
        "env": {"name": "CartPole-v1", "max_frame": 1000},
    }


def changed(changes: Changes, base: dict[str, Any] | None = None) -> dict[str, Any]:
    """A copy of a spec with values set, or deleted, by dotted path."""
    raw = copy.deepcopy(base or demo())
    for path, value in changes.items():
        *parts, last = path.split(".")
        node = raw
        for part in parts:
            node = node.setdefault(part, {})
        if value is DELETE:
            del node[last]
        else:
            node[last] = value
    return raw


def problems(changes: Changes, base: dict[str, Any] | None = None) -> list[str]:
    """The lines of the error, without its first line."""
    with pytest.raises(SpecError) as caught:
        parse_spec(changed(changes, base))
    first, *lines = str(caught.value).splitlines()
    count = len(lines)
    assert first == f"spec has {count} error{'s' if count > 1 else ''}:"
    assert all(line.startswith("  ") for line in lines)
    return [line.removeprefix("  ") for line in lines]


A2C = changed({"agent.algorithm": {"name": "ActorCritic", "training_frequency": 5}})
REINFORCE = changed({"agent.algorithm": {"name": "Reinforce"}})
CONV = changed({"agent.net": {"type": "ConvNet"}})


def test_the_spec_without_changes_is_valid() -> None:
    for base in (demo(), A2C, REINFORCE, CONV):
        spec, notes = parse_spec(base)
        assert spec.name == "demo"
        assert notes == ()


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("agnt", "agent"),
        ("number", "name"),
        ("env.num_env", "num_envs"),
        ("env.number", "name"),
        ("env.kwarg", "kwargs"),
        ("meta.max_sesion", "max_session"),
        ("meta.search_resources.cpus", "cpu"),
        ("agent.nets", "net"),
        ("agent.algorithm.gama", "gamma"),
        ("agent.algorithm.CLIP_EPS_SPEC", "clip_eps_spec"),
        ("agent.memory.nam", "name"),
        ("agent.net.hid_layer", "hid_layers"),
        ("agent.net.loss_spec.nam", "name"),
        ("agent.net.actor_hid_layer", "actor_hid_layers"),
        ("agent.net.critic_clip_grad_value", "critic_clip_grad_val"),
        ("agent.net.critic_optim", "critic_optim_spec"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(key: str, hint: str) -> None:
    assert problems({key: 1}) == [f"{key}: unknown key; did you mean '{hint}'?"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"agent.net.optim_spec": {"name": "Adam", "lrr": 1}},
            "agent.net.optim_spec.lrr: unknown key; did you mean 'lr'?",
        ),
        (
            {"agent.net.actor_optim_spec": {"name": "Adam", "lrr": 1}},
            "agent.net.actor_optim_spec.lrr: unknown key; did you mean 'lr'?",
        ),
        (
            {"agent.net.actor": {"optim_spec": {"name": "Adam", "lrr": 1}}},
            "agent.net.actor_optim_spec.lrr: unknown key; did you mean 'lr'?",
        ),
        (
            {"agent.net.critic.hid_layer": [1]},
            "agent.net.critic_hid_layer: unknown key; did you mean 'critic_hid_layers'?",
        ),
        (
            {"agent.net.lr_scheduler_spec": {"name": "LinearToZero", "frame": 9, "fram": 1}},
            "agent.net.lr_scheduler_spec.fram: unknown key; did you mean 'frame'?",
        ),
        (
            {"agent.algorithm.clip_eps_spec": {"start_val": 1, "end_value": 1}},
            "agent.algorithm.clip_eps_spec.end_value: unknown key; did you mean 'end_val'?",
        ),
        # words that also stand for a part of the schema
        ({"agent.algorithm.PPO": 1}, "agent.algorithm.PPO: unknown key"),
        (
            {"agent.algorithm.clip_eps_spec": {"start_val": 1, "schedule": 1}},
            "agent.algorithm.clip_eps_spec.schedule: unknown key",
        ),
        ({"agent.net.optim_spec": {"name": "Adam", "Adam": 1}}, "agent.net.optim_spec.Adam: unknown key"),
        ({"env.float": [1]}, "env.float: unknown key"),
        ({"env.tuple[float, float]": 1}, "env.tuple[float, float]: unknown key"),
        # keys of the pair of nets, or of the other net, are not keys of one net
        ({"agent.net.actor_shared": True}, "agent.net.actor_shared: unknown key; did you mean 'shared'?"),
        (
            {"agent.net.actor_critic_hid_layers": [1]},
            "agent.net.actor_critic_hid_layers: unknown key; did you mean 'actor_hid_layers'?",
        ),
        ({"agent.net.critic": {"actor": {}}}, "agent.net.critic_actor: unknown key; did you mean 'actor'?"),
        (
            {"agent.net.critic": {"actor_init_std": 1}},
            "agent.net.critic_actor_init_std: unknown key; did you mean 'critic_init_std'?",
        ),
    ],
)
def test_an_unknown_key_is_shown_with_its_whole_path(changes: Changes, line: str) -> None:
    assert problems(changes) == [line]


@pytest.mark.parametrize(
    ("value", "got"), [(True, "true"), ("5", '"5"'), (2.5, "2.5"), (None, "null"), ([1], "[1]"), ({}, "{}")]
)
def test_a_whole_number_is_nothing_else(value: object, got: str) -> None:
    assert problems({"env.num_envs": value}) == [f"env.num_envs: whole number expected, got {got}"]


@pytest.mark.parametrize(("value", "got"), [(True, "true"), ("0.5", '"0.5"'), (None, "null"), ([1], "[1]")])
def test_a_number_is_nothing_else(value: object, got: str) -> None:
    assert problems({"agent.algorithm.gamma": value}) == [f"agent.algorithm.gamma: number expected, got {got}"]
    assert problems({"agent.net.actor_init_std": "x"}) == ['agent.net.actor_init_std: number expected, got "x"']


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"env.normalize_obs": 1}, "env.normalize_obs: true or false expected, got 1"),
        ({"env.normalize_obs": "yes"}, 'env.normalize_obs: true or false expected, got "yes"'),
        ({"env.name": 5}, "env.name: text expected, got 5"),
        ({"env.name": ""}, 'env.name: text expected, got ""'),
        ({"env.kwargs": 5}, "env.kwargs: mapping expected, got 5"),
        # an option of the env beside it is not blamed for that
        ({"env.kwargs": 5, "env.continuous": True}, "env.kwargs: mapping expected, got 5"),
        ({"env.num_envs": 0}, "env.num_envs: greater than 0 expected, got 0"),
        ({"env.num_workers": -1}, "env.num_workers: greater than or equal to 0 expected, got -1"),
        ({"agent.algorithm.gamma": 1.5}, "agent.algorithm.gamma: less than or equal to 1 expected, got 1.5"),
        ({"env.max_frame": float("inf")}, "env.max_frame: whole number expected, got Infinity"),
        ({"agent.algorithm.gamma": float("nan")}, "agent.algorithm.gamma: finite number expected, got NaN"),
        ({"agent": None}, "agent: mapping expected, got null"),
        ({"agent": "PPO"}, 'agent: mapping expected, got "PPO"'),
        ({"agent.algorithm": "PPO"}, 'agent.algorithm: mapping expected, got "PPO"'),
        ({"agent.net.optim_spec": "Adam"}, 'agent.net.optim_spec: mapping expected, got "Adam"'),
        ({"search": []}, "search: mapping expected, got []"),
        ({"agent.net.hid_layers": 64}, "agent.net.hid_layers: list expected, got 64"),
        ({"agent.net.hid_layers": [64, 0]}, "agent.net.hid_layers[1]: greater than 0 expected, got 0"),
        ({"agent.net.critic_hid_layers": [64, "x"]}, 'agent.net.critic_hid_layers[1]: whole number expected, got "x"'),
        ({"agent.net.actor": 5}, "agent.net.actor: mapping expected, got 5"),
        ({"agent.algorithm.clip_eps_spec": "x"}, 'agent.algorithm.clip_eps_spec: number expected, got "x"'),
        (
            {"agent.algorithm.clip_eps_spec": {"start_val": "x"}},
            'agent.algorithm.clip_eps_spec.start_val: number expected, got "x"',
        ),
        ({"env.clip_reward": "x"}, 'env.clip_reward: number expected, got "x"'),
        ({"env.clip_reward": {}}, "env.clip_reward: number expected, got {}"),
        ({"env.clip_reward": -1}, "env.clip_reward: greater than 0 expected, got -1"),
        ({"env.clip_reward": [1, "x"]}, 'env.clip_reward[1]: number expected, got "x"'),
        ({"env.clip_reward": [1]}, "env.clip_reward[1]: required item is missing"),
        ({"env.clip_reward": [1, 2, 3]}, "env.clip_reward: at most 2 items expected, got [1, 2, 3]"),
        ({"meta.device": "gpu"}, r'meta.device: text that matches ^(auto|cpu|cuda(:\d+)?)$ expected, got "gpu"'),
        (
            {"name": "a/b"},
            "name: up to 128 letters, digits, '_', '.' or '-' expected, a letter or digit first, got \"a/b\"",
        ),
    ],
)
def test_a_wrong_value_is_told_what_is_expected(changes: Changes, line: str) -> None:
    assert problems(changes) == [line]


@pytest.mark.parametrize(
    ("key", "line"),
    [
        ("agent", "agent: required key is missing"),
        ("env", "env: required key is missing"),
        ("name", "name: required key is missing"),
        ("env.max_frame", "env.max_frame: required key is missing"),
        ("agent.memory", "agent.memory: required key is missing"),
        ("agent.algorithm.name", "agent.algorithm: needs the key 'name'"),
        ("agent.net.type", "agent.net: needs the key 'type'"),
    ],
)
def test_a_missing_key_is_named(key: str, line: str) -> None:
    assert problems({key: DELETE}) == [line]


@pytest.mark.parametrize(
    ("changes", "start", "known"),
    [
        ({"agent.algorithm.name": "PP0"}, "agent.algorithm.name: unknown 'PP0'; did you mean 'PPO'?", "PPO"),
        ({"agent.algorithm.name": "ppo"}, "agent.algorithm.name: unknown 'ppo'; did you mean 'PPO'?", "PPO"),
        ({"agent.memory.name": "OnPolicyRepla"}, "agent.memory.name: unknown 'OnPolicyRepla'; did you mean", ""),
        ({"agent.net.type": "MPLNet"}, "agent.net.type: unknown 'MPLNet'; did you mean 'MLPNet'?", ""),
        ({"agent.net.type": "zzz"}, "agent.net.type: unknown 'zzz' (known: ", "MLPNet, ConvNet"),
        (
            {"agent.net.optim_spec": {"name": "adam"}},
            "agent.net.optim_spec.name: unknown 'adam'; did you mean 'Adam'?",
            "",
        ),
        (
            {"agent.net.critic_optim_spec": {"name": "Adm"}},
            "agent.net.critic_optim_spec.name: unknown 'Adm'; did you mean 'Adam'? (known: ",
            "AdamW, RMSprop",
        ),
        (
            {"agent.net.lr_scheduler_spec": {"name": "Step"}},
            "agent.net.lr_scheduler_spec.name: unknown 'Step'",
            "StepLR",
        ),
        (
            {"agent.net.hid_layers_activation": "rel"},
            "agent.net.hid_layers_activation: 'relu', ",
            "got \"rel\"; did you mean 'relu'?",
        ),
        (
            {"agent.algorithm.clip_eps_spec": {"name": "linear", "start_val": 1}},
            "agent.algorithm.clip_eps_spec.name: 'no_decay', 'linear_decay', ",
            "did you mean 'linear_decay'?",
        ),
    ],
)
def test_an_unknown_name_lists_the_known_ones(changes: Changes, start: str, known: str) -> None:
    (line,) = problems(changes)
    assert line.startswith(start)
    assert known in line


def test_all_mistakes_are_reported_at_once() -> None:
    changes = {
        "agnt": 1,
        "env.num_envs": "5",
        "env.max_frame": DELETE,
        "meta.seed": -1,
        "agent.algorithm.gama": 1,
        "agent.memory.name": "Replai",
        "agent.net.hid_layers": 5,
        "agent.net.actor_hid_layer": [1],
        "agent.net.critic_optim_spec": {"name": "Adm"},
        "agent.net.critic.init_std": "x",
    }
    lines = problems(changes)
    assert sorted(line.partition(":")[0] for line in lines) == [
        "agent.algorithm.gama",
        "agent.memory.name",
        "agent.net.actor_hid_layer",
        "agent.net.critic_init_std",
        "agent.net.critic_optim_spec.name",
        "agent.net.hid_layers",
        "agnt",
        "env.max_frame",
        "env.num_envs",
        "meta.seed",
    ]


def test_thousands_of_mistakes_are_counted_and_the_first_shown() -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(changed({f"env.k{i}": 1 for i in range(3000)}))
    first, *lines = str(caught.value).splitlines()
    assert first == "spec has 3000 errors:"
    assert lines[0] == "  env.k0: unknown key"
    assert lines[MAX_PROBLEMS:] == [f"  ... and {3000 - MAX_PROBLEMS} more"]


def test_a_message_stays_on_its_line_whatever_the_key() -> None:
    for key in ("a\nb", "\x1b[2Jx", "a\u2028b", "\x9bx", "k" * 10_000):
        (line,) = problems({f"env.{key}": 1})
        assert line.isprintable()
        assert len(line) < 200
    (line,) = problems({"agent.algorithm.name": "x\n\x1b[2J" + "y" * 10_000})
    assert line.isprintable()
    (line,) = problems({"env.num_envs": "x\n\x1b[2J" + "y" * 10_000})
    assert line.isprintable()


# --- impossible combinations


@pytest.mark.parametrize(
    ("base", "changes", "line"),
    [
        (
            A2C,
            {"agent.algorithm.action_policy": "epsilon_greedy"},
            "agent.algorithm.action_policy: epsilon_greedy needs explore_var_spec",
        ),
        (
            A2C,
            {"agent.algorithm.action_policy": "boltzmann"},
            "agent.algorithm.action_policy: boltzmann needs explore_var_spec",
        ),
        (
            A2C,
            {"env.num_envs": 8, "env.max_frame": 7},
            "env.max_frame: 7 is less than one step of num_envs 8",
        ),
        (
            A2C,
            {"env.num_envs": 2, "env.num_workers": 3},
            "env.num_workers: 3 workers for num_envs 2; use at most num_envs",
        ),
        (
            A2C,
            {"env.num_envs": 2, "env.num_workers": 2, "env.backend": "envpool"},
            "env.num_workers: envpool steps with threads of its own; use null or 0",
        ),
        (
            A2C,
            {"env.num_envs": 2, "env.num_workers": 2, "env.backend": "array"},
            "env.num_workers: array steps all envs at once; use null or 0",
        ),
        (
            A2C,
            {"env.num_envs": 2, "env.num_workers": 2, "env.backend": "ale"},
            "env.num_workers: ale steps with threads of its own; use null or 0",
        ),
        (
            demo(),
            {"agent.memory.name": "OnPolicyReplay"},
            "agent.memory.name: PPO needs OnPolicyBatchReplay, got OnPolicyReplay",
        ),
        (
            demo(),
            {"agent.algorithm.clip_vloss": True, "agent.algorithm.normalize_v_targets": True},
            "agent.algorithm.clip_vloss: contradicts normalize_v_targets; set one of them to false",
        ),
        (
            A2C,
            {"agent.algorithm.lam": 0.9, "agent.algorithm.num_step_returns": 5},
            "agent.algorithm.lam: contradicts num_step_returns; set one of them to null",
        ),
        (
            A2C,
            {"agent.algorithm.num_step_returns": 6},
            "agent.algorithm.num_step_returns: 6 steps do not fit in training_frequency 5",
        ),
        (
            REINFORCE,
            {"agent.net.critic_init_std": 1},
            "agent.net.critic_init_std: Reinforce has no critic; remove it",
        ),
        (
            REINFORCE,
            {"agent.net.shared": True},
            "agent.net.shared: Reinforce has no net to share; remove it",
        ),
        (
            demo(),
            {"agent.algorithm.clip_eps_spec": {"start_val": 0.2, "start_step": 5, "end_step": 4}},
            "agent.algorithm.clip_eps_spec: end_step 4 comes before start_step 5",
        ),
    ],
)
def test_an_impossible_combination_is_refused(base: dict[str, Any], changes: Changes, line: str) -> None:
    assert problems(changes, base) == [line]


def test_a_plugin_is_checked_by_its_config(monkeypatch: pytest.MonkeyPatch) -> None:
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
    lines = problems({**own, "agent.net": {"type": "RecurrentNet", "critic_init_std": 1, "polyak_coef": 0.1}})
    assert [line.partition(";")[0] for line in lines] == [
        "agent.algorithm.gamma: 0.99 does not go with OnPolicyBatchReplay",
        "agent.memory.name: Own needs OnPolicyReplay, got OnPolicyBatchReplay",
        "agent.net.polyak_coef: Own has no target net",
        "agent.net.critic_init_std: Own has no critic",
        "agent.net.type: Own has no use for a hidden state",
    ]
    monkeypatch.setattr(OwnSpec, "find_conflicts", lambda *_: {})
    assert parse_spec(changed({**own, "agent.memory.name": "OnPolicyReplay"}))[1] == ("1 env is few",)


def test_all_impossible_combinations_are_reported_at_once() -> None:
    changes = {
        "env.num_workers": 3,
        "agent.memory.name": "OnPolicyReplay",
        "agent.algorithm.clip_vloss": True,
        "agent.algorithm.normalize_v_targets": True,
        "search": {"agent.algorithm.gamma": [1]},
    }
    assert len(problems(changes)) == 4


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
def test_a_minibatch_that_does_not_divide_the_batch_gets_a_note(changes: Changes, remark: str) -> None:
    assert parse_spec(changed(changes))[1] == (remark,)


@pytest.mark.parametrize(
    ("base", "changes"),
    [
        (A2C, {"agent.algorithm.action_policy": "boltzmann", "agent.algorithm.explore_var_spec": 1.0}),
        (A2C, {"env.num_envs": 8, "env.max_frame": 8, "env.num_workers": 8}),
        (demo(), {"agent.algorithm.clip_vloss": True}),
        (A2C, {"agent.algorithm.num_step_returns": 5}),
        (A2C, {"agent.algorithm.num_step_returns": 6, "agent.memory.name": "OnPolicyReplay"}),
    ],
)
def test_a_combination_just_inside_the_border_is_accepted(base: dict[str, Any], changes: Changes) -> None:
    assert parse_spec(changed(changes, base))[0].name == "demo"


def test_actor_critic_trains_each_num_step_returns_unless_told_otherwise() -> None:
    spec, _ = parse_spec(changed({"agent.algorithm": {"name": "ActorCritic", "num_step_returns": 7}}))
    assert spec.model_dump(serialize_as_any=True)["agent"]["algorithm"]["training_frequency"] == 7


@pytest.mark.parametrize(
    ("base", "changes", "line"),
    [
        (
            demo(),
            {"agent.net.shared": True, "agent.net.actor_hid_layers": [8]},
            "agent.net: with shared: true the actor has no net of its own for 'actor_hid_layers'; "
            "set shared: false or give the key without prefix",
        ),
        (
            demo(),
            {"agent.net.use_same_optim": True, "agent.net.critic_optim_spec": {"name": "SGD"}},
            "agent.net: use_same_optim: true contradicts critic_optim_spec; remove one of them",
        ),
        (
            CONV,
            {"agent.net.conv_hid_layers": [[32, 8], [32]]},
            "agent.net: a conv layer is [channels, kernel, stride, padding, dilation], got [32]",
        ),
        (
            CONV,
            {"agent.net.critic_conv_hid_layers": [[32]]},
            "agent.net.critic: a conv layer is [channels, kernel, stride, padding, dilation], got [32]",
        ),
        (
            demo(),
            {"agent.net.log_std_init": -6},
            "agent.net.log_std_init: greater than or equal to -5 expected, got -6",
        ),
        (
            demo(),
            {"agent.net.actor_log_std_init": 2.5},
            "agent.net.actor_log_std_init: less than or equal to 2 expected, got 2.5",
        ),
        (
            demo(),
            {"agent.net.critic_log_std_init": 0},
            "agent.net: critic_log_std_init: only an actor has a log std; remove it",
        ),
        (
            demo(),
            {"agent.net.optim_spec": {"name": "SGD", "nesterov": True}},
            "agent.net.optim_spec: nesterov needs a momentum and no dampening",
        ),
        (
            demo(),
            {"agent.net.critic_optim_spec": {"name": "SGD", "nesterov": True}},
            "agent.net.critic_optim_spec: nesterov needs a momentum and no dampening",
        ),
        (
            demo(),
            {"agent.net": {"type": "TorchArcNet", "actor_arc": {}}},
            "agent.net: needs the key arc, or actor_arc and critic_arc",
        ),
    ],
)
def test_net_keys_that_contradict_each_other_are_refused(base: dict[str, Any], changes: Changes, line: str) -> None:
    assert problems(changes, base) == [line]


def test_a_key_of_one_net_is_given_once() -> None:
    message = "^spec: agent.net.actor_init_std: also given in agent.net.actor; remove one of them$"
    with pytest.raises(SpecError, match=message):
        parse_spec(changed({"agent.net.actor.init_std": 1, "agent.net.actor_init_std": 2}))


def test_a_shared_net_may_still_have_heads_of_its_own() -> None:
    spec, _ = parse_spec(changed({"agent.net.shared": True, "agent.net.actor_init_std": 0.01}))
    assert spec.agent.net.for_role("actor").init_std == 0.01
    assert spec.agent.net.for_role("critic").init_std is None


# --- search


def search_problems(search: dict[str, Any]) -> list[str]:
    return problems({"search": search})


@pytest.mark.parametrize(
    ("key", "arguments", "message"),
    [
        ("agent.algorithm.gamma", [0.9, 1], "a search key ends in a space, e.g. agent.algorithm.gamma__uniform"),
        ("agent.algorithm.gamma__unifrm", [0.9, 1], "unknown space 'unifrm'; did you mean 'uniform'?"),
        ("agent.algorithm.gamma__grid_search", [0.9, 1], "unknown space 'grid_search'"),
        ("agent.algorithm.gamma__", [0.9, 1], "unknown space ''"),
        ("agent.algorithm.gamma__uniform", 0.9, "uniform takes a list of arguments"),
        ("agent.algorithm.gamma__choice", [], "choice takes a list of arguments"),
        ("agent.algorithm.gamma__uniform", [0.9], "uniform takes 2 arguments (low, high), got 1"),
        ("agent.algorithm.gamma__quniform", [0, 1], "quniform takes 3 arguments (low, high, step), got 2"),
        ("agent.algorithm.gamma__randn", [0, 1, 2], "randn takes 2 arguments (mean, std), got 3"),
        ("agent.algorithm.gamma__uniform", ["a", 1], "uniform takes numbers (low, high)"),
        ("agent.algorithm.gamma__uniform", [False, True], "uniform takes numbers (low, high)"),
        ("agent.algorithm.gamma__uniform", [1, 0.9], "uniform needs low below high, got 1 and 0.9"),
        ("agent.algorithm.gamma__uniform", [1, 1], "uniform needs low below high, got 1 and 1"),
        ("agent.algorithm.gamma__loguniform", [0, 1], "loguniform needs low above 0, got 0"),
        ("agent.algorithm.gamma__quniform", [0, 1, 0], "quniform needs step above 0, got 0"),
        ("agent.algorithm.gamma__randn", [0, -1], "randn needs std above 0, got -1"),
        ("agent.algorithm.training_epoch__randint", [0.5, 4], "randint takes whole numbers"),
        (
            "agent.algorithm.gama__uniform",
            [0.9, 1],
            "the spec has no key 'agent.algorithm.gama'; did you mean 'agent.algorithm.gamma'?",
        ),
        ("zzz__uniform", [0.9, 1], "the spec has no key 'zzz'"),
    ],
)
def test_a_mistake_in_the_search_section_is_told(key: str, arguments: object, message: str) -> None:
    line = f"search.{key}: {message}"
    assert search_problems({key: arguments}) == [line]
    # nested, it reads the same
    nested: Any = arguments
    for part in reversed(key.split(".")):
        nested = {part: nested}
    assert search_problems(nested) == [line]


def test_a_key_is_searched_once() -> None:
    search = {"agent.algorithm.gamma__uniform": [0.9, 1], "agent": {"algorithm": {"gamma__choice": [0.9]}}}
    assert search_problems(search) == [
        "search.agent.algorithm.gamma__choice: 'agent.algorithm.gamma' is searched twice; keep one of them"
    ]


def test_all_mistakes_of_a_search_are_reported_at_once() -> None:
    assert len(search_problems({"a": 1, "b__uniform": [1, 2], "c__x": [1]})) == 3


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
def test_every_key_of_the_spec_may_be_searched(key: str, arguments: list[Any]) -> None:
    changes = {
        "search": {key: arguments},
        "agent.algorithm.clip_eps_spec": {"start_val": 0.2},
        "agent.net.actor_optim_spec": {"name": "Adam", "lr": 0.1},
        "env.continuous": False,
    }
    assert parse_spec(changed(changes))[0].search == {key: arguments}
