"""From a name or file to a spec: formats, duplicate keys, placeholders, overrides, lookup."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slm_lab.lib.errors import SpecError
from slm_lab.lib.io import dump_yaml
from slm_lab.spec.algorithm import PPOSpec
from slm_lab.spec.loading import SHIPPED, dump_spec, load_spec, locate, parse_override, spec_names
from slm_lab.spec.net import DictNetSpec, MLPNetSpec, TorchArcNetSpec
from slm_lab.spec.reader import read_document

Write = Callable[[str, str], Path]
WriteData = Callable[..., Path]


def demo() -> dict[str, Any]:
    """A small valid spec; batch 128*1 is divided by the default minibatch of 64."""
    return {
        "agent": {
            "algorithm": {"name": "PPO", "gamma": 0.98},
            "memory": {"name": "OnPolicyBatchReplay"},
            "net": {"type": "MLPNet", "hid_layers": [32, 16]},
        },
        "env": {"name": "CartPole-v1", "max_frame": 1000},
    }


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a text file and returns its path."""

    def write_text(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write_text


@pytest.fixture
def write_data(tmp_path: Path) -> WriteData:
    """Writes specs as JSON or YAML and returns the path."""

    def write_specs(file: str = "file.json", **specs: Any) -> Path:
        path = tmp_path / file
        path.write_text(json.dumps(specs) if path.suffix == ".json" else dump_yaml(specs))
        return path

    return write_specs


# --- formats


def test_json_and_yaml_give_the_same_spec(write_data: WriteData) -> None:
    from_json = load_spec(write_data("a.json", demo=demo())).spec
    assert from_json == load_spec(write_data("a.yaml", demo=demo())).spec
    assert from_json == load_spec(write_data("a.yml", demo=demo())).spec
    assert from_json.name == "demo"
    assert from_json.agent.algorithm.gamma == 0.98
    assert isinstance(from_json.agent.net, MLPNetSpec)
    assert from_json.agent.net.hid_layers == (32, 16)


@pytest.mark.parametrize("written", ["1e6", "1E6", "1.0e6", "1e+6", "10.0e5", "1000000", "1000000.0", "1.e6", "+1e6"])
def test_every_spelling_of_a_whole_number_is_taken(write: Write, written: str) -> None:
    # the last two are no JSON
    for suffix in ("json", "yaml")[written in ("1.e6", "+1e6") :]:
        text = json.dumps({"demo": demo()}).replace('"max_frame": 1000', f'"max_frame": {written}')
        frames = load_spec(write(f"a.{suffix}", text)).spec.env.max_frame
        assert (frames, type(frames)) == (1_000_000, int)


@pytest.mark.parametrize(("written", "name"), [("'1e6'", "1e6"), ("2020-01-31", "2020-01-31")])
def test_text_and_dates_are_text_in_yaml(write: Write, written: str, name: str) -> None:
    text = dump_yaml({"demo": demo()}).replace("CartPole-v1", written)
    assert load_spec(write("a.yaml", text)).spec.env.name == name


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_exponents_are_whole_numbers_at_every_level(write: Write, suffix: str) -> None:
    text = (
        '{"demo": {"agent": {"algorithm": {"name": "PPO", "time_horizon": 1e2, "minibatch_size": 5e1, '
        '"clip_eps_spec": {"start_val": 0.2, "end_val": 1e-1, "end_step": 5e3}}, '
        '"memory": {"name": "OnPolicyBatchReplay"}, "net": {"type": "MLPNet", "hid_layers": [1e1, 2e1], '
        '"optim_spec": {"name": "Adam", "lr": 1e-3}}}, "env": {"name": "CartPole-v1", "max_frame": 2e5}, '
        '"meta": {"log_frequency": 5e2}}}'
    )
    spec = load_spec(write(f"a.{suffix}", text)).spec
    saved = dump_spec(spec)["demo"]
    assert saved["agent"]["algorithm"]["time_horizon"] == 100
    assert saved["agent"]["algorithm"]["clip_eps_spec"]["end_step"] == 5000
    assert saved["agent"]["net"]["hid_layers"] == [10, 20]
    assert saved["agent"]["net"]["optim_spec"]["lr"] == 0.001
    assert saved["meta"]["log_frequency"] == 500
    # as text, so that 500.0 would show
    assert '"log_frequency": 500,' in json.dumps(saved)
    assert '"hid_layers": [10, 20]' in json.dumps(saved)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("a.json", '{"demo": {"env": }}', "a.json:1:18: not valid JSON: Expecting value"),
        ("a.json", '{\n"demo": {,}}', "a.json:2:10: not valid JSON"),
        ("a.yaml", "demo:\n  env: [1", "a.yaml: not valid YAML: .*line 3, column 1"),
        ("a.yaml", "demo: {a: 1}\n---\ndemo: {a: 2}", "a.yaml: not valid YAML: .*another document"),
        ("a.yaml", "", "expected a mapping of spec names to specs, got nothing"),
        ("a.yaml", "- demo", "expected a mapping of spec names to specs, got a list"),
        ("a.json", '"demo"', "expected a mapping of spec names to specs, got text"),
        ("a.json", "{}", "a.json holds 0 specs"),
        ("a.yaml", "demo: 5", "'demo' is not a spec but a number"),
        ("a.yaml", "demo:", "'demo' is not a spec but nothing"),
        ("a.yaml", "1: {}", "key '1' is not text; put it in quotes"),
        ("a.yaml", "demo: {1e3: 2}", "key '1000.0' is not text"),
        ("a.yaml", "demo: {true: 2}", "key 'True' is not text"),
    ],
)
def test_a_file_that_is_not_specs_says_what_is_wrong(write: Write, file: str, text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        load_spec(write(file, text))


# --- duplicate keys


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("a.json", '{"demo": {}, "demo": {}}'),
        ("a.json", '{"demo": {"env": {"num_envs": 1, "num_envs": 1}}}'),
        ("a.json", '{"demo": {"agent": [{"net": {"x": {"gamma": 1, "gamma": 2}}}]}}'),
        ("a.json", '{"demo": {"gamma": 1, "\\u0067amma": 2}}'),
        ("a.yaml", "demo: {}\ndemo: {}"),
        ("a.yaml", "demo:\n  env:\n    gamma: 1\n    gamma: 1\n"),
        ("a.yaml", "demo: {agent: [{net: {x: {gamma: 1, gamma: 2}}}]}"),
        ("a.yaml", "demo: {gamma: 1, 'gamma': 2}"),
        ("a.yaml", 'demo: {gamma: 1, "\\x67amma": 2}'),
        ("a.yaml", "_base: &base {x: 1}\ndemo: {<<: *base, gamma: 1, gamma: 2}"),
        ("a.yaml", "_base: &base {gamma: 1, gamma: 2}\ndemo: {<<: *base}"),
        ("a.yaml", "demo: {<<: {gamma: 1, gamma: 2}}"),
        ("a.yaml", "demo: {<<: [{x: 1}, {gamma: 1, gamma: 2}]}"),
        ("a.yaml", "demo: {env: !!map {gamma: 1, gamma: 2}}"),
    ],
)
def test_a_duplicate_key_is_an_error_at_any_depth(write: Write, file: str, text: str) -> None:
    with pytest.raises(SpecError, match=r"duplicate key '(demo|gamma|num_envs)'"):
        read_document(write(file, text))


