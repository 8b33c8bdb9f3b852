"""Spec files from anyone: whatever is in them, the answer is one clear error, at once, and nothing runs.

At once means under 100 ms; that is measured by hand, since a busy machine would make such a test fail at random.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slm_lab.lib.errors import SpecError
from slm_lab.spec.loading import load_spec, parse_override
from slm_lab.spec.problem import MAX_PROBLEMS
from slm_lab.spec.reader import MAX_BYTES, MAX_NODES, MAX_TEXT

Document = str | bytes
FULL = MAX_BYTES - 500  # as large as a file may be, with room for what stands around it
AGENT = '"algorithm": {"name": "PPO"}, "memory": {"name": "OnPolicyBatchReplay"}, "net": {"type": "MLPNet"}'


def spec(agent: str = AGENT, env: str = "", rest: str = "", name: str = "demo") -> str:
    """A JSON file whose spec would be valid but for what is put into it."""
    env = f'{{"name": "CartPole-v1", "max_frame": 1000{", " + env if env else ""}}}'
    return f'{{{json.dumps(name)}: {{"agent": {{{agent}}}, "env": {env}{", " + rest if rest else ""}}}}}'


def laughs(first: str, step: Callable[[str], str], levels: int = 12) -> str:
    """Anchors each of which repeats the one before it, so that the whole grows with the power of the levels."""
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{i}: &a{i} {step(f'*a{i - 1}')}" for i in range(1, levels)]
    return "\n".join([*lines, f"demo: *a{levels - 1}"])


def options(value: Any) -> str:
    """A JSON file with options of the env."""
    return spec(env=f'"kwargs": {json.dumps(value)}')


def texts(part: str) -> list[str]:
    """Texts that are as long as texts may be and consist of one part, as many as fit into a file."""
    return [part * (MAX_TEXT // len(part))] * (FULL // MAX_TEXT - 1)


def below(keys: list[str], value: Any) -> Any:
    """A value below keys, each in the one before it."""
    return {keys[0]: below(keys[1:], value)} if keys else value


CODE = "__import__('os').system('touch canary')"
# put together here, so that no scanner takes this file for a leak
SECRET = "gh" + "p_" + "aB3" * 12
# where a search for secrets begins to look, though there is none
SECRET_STARTS = {
    "Hugging Face": "-hf_",
    "GitHub": "-ghp_",
    "GitHub, fine-grained": "-github_pat_",
    "GitLab": ".glpat-",
    "OpenAI": ".sk-",
    "AWS": "-AKIA",
    "Slack": ".xoxb-",
    "Google": ".AIza",
    "PyPI": ".pypi-",
    "JSON web token": "-eyJ",
    "longer JSON web token": "-eyJ" + "a" * 60,
    "authorization header": "Bearer ",
    "URL": "://",
    "URL with a colon": "://a:",
    "URL with a bracket": "://a:{",
    "URL with a quote": '://a:b"c',
    "private key": "-----BEGIN ",
}
PYTHON = {
    "python object": "demo: !!python/object:subprocess.Popen {args: touch canary}",
    "python apply": "demo: !!python/object/apply:os.system ['touch canary']",
    "python new": "demo: !!python/object/new:os.system ['touch canary']",
    "python name": "demo: !!python/name:os.system ''",
    "python module": "demo: !!python/module:antigravity ''",
    "python tuple": "demo: !!python/tuple [1]",
    "python long tag": "demo: !<tag:yaml.org,2002:python/object/apply:os.system> ['touch canary']",
    "python handle": "%TAG ! tag:yaml.org,2002:python/\n---\ndemo: !object/apply:os.system ['touch canary']",
    "python key": "? !!python/object/apply:os.system ['touch canary']\n: 1",
    "python in merge": "demo: {<<: !!python/object/apply:os.system ['touch canary']}",
    "own tag": "demo: !import os",
    "binary": "demo: !!binary Y2FuYXJ5",
    "set": "demo: !!set {a, b}",
    "ordered map": "demo: !!omap [a: 1]",
    "pairs": "demo: !!pairs [a: 1]",
    "timestamp": "demo: !!timestamp 2020-01-01",
    "bad timestamp": "demo: !!timestamp x",
    "bad bool": "demo: !!bool x",
    "bad int": "demo: !!int ''",
    "bad float": "demo: !!float ''",
    "bad null": "demo: !!null x",
    "bad merge": "demo: {<<: 5}",
}
YAML = {
    "flow nesting": "demo: " + "[" * 10_000,
    "flow nesting of a full file": "[" * FULL,
    "flow mappings": "demo: " + "{a: " * 10_000,
    "closed nesting": "demo: " + "[" * 10_000 + "]" * 10_000,
    "dashes": "- " * (FULL // 2),
    "question marks": "? " * (FULL // 2),
    "block nesting": "".join(" " * depth + "a:\n" for depth in range(700)),
    "laughs by lists": laughs("[x]", lambda one: f"[{', '.join([one] * 10)}]"),
    "laughs by mappings": laughs("{x: 1}", lambda one: "{" + ", ".join(f"k{i}: {one}" for i in range(10)) + "}"),
    "laughs by merges": laughs(
        "{" + ", ".join(f"k{i}: 1" for i in range(50)) + "}", lambda one: f"{{<<: [{', '.join([one] * 10)}]}}"
    ),
    "laughs by merges and lists": laughs("{x: 1}", lambda one: f"{{y: {one}, z: {one}, <<: {one}}}", levels=30),
    "list in itself": "demo: &a [*a]",
    "mapping in itself": "demo: &a {env: *a}",
    "mapping merged into itself": "demo: &a {<<: *a, env: 1}",
    "mapping as its own key": "demo: &a {*a : 1}",
    "chain of merges": "x:\n  y:\n    - &a0 {k: 1}\n"
    + "".join(f"    - &a{i} {{<<: *a{i - 1}}}\n" for i in range(1, 3000))
    + "demo: {<<: *a2999}",
    "alias of nothing": "demo: *nothing",
    "many documents": "--- {demo: 1}\n" * 1000,
    "many items": "demo: [" + "1," * (FULL // 2) + "]",
    "many keys": "demo:\n" + "".join(f"  k{i}: 1\n" for i in range(FULL // 14)),
    "many anchors": "".join(f"a{i}: &a{i} 1\n" for i in range(FULL // 20)),
    "many tags": "demo: " + "!!str " * (FULL // 6),
    "long key": "k" * (FULL - 10) + ": 1",
    "long quoted text": "demo: '" + "''" * (FULL // 2 - 10) + "'",
    "long folded text": "demo: >\n" + "  x\n" * (FULL // 4 - 10),
    "long hex number": "demo: {env: {max_frame: 0x" + "f" * 15_000 + "}}",
    "long binary number": "demo: {env: {max_frame: 0b" + "1" * 15_000 + "}}",
    "long number by sixties": "demo: {env: {max_frame: 1" + ":1" * 9_000 + "}}",
    "long digits": "demo: {env: {max_frame: " + "1" * 19_000 + "}}",
    "long digits with a wrong end": "demo: {env: {max_frame: " + "1_" * 9_000 + "x}}",
    "infinity": "demo: {env: {kwargs: {x: .inf}}}",
    "not a number": "demo: {env: {kwargs: {x: -.NaN}}}",
    "huge exponent": "demo: {env: {kwargs: {x: 1e400}}}",
    "escaped NUL": 'demo: {env: {name: "a\\0b"}}',
    "raw NUL": "demo: {env: {name: a\0b}}",
    "half a character": 'demo: {env: {name: "\\ud800"}}',
    "escape codes": "demo: {env: {name: \x1b[2J}}",
    "tabs": "\t" * FULL,
    "quotes": "'" * FULL,
    "comment": "#" * FULL,
    "anchors only": "&a " * (FULL // 3),
    "wrong version": "%YAML 9.9\n---\ndemo: 1",
}
JSON = {
    "nesting": '{"demo": ' * 10_000,
    "nesting of a full file": "[" * FULL,
    "closed nesting": '{"demo": ' + "[" * 5_000 + "]" * 5_000 + "}",
    "nesting just too deep": '{"demo": ' + "[" * 80 + "]" * 80 + "}",
    "many items": '{"demo": [' + "1," * (FULL // 2) + "1]}",
    "many unknown keys": spec(env=", ".join(f'"k{i}": 1' for i in range(MAX_NODES - 100))),
    "many unknown net keys": spec(
        agent=AGENT.replace('"MLPNet"', '"MLPNet", ' + ", ".join(f'"actor_k{i}": 1' for i in range(9_000)))
    ),
    "many search keys": spec(rest='"search": {' + ", ".join(f'"k{i}__uniform": [0, 1]' for i in range(3_000)) + "}"),
    "many search spaces": spec(rest='"search": {' + ", ".join(f'"k__s{i}": [0, 1]' for i in range(3_000)) + "}"),
    "text without end": '{"demo": "' + '\\"' * (FULL // 2),
    "text of backslashes": '{"demo": "' + "\\" * FULL,
    "placeholders without end": '{"demo": ' + "${" * (FULL // 2),
    "placeholders without end in text": spec(env='"kwargs": [' + ", ".join(['"' + "${" * 9_900 + '"'] * 14) + "]"),
    **{f"starts of secrets, {label}": options(texts(part)) for label, part in SECRET_STARTS.items()},
    "secret after many texts": options(["x"] * 9_000 + [SECRET]),
    "secret after many keys": options({f"k{i}": "x" for i in range(9_000)} | {SECRET: 1}),
    "secret below long keys": options(below(["k" * 19_000] * 12, {f"k{i}": 1 for i in range(5_000)} | {SECRET: 1})),
    "secret below escape codes": options({"\x1b[2J\n": SECRET}),
    "long key": spec(env=f'"{"k" * (MAX_TEXT + 1)}": 1'),
    "long key that is still read": spec(env=f'"{"num_env" * (MAX_TEXT // 7)}": 1'),
    "long text": spec(env=f'"kwargs": {{"x": "{"v" * (MAX_TEXT + 1)}"}}'),
    "long digits": spec(env=f'"num_envs": {"9" * (FULL - 500)}'),
    "digits beyond 64 bits": spec(env=f'"kwargs": {{"x": {2**63}}}'),
    "huge exponent": spec(env='"num_envs": 1e400'),
    "huge exponent in an option": spec(env='"kwargs": {"x": -1e400}'),
    "not a number": spec(env='"reward_scale": NaN'),
    "infinity in an option": spec(env='"kwargs": {"x": -Infinity}'),
    "NUL in text": spec(env='"kwargs": {"x": "a\\u0000b"}'),
    "NUL in a key": spec(env='"a\\u0000b": 1'),
    "half a character": spec(env='"kwargs": {"x": "\\ud800"}'),
    "code as a name": spec(agent=AGENT.replace("PPO", CODE)),
    "code as a net": spec(agent=AGENT.replace("MLPNet", CODE)),
    "code as an activation": spec(agent=AGENT.replace('"MLPNet"', f'"MLPNet", "hid_layers_activation": "{CODE}"')),
    "code as a device": spec(rest=f'"meta": {{"device": "{CODE}"}}'),
    "dunder as an algorithm": spec(agent=AGENT.replace("PPO", "__class__")),
    "dunder as an optimiser": spec(agent=AGENT.replace('"MLPNet"', '"MLPNet", "optim_spec": {"name": "__import__"}')),
    "dunder keys": spec(env='"__class__": 1, "__init__": 2, "model_config": 3'),
    "name that leaves the folder": spec(name="../../canary"),
    "name that is a path": spec(name="/tmp/canary"),
    "name with a slash": spec(name="a/b"),
    "name with a backslash": spec(name="a\\b"),
    "name of dots": spec(name=".."),
    "name that hides": spec(name=".canary"),
    "name with a new line": spec(name="a\nb"),
    "name with a NUL": spec(name="a\0b"),
    "name that is an option": spec(name="-rf"),
    "name too long for a file": spec(name="n" * 129),
    "no name": spec(name=""),
    "net file above the folder": spec(agent=AGENT.replace('"MLPNet"', '"TorchArcNet", "arc_file": "../canary.yaml"')),
    "net file by an absolute path": spec(agent=AGENT.replace('"MLPNet"', '"TorchArcNet", "arc_file": "/etc/passwd"')),
    "net file by a long path": spec(agent=AGENT.replace('"MLPNet"', f'"TorchArcNet", "arc_file": "{"x/" * 9_000}"')),
    "net file that is a device": spec(agent=AGENT.replace('"MLPNet"', '"TorchArcNet", "arc_file": "/dev/zero"')),
    "net file that is the folder": spec(agent=AGENT.replace('"MLPNet"', '"TorchArcNet", "arc_file": "."')),
}
BYTES: dict[str, bytes] = {
    "not UTF-8": b'{"demo": "\xff\xfe"}',
    "UTF-16": spec().encode("utf-16"),
    "overlong UTF-8": b'{"demo": "\xc0\xaf"}',
    "surrogates in UTF-8": b'{"demo": "\xed\xa0\x80"}',
    "zip": b"PK\x03\x04" + bytes(1000),
    "gzip": b"\x1f\x8b\x08\x00" + bytes(1000),
    "pickle": b"\x80\x04\x95cos\nsystem\n(S'touch canary'\ntR.",
    "zeros": bytes(FULL),
    "a key of a megabyte": b'{"' + b"k" * 1_000_000 + b'": 1}',
    "ten megabytes": b" " * 10_000_000,
}
CASES: list[tuple[str, str, Document]] = [
    *((f"yaml: {label}", "demo.yaml", text) for label, text in {**PYTHON, **YAML}.items()),
    *((f"json: {label}", "demo.json", text) for label, text in JSON.items()),
    *((f"bytes: {label}", f"demo.{suffix}", text) for suffix in ("json", "yaml") for label, text in BYTES.items()),
]


def content(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.parametrize(("file", "document"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_hostile_file_is_one_clear_error_and_nothing_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, document: Document
) -> None:
    # the canary of each document would appear here or above
    folder = tmp_path / "here"
    folder.mkdir()
    (tmp_path / "canary.yaml").write_text("modules: {}")
    monkeypatch.chdir(folder)
    path = folder / file
    path.write_bytes(document if isinstance(document, bytes) else document.encode("utf-8"))
    before, modules, depth = content(tmp_path), set(sys.modules), sys.getrecursionlimit()
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert content(tmp_path) == before
    assert {name for name in set(sys.modules) - modules if not name.startswith("encodings")} == set()
    assert sys.getrecursionlimit() == depth
    lines = str(caught.value).splitlines()
    assert len(lines) <= MAX_PROBLEMS + 2
    assert all(line.isprintable() and len(line) < 500 + len(str(path)) for line in lines)
    assert str(path) in lines[0] or lines[0].startswith("agent.net.arc_file: ")


def test_the_documents_would_be_valid_without_their_sting(tmp_path: Path) -> None:
    path = tmp_path / "demo.json"
    path.write_text(spec())
    assert load_spec(path).spec.name == "demo"


def test_a_device_or_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name in ("pipe.json", "zero.json"):
        with pytest.raises(SpecError, match="no spec file"):
            load_spec(tmp_path / name, "demo")


def test_a_pipe_as_the_file_of_a_net_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    path = tmp_path / "demo.json"
    path.write_text(spec(agent=AGENT.replace('"MLPNet"', '"TorchArcNet", "arc_file": "pipe.yaml"')))
    with pytest.raises(SpecError, match=r'there is no file "pipe\.yaml"'):
        load_spec(path)


@pytest.mark.parametrize("hostile", [CODE, "$(touch canary)", "`touch canary`", "!!python/name:os.system", "${x}; rm"])
def test_a_hostile_override_is_only_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "demo.json"
    path.write_text(spec(env='"kwargs": {"x": "${x}"}'))
    overrides = dict([parse_override(f"x={hostile}")])
    if "${" in hostile:
        with pytest.raises(SpecError, match="is not set"):
            load_spec(path, overrides=overrides)
    else:
        assert load_spec(path, overrides=overrides).spec.env.kwargs == {"x": hostile}
    assert content(tmp_path) == {path}