def test_a_duplicate_key_in_yaml_is_shown_with_its_line(write: Write) -> None:
    with pytest.raises(SpecError, match=r"duplicate key 'gamma' \(line 3, column 3\)"):
        read_document(write("a.yaml", "demo:\n  gamma: 1\n  gamma: 2\n"))


def test_a_key_may_replace_a_merged_one(write: Write) -> None:
    text = """
    _base: &base {gamma: 0.9, lam: 0.8}
    _more: &more {lam: 0.7, clip_eps_spec: 0.1}
    one: {<<: *base, gamma: 0.5}
    two: {gamma: 0.5, <<: *base}
    three: {<<: [*more, *base], gamma: 0.5}
    """
    data = read_document(write("a.yaml", text))
    assert data["one"] == data["two"] == {"gamma": 0.5, "lam": 0.8}
    # of several merged mappings the first that has a key gives it
    assert data["three"] == {"gamma": 0.5, "lam": 0.7, "clip_eps_spec": 0.1}
    assert data["_base"] == {"gamma": 0.9, "lam": 0.8}


def test_specs_that_share_an_anchor_do_not_share_values(write: Write) -> None:
    text = f"_agent: &agent {json.dumps(demo()['agent'])}\n" + "".join(
        f"{name}: {{agent: *agent, env: {{name: CartPole-v1, max_frame: 1000}}}}\n" for name in ("one", "two")
    )
    path = write("a.yaml", text)
    assert load_spec(path, "one", {"agent.algorithm.gamma": 0.5}).spec.agent.algorithm.gamma == 0.5
    assert load_spec(path, "two").spec.agent.algorithm.gamma == 0.98
    data = read_document(path)
    assert data["one"]["agent"] is not data["two"]["agent"]


# --- placeholders


def test_placeholders_may_stand_unquoted_in_json(write: Write) -> None:
    text = json.dumps({"demo": demo()}).replace("1000", "${max_frame}").replace("0.98", '"${gamma}"')
    spec = load_spec(write("a.json", text), overrides={"max_frame": 5e3, "gamma": 0.5}).spec
    assert spec.env.max_frame == 5000
    assert spec.agent.algorithm.gamma == 0.5


def test_placeholders_inside_text_and_lists_are_filled(write_data: WriteData) -> None:
    raw = demo()
    raw["env"]["name"] = "ALE/${game}-v${version}"
    raw["agent"]["net"]["hid_layers"] = ["${width}", "${width}"]
    spec = load_spec(write_data(demo=raw), overrides={"game": "Pong", "version": 5, "width": 8}).spec
    assert spec.env.name == "ALE/Pong-v5"
    assert dump_spec(spec)["demo"]["agent"]["net"]["hid_layers"] == [8, 8]


def test_what_looks_like_a_placeholder_inside_text_is_left_as_text(write: Write) -> None:
    text = '{"a": "x \\"${one}\\" y", "b": ${two}, "c": "\\\\", "d": ${three}}'
    data = read_document(write("a.json", text))
    assert data == {"a": 'x "${one}" y', "b": "${two}", "c": "\\", "d": "${three}"}


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_value_can_never_add_structure(write: Write, suffix: str) -> None:
    text = json.dumps({"demo": demo()}).replace('"CartPole-v1"', '"${env}"')
    hostile = 'CartPole-v1", "num_envs": 7, "x": "'
    spec = load_spec(write(f"a.{suffix}", text), overrides=dict([parse_override(f"env={hostile}")])).spec
    assert spec.env.name == hostile
    assert spec.env.num_envs == 1


def test_a_value_with_a_comma_is_one_wrong_value(write: Write) -> None:
    text = json.dumps({"demo": demo()}).replace("0.98", "${x}")
    with pytest.raises(SpecError) as caught:
        load_spec(write("a.json", text), overrides=dict([parse_override('x=1, "gamma": 0')]))
    assert str(caught.value) == r'-s x=1, "gamma": 0: number expected, got "1, \"gamma\": 0"'


def test_a_filled_value_is_not_filled_again(write: Write) -> None:
    text = json.dumps({"demo": demo()}).replace('"CartPole-v1"', '"${env}"')
    with pytest.raises(SpecError, match=r"env.name: \$\{other\} is not set"):
        load_spec(write("a.json", text), overrides={"env": "${other}"})


def test_every_placeholder_without_a_value_is_listed(write: Write) -> None:
    text = json.dumps({"demo": demo()}).replace('"CartPole-v1"', "${env}").replace("1000", "${max_frame}")
    with pytest.raises(SpecError) as caught:
        load_spec(write("a.json", text.replace("[32, 16]", '[32, "${width}"]')))
    assert str(caught.value).splitlines()[1:] == [
        "  agent.net.hid_layers[1]: ${width} is not set; add -s width=VALUE",
        "  env.name: ${env} is not set; add -s env=VALUE",
        "  env.max_frame: ${max_frame} is not set; add -s max_frame=VALUE",
    ]


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ("CartPole-v1", "demo_cartpole"),
        ("ALE/Pong-v5", "demo_pong"),
        ("playground/CartpoleBalance", "demo_cartpolebalance"),
        ("my_package.envs:My Env-v0", "demo_my_env"),
        ("-v1", "demo_env"),
    ],
)
def test_a_filled_env_extends_the_name(write: Write, env: str, name: str) -> None:
    path = write("a.json", json.dumps({"demo": demo()}).replace('"CartPole-v1"', "${env}"))
    assert load_spec(path, overrides={"env": env}).spec.name == name
    assert load_spec(path, overrides={"env": env}, extend_name=False).spec.name == "demo"


def test_another_env_is_in_the_name(write_data: WriteData) -> None:
    loaded = load_spec(write_data(demo=demo()), overrides={"env.name": "Acrobot-v1"})
    assert loaded.spec.name == "demo_acrobot"
    assert loaded.notes == ("the run is called demo_acrobot, since the spec's own env is CartPole-v1",)
    same = load_spec(write_data(demo=demo()), overrides={"env.name": "CartPole-v1"})
    assert (same.spec.name, same.notes) == ("demo", ())


# --- overrides


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("k=1", 1),
        ("k=1e6", 1e6),
        ("k=-.5", -0.5),
        ("k=+5", 5.0),
        ("k=true", True),
        ("k=null", None),
        ("k=[1, 2]", [1, 2]),
        ('k={"name": "Adam"}', {"name": "Adam"}),
        ('k="5"', "5"),
        ("k=ALE/Pong-v5", "ALE/Pong-v5"),
        ("k=a=b", "a=b"),
        ("k=", ""),
        ("k=1.2.3", "1.2.3"),
        (" k =1", 1),
    ],
)
def test_override_values_are_read_as_typed(text: str, value: object) -> None:
    key, parsed = parse_override(text)
    assert key == "k"
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gamma", "-s takes KEY=VALUE, got 'gamma'"),
        ("=5", "-s takes KEY=VALUE"),
        ("k=NaN", "-s k: 'NaN': NaN is not a number a spec can hold"),
        ("k=[Infinity]", "Infinity is not a number"),
        ("k=1e400", "inf is not a number a spec can hold"),
        ("k=" + "9" * 30, "beyond 64 bits"),
        ('k={"a": 1, "a": 2}', "duplicate key 'a'"),
        ("k=" + "[" * 5000, "nested too deep"),
        ('k="\\u0000"', "NUL"),
    ],
)
def test_override_values_follow_the_rules_of_a_file(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_override(text)


def test_a_dotted_path_sets_a_value(write_data: WriteData) -> None:
    overrides = {
        "agent.algorithm.gamma": 0.5,
        "agent.net.hid_layers": [8],
        "env.max_frame": 2e3,
        "meta.seed": 3,
        "meta.search_resources.cpu": 2,
        "search.agent.algorithm.gamma__uniform": [0.9, 0.99],
    }
    saved = dump_spec(load_spec(write_data(demo=demo()), overrides=overrides).spec)["demo"]
    assert saved["agent"]["algorithm"]["gamma"] == 0.5
    assert saved["agent"]["net"]["hid_layers"] == [8]
    assert saved["env"]["max_frame"] == 2000
    assert saved["meta"]["seed"] == 3
    assert saved["meta"]["search_resources"] == {"cpu": 2.0, "gpu": 0.0}
    assert saved["search"] == {"agent": {"algorithm": {"gamma__uniform": [0.9, 0.99]}}}


def test_a_prefixed_key_replaces_the_one_of_a_saved_spec(write_data: WriteData) -> None:
    raw = demo()
    raw["agent"]["net"]["actor"] = {"init_std": 1.0, "hid_layers": [8]}
    spec = load_spec(write_data(demo=raw), overrides={"agent.net.actor_init_std": 0.5}).spec
    assert spec.agent.net.actor == {"init_std": 0.5, "hid_layers": [8]}
    assert (spec.agent.actor.init_std, spec.agent.critic.init_std) == (0.5, None)
    with pytest.raises(SpecError, match=r"^-s agent\.net\.actor_init_std=x: number expected"):
        load_spec(write_data(demo=raw), overrides={"agent.net.actor_init_std": "x"})


def test_a_dotted_path_takes_over_a_placeholder(write: Write) -> None:
    path = write("a.json", json.dumps({"demo": demo()}).replace("1000", "${max_frame}"))
    assert load_spec(path, overrides={"env.max_frame": 700}).spec.env.max_frame == 700


def test_a_dotted_path_that_the_spec_does_not_know_is_an_unknown_key(write_data: WriteData) -> None:
    with pytest.raises(SpecError, match=r"^-s agent\.algorithm\.gama=0\.5: unknown key; did you mean 'gamma'\?$"):
        load_spec(write_data(demo=demo()), overrides={"agent.algorithm.gama": 0.5})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env.max_frame": "abc"}, '-s env.max_frame=abc: whole number expected, got "abc"'),
        (
            {"agent.net": {"type": "MLPNet", "hid_layer": [1]}},
            '-s agent.net={"type": "MLPNet", "hid_layer": [1]}: agent.net.hid_layer: unknown key; did you mean '
            "'hid_layers'?",
        ),
        ({"meta.device": "gpu", "env.num_envs": 0}, "-s env.num_envs=0: greater than 0 expected, got 0\n"),
    ],
)
def test_a_mistake_on_the_command_line_is_not_the_files(
    write_data: WriteData, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        load_spec(write_data(demo=demo()), overrides=changes)
    assert str(caught.value).startswith(message)
    assert "a.json" not in str(caught.value)


def test_mistakes_of_both_are_told_apart(write_data: WriteData) -> None:
    raw = demo()
    raw["agent"]["algorithm"]["lamb"] = 0.9
    path = write_data(demo=raw)
    with pytest.raises(SpecError) as caught:
        load_spec(path, overrides={"env.max_frame": "abc"})
    first, *lines = str(caught.value).splitlines()
    assert first == f"spec 'demo' in {path} with -s env.max_frame=abc has 2 errors:"
    assert sorted(line[:8] for line in lines) == ["  -s env", "  agent."]


def test_a_dotted_path_through_a_value_is_refused(write_data: WriteData) -> None:
    with pytest.raises(SpecError, match=r"-s agent\.algorithm\.gamma\.x: 'gamma' is a number and has no keys"):
        load_spec(write_data(demo=demo()), overrides={"agent.algorithm.gamma.x": 1})


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("gamma", "; did you mean 'agent.algorithm.gamma'?"),
        ("max_frame", "; did you mean 'env.max_frame'?"),
        ("gaem", "; did you mean 'game'?"),
        ("agent.", "; did you mean 'agent.net.type'?"),
        ("nonsense.x", ""),
        ("total_timesteps", "; did you mean 'env.max_frame'?"),
        ("learning_rate", "; did you mean 'agent.net.optim_spec.lr'?"),
    ],
)
def test_an_override_that_matches_nothing_is_an_error(write_data: WriteData, key: str, hint: str) -> None:
    raw = demo()
    raw["env"]["name"] = "${game}"
    with pytest.raises(SpecError) as caught:
        load_spec(write_data(demo=raw), overrides={key: 1})
    assert f"has no ${{{key}}} and '{key}' is no dotted path of it{hint} (dotted" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_search_of_a_spec_is_left_out() -> None:
    """A key that is taken out of a shipped spec may be searched there."""
    without = {"agent.algorithm.sde": None}
    with pytest.raises(
        SpecError, match=r"the spec has no key 'agent\.algorithm\.sde\.sample_frequency'; remove it, or"
    ):
        load_spec("sac_sde_pendulum", overrides=without)
    spec = load_spec("sac_sde_pendulum", overrides={**without, "search": {}}).spec
    assert spec.agent.algorithm.state_noise is None
    assert spec.search == {}
    with pytest.raises(SpecError, match=r"^-s search=null: mapping expected, got null$"):
        load_spec("sac_sde_pendulum", overrides={"search": None})


# --- lookup


def test_a_shipped_spec_is_found_by_its_bare_name() -> None:
    loaded = load_spec("ppo_cartpole")
    assert loaded.source == SHIPPED / "benchmark/ppo/ppo_cartpole.json"
    assert isinstance(loaded.spec.agent.algorithm, PPOSpec)


@pytest.mark.parametrize(
    ("written", "name", "found"),
    [
        # another suffix, another folder, another file that holds the spec
        ("slm_lab/spec/benchmark/ppo/ppo_cartpole.yaml", None, "benchmark/ppo/ppo_cartpole.json"),
        ("slm_lab/spec/experimental/ppo/ppo_cartpole.json", "ppo_cartpole", "benchmark/ppo/ppo_cartpole.json"),
        ("spec/dqn/ddqn.json", "ddqn_per_boltzmann_cartpole", "benchmark/dqn/dqn_cartpole.json"),
        # the file is shipped, but without that spec
        ("benchmark/ppo/ppo_cartpole.json", "ppo_acrobot", "benchmark/ppo/ppo_acrobot.json"),
    ],
)
def test_a_file_that_is_shipped_elsewhere_is_found_by_name(written: str, name: str | None, found: str) -> None:
    loaded = load_spec(written, name)
    assert loaded.source == SHIPPED / found
    assert loaded.notes[0] == f"there is no such spec in {written}; it is from slm_lab/spec/{found}"


@pytest.mark.parametrize("written", ["slm_lab/spec/benchmark/ppo/ppo_cartpole.json", "benchmark/ppo/ppo_cartpole.json"])
def test_a_file_of_the_package_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert locate(written, None) == (SHIPPED / "benchmark/ppo/ppo_cartpole.json", "ppo_cartpole")


def test_a_file_in_the_working_folder_comes_before_one_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = Path("slm_lab/spec/benchmark/ppo/ppo_cartpole.json")
    own.parent.mkdir(parents=True)
    own.write_text(json.dumps({"mine": demo()}))
    assert locate(own, None) == (own, "mine")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["elsewhere/ppo_cartpole.json", "no_such_spec"], r"no spec file elsewhere/ppo_cartpole\.json"),
        # a path from the root names no shipped file
        (["/elsewhere/ppo_cartpole.json"], "no spec file"),
        (
            ["slm_lab/spec/benchmark/ppo/ppo_cartpol.json"],
            r"did you mean 'slm_lab/spec/benchmark/ppo/ppo_cartpole.json'\?.*slm-lab spec list",
        ),
        (["ppo_cartpoel"], r"no shipped spec is called 'ppo_cartpoel'; did you mean 'ppo_cartpole'\?"),
        (["ppo_cartpole", "ppo_acrobot"], "takes no second name 'ppo_acrobot'"),
        (["FILE", "dmo"], r"no spec 'dmo'; did you mean 'demo'\? \(it holds: demo, other\)"),
        (["FILE", "zzz"], r"no spec 'zzz' \(it holds: demo, other\)"),
        (["FILE", ""], "no spec ''"),
        (["FILE", "_shared"], "no spec '_shared'"),
        (["FILE"], "holds 2 specs; name one of: demo, other"),
    ],
)
def test_what_is_not_found_names_the_nearest(write_data: WriteData, words: list[str], message: str) -> None:
    path = write_data(_shared=demo(), demo=demo(), other=demo())
    with pytest.raises(SpecError, match=message):
        load_spec(str(path) if words[0] == "FILE" else words[0], words[1] if len(words) == 2 else None)


def test_a_spec_is_found_in_a_file_by_its_key(write_data: WriteData) -> None:
    path = write_data(_shared={"x": 1}, demo={"name": "another", **demo()})
    assert spec_names(path) == ["demo"]
    # the only one needs no name
    assert load_spec(path).spec.name == "demo"
    assert load_spec(write_data(demo=demo(), other=demo()), "other").spec.name == "other"
    assert load_spec("ppo_cartpole", "ppo_cartpole").spec.name == "ppo_cartpole"


# --- files of nets


def arc_spec(**net: Any) -> dict[str, Any]:
    raw = demo()
    raw["agent"]["net"] = {"type": "TorchArcNet", **net}
    return raw


ARC = {"modules": {"body": {"Sequential": [{"LazyLinear": {"out_features": 8}}]}}, "graph": {"input": "x"}}


def test_an_arc_file_is_read_into_the_spec(write: Write, write_data: WriteData) -> None:
    write("body.yaml", dump_yaml(ARC))
    net = load_spec(write_data(demo=arc_spec(arc_file="body.yaml"))).spec.agent.net
    assert isinstance(net, TorchArcNetSpec)
    assert net.arc == ARC


def test_an_arc_file_for_one_net_is_read_into_the_spec(tmp_path: Path, write_data: WriteData) -> None:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets/body.json").write_text(json.dumps(ARC))
    spec = load_spec(write_data(demo=arc_spec(arc={}, actor_arc_file="nets/body.json"))).spec
    assert spec.agent.net.actor == {"arc": ARC}
    assert spec.agent.net.critic == {}


def test_arc_files_of_encoders_and_of_critics_are_read_into_the_spec(write: Write, write_data: WriteData) -> None:
    write("body.yaml", dump_yaml(ARC))
    encoder = {"type": "TorchArcNet", "arc_file": "body.yaml"}
    raw = arc_spec(type="DictNet", encoders={"a": encoder}, actor_encoders={"b": encoder})
    net = load_spec(write_data(demo=raw)).spec.agent.net
    assert isinstance(net, DictNetSpec)
    assert net.encoders["a"].arc == net.actor["encoders"]["b"]["arc"] == ARC
    soft = {**arc_spec(type="MLPNet")["agent"], "critic_net": encoder, "memory": {"name": "Replay"}}
    soft["algorithm"] = {"name": "SoftActorCritic", "training_start_step": 1}
    critic_net = load_spec(write_data(demo={**raw, "agent": soft})).spec.agent.critic_net
    assert isinstance(critic_net, TorchArcNetSpec)
    assert critic_net.arc == ARC
    raw = arc_spec(type="DictNet", encoders={"a": {**encoder, "arc_file": "none.yaml"}})
    with pytest.raises(SpecError, match=r'agent.net.encoders.a.arc_file: there is no file "none.yaml"'):
        load_spec(write_data(demo=raw))


def test_an_arc_file_outside_the_folder_is_refused(tmp_path: Path, write_data: WriteData) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}_body.yaml"
    outside.write_text(dump_yaml(ARC))
    (tmp_path / "link.yaml").symlink_to(outside)
    for written in (f"../{outside.name}", str(outside), "link.yaml", f"x/../../{outside.name}"):
        with pytest.raises(SpecError, match=r"agent.net.arc_file: .* lies outside the spec's folder"):
            load_spec(write_data(demo=arc_spec(arc_file=written)))


def test_an_arc_file_that_cannot_be_used_says_why(tmp_path: Path, write: Write, write_data: WriteData) -> None:
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "folder.yaml").mkdir()
    write("open.yaml", "x: ${width}")
    for net, message in (
        ({"arc_file": "none.yaml"}, 'agent.net.arc_file: there is no file "none.yaml"'),
        ({"arc_file": "loop.yaml"}, 'agent.net.arc_file: there is no file "loop.yaml"'),
        ({"arc_file": "folder.yaml"}, 'agent.net.arc_file: there is no file "folder.yaml"'),
        ({"arc_file": 5}, "arc_file: the name of a file expected, got 5"),
        ({"arc_file": "open.yaml", "arc": {}}, "arc_file: contradicts agent.net.arc; give only one"),
        ({"arc_file": "open.yaml"}, r"arc_file: \"open.yaml\" holds \$\{width\}; such a file takes no placeholders"),
        ({"arc": {}, "body_arc_file": "open.yaml"}, "body_arc_file: unknown key"),
    ):
        with pytest.raises(SpecError, match=message):
            load_spec(write_data(demo=arc_spec(**net)))


# --- defaults that depend on other sections


@pytest.mark.parametrize("name", ["LinearToZero", "LinearToMin"])
@pytest.mark.parametrize("key", ["lr_scheduler_spec", "actor_lr_scheduler_spec"])
def test_a_learning_rate_falls_to_the_end_of_the_run(write_data: WriteData, name: str, key: str) -> None:
    raw = demo()
    raw["agent"]["net"][key] = {"name": name}
    spec = load_spec(write_data(demo=raw), overrides={"env.max_frame": 2e4}).spec
    actor = spec.agent.net.for_role("actor").lr_scheduler_spec
    assert actor is not None
    assert actor.model_dump()["frame"] == 20_000
    assert (spec.agent.net.for_role("critic").lr_scheduler_spec is None) == (key != "lr_scheduler_spec")
    # it is saved, and stays when the spec is loaded again
    saved = dump_spec(spec)["demo"]
    assert load_spec(write_data(demo=saved)).spec == spec
    given = {**raw["agent"]["net"], key: {"name": name, "frame": 5}}
    raw["agent"]["net"] = given
    assert "'frame': 5" in str(load_spec(write_data(demo=raw)).spec.agent.net.model_dump())
