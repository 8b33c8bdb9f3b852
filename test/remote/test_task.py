"""Rendered tasks: dstack's own parser takes them, and a shell hands every value over as it was meant."""

import io
import itertools
import os
import shlex
import shutil
import stat
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from dstack._internal.core.models.configurations import parse_apply_configuration
from dstack._internal.core.services import is_valid_dstack_resource_name
from dstack._internal.utils.files import create_file_archive
from dstack._internal.utils.interpolator import VariablesInterpolator

from slm_lab.lib.errors import LabError
from slm_lab.remote import task as task_module
from slm_lab.remote.task import (
    MODES,
    TEMPLATES,
    TaskRequest,
    build_command,
    build_task,
    check_name,
    check_upload,
    find_root,
    make_run_name,
    render_task,
    template_name,
)

ROOT = Path(__file__).parents[2]
TOKEN = "hf_planted_token"
# what a shell, YAML or dstack could take for something else
ODD = (
    *("x=1; touch pwned", "x=$(touch pwned)", "x=`touch pwned`", "x=a > pwned"),
    *("x=true && touch pwned || touch pwned &", "x=$HOME ${HOME} !history ~ *", "x=$", "x=", "--help"),
    *("x=a b  c", "x='single' \"double\"", "x=back\\slash\\", "x=two\nlines\n", "x=\ttab"),
    *("x=Ünïcödé ☃ 名", "x=# no comment", "x={a: [1, 2]}, - &anchor *alias"),
)


def render(**options: Any) -> dict[str, Any]:
    """A task of a request whose spec is not looked at; as dstack reads it."""
    request = TaskRequest("", **options)
    spec_file = "specs/odd name.yaml"
    command = build_command(request, [spec_file, "odd 'spec'"], "odd-run", ["ml"])
    document = build_task(request, ROOT, "odd-run", [spec_file], command, {"WANDB_API_KEY": "key"})
    read = yaml.safe_load(yaml.safe_dump(document))
    assert isinstance(read, dict)
    return read


def install(folder: Path, name: str, text: str) -> None:
    """A program for the path."""
    path = folder / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(("mode", "gpu"), list(itertools.product(MODES, (False, True))))
def test_a_task_is_as_promised_and_a_shell_hands_every_odd_value_over(mode, gpu, tmp_path) -> None:
    task = parse_apply_configuration(render(mode=mode, gpu=gpu, changes=ODD, imports=("my module; touch pwned",)))
    assert (task.type, task.name, task.max_duration, task.spot_policy.value) == ("task", "odd-run", 6 * 3600, "auto")
    assert task.max_price == {("train", False): 0.15, ("search", False): 0.30}.get((mode, gpu), 0.50)
    # an error would only come again
    assert [event.value for event in task.retry.on_events] == ["no-capacity", "interruption"]
    assert task.resources.gpu.count.min == task.resources.gpu.count.max == int(gpu)
    assert not gpu or task.resources.gpu.memory.min == 20
    assert task.resources.memory.min == {("train", False): 4, ("search", False): 16}.get((mode, gpu), 32)
    # works where there is no volume
    assert [(volume.path, volume.optional) for volume in task.volumes] == [("/checkpoint", True)]
    assert [(each.local_path, each.path) for each in task.files] == [
        (".", "/slm-lab"),
        ("specs/odd name.yaml", "/slm-lab/specs/odd name.yaml"),
    ]
    # what dstack's client, then its server, do to commands
    client = VariablesInterpolator({"run": {"args": ""}}, skip=["secrets"])
    server = VariablesInterpolator({"secrets": {}})
    commands = [server.interpolate_or_error(client.interpolate_or_error(line)).strip() for line in task.commands]
    for name in ("g++", "sudo", "python3"):
        install(tmp_path, name, "#!/bin/sh\nexit 0\n")
    install(tmp_path, "uv", f'#!/bin/sh\nfor word in "$@"; do printf "%s\\0" "$word"; done > "{tmp_path}/argv"\n')
    work = tmp_path / "work"
    work.mkdir()
    ran = subprocess.run(
        ["/bin/bash", "-i", "-c", " && ".join(commands)],
        cwd=work,
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "HOME": str(work)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    words = (tmp_path / "argv").read_text().split("\0")[:-1]
    start = ["run", "--no-default-groups", "--group", "ml", "slm-lab", "run", "specs/odd name.yaml", "odd 'spec'", mode]
    changes = [word for change in ODD for word in ("-s", change)]
    end = ["--import", "my module; touch pwned", "--continue", "--data-dir", "/checkpoint/odd-run", "--upload-hf"]
    assert words == [*start, *changes, *end]
    assert list(work.rglob("pwned")) == []


def test_options_replace_what_the_template_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "git_sha", lambda root: "abc123")
    document = render(volume="disk", spot="on-demand", max_price=1.5, max_duration="2d", upload=False)
    task = parse_apply_configuration(document)
    assert (task.max_price, task.max_duration, task.spot_policy.value) == (1.5, 2 * 86400, "on-demand")
    assert [(volume.name, volume.path) for volume in task.volumes] == [("disk", "/checkpoint")]
    assert "--upload-hf" not in task.commands[-1]
    # tokens go only where they are needed, by name alone
    assert document["env"] == ["WANDB_API_KEY", "SLM_LAB_COMMIT=abc123"]
    assert render()["env"] == ["HF_TOKEN", "HF_REPO", "WANDB_API_KEY", "SLM_LAB_COMMIT=abc123"]
    for wrong in ({"max_price": 0.0}, {"max_price": -1.0}, {"max_duration": "long"}, {"max_duration": "6h; x"}):
        with pytest.raises(LabError, match="expected, got"):
            render(**wrong)
    for value in ("x=${{ secrets.token }}", "x=a$$b", "x=${{run.args}}"):
        with pytest.raises(LabError, match="dstack would replace it"):
            render(changes=(value,))


def test_every_file_of_the_folder_is_taken_by_dstack() -> None:
    paths = {path.name: path for path in (ROOT / TEMPLATES).iterdir()}
    assert {template_name(mode, gpu) for mode in MODES for gpu in (False, True)} <= set(paths)
    assert {"dev.yml", "fleet-cpu.yml", "fleet-gpu.yml", "volume-aws.yml"} <= set(paths)
    for name, path in paths.items():
        configuration = parse_apply_configuration(yaml.safe_load(path.read_text()))
        kind = path.stem.partition("-")[0]
        assert configuration.type == {"run": "task", "dev": "dev-environment"}.get(kind, kind), name
        assert configuration.type == "task" or is_valid_dstack_resource_name(configuration.name), name


# --- a request with a real spec


def test_a_shipped_spec_is_named_as_on_any_machine_and_no_token(environ) -> None:
    planted = {**environ, "HF_TOKEN": TOKEN, "HF_REPO": "me/runs", "WANDB_API_KEY": f"w{TOKEN}"}
    task = render_task(TaskRequest("ppo_cartpole", changes=("meta.wandb=true",)), planted, ROOT)
    assert shlex.split(task.document["commands"][-1]) == [
        *("uv", "run", "--no-default-groups", "--group", "ml", "--group", "wandb", "slm-lab", "run"),
        *("slm_lab/spec/benchmark/ppo/ppo_cartpole.json", "ppo_cartpole", "train", "-s", "meta.wandb=true"),
        *("--continue", "--data-dir", "/checkpoint/ppo-cartpole", "--upload-hf"),
    ]
    shipped = "slm_lab/spec/benchmark/ppo/ppo_cartpole.json"
    assert task.document["files"] == [
        {"local_path": ".", "path": "/slm-lab"},
        {"local_path": shipped, "path": f"/slm-lab/{shipped}"},
    ]
    assert parse_apply_configuration(yaml.safe_load(task.text)).name == "ppo-cartpole"
    check_upload(planted)
    assert "WANDB_API_KEY" in task.text
    assert TOKEN not in task.text + repr(task)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (TaskRequest("ppo_cartpol"), "did you mean 'ppo_cartpole'"),
        (TaskRequest("ppo_cartpole", changes=("agent.algorithm.gama=1",)), "did you mean 'gamma'"),
        (TaskRequest("ppo_cartpole", changes=("x=1; touch pwned",)), "-s x: "),
        (TaskRequest("ppo_cartpole", changes=("env.max_frame=many",)), "whole number expected"),
        (TaskRequest("ppo_cartpole", run_name="My_Run"), "did you mean 'my-run'"),
        (TaskRequest("ppo_cartpole", run_name="x" * 42), "2 to 41 lower-case letters"),
        (TaskRequest("ppo_cartpole", volume="a;b"), "--volume: 2 to 41"),
        (TaskRequest("ppo_cartpole", mode="search", changes=("search.nonsense__uniform=[0, 1]",)), "no key 'nonsense'"),
        (TaskRequest("ppo_cartpole", imports=("no_such_module",)), "--import no_such_module"),
    ],
)
def test_mistakes_are_told_before_anything_is_sent(request_, message, environ) -> None:
    with pytest.raises(LabError) as caught:
        render_task(request_, environ, ROOT)
    assert message in str(caught.value)


def list_archive(path: Path) -> list[str]:
    """What dstack would send of a path."""
    file = io.BytesIO()
    create_file_archive(path, file)
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        return archive.getnames()


def test_a_spec_of_a_copy_without_git_is_sent_and_one_elsewhere_refused(tmp_path, environ) -> None:
    # no git, and a spec in a folder that is not sent
    project = tmp_path / "project"
    shutil.copytree(ROOT / TEMPLATES, project / TEMPLATES)
    for folder in ("data/best", "deep"):
        (project / folder).mkdir(parents=True)
    for name in (".gitignore", ".dstackignore"):
        shutil.copy(ROOT / name, project / name)
    shutil.copy(ROOT / "docs/examples/search_cartpole.yaml", project / "data/best/spec.yaml")
    assert find_root(project / "deep") == project
    task = render_task(TaskRequest(str(project / "data/best/spec.yaml"), mode="search"), environ, project)
    assert task.document["files"][1] == {"local_path": "data/best/spec.yaml", "path": "/slm-lab/data/best/spec.yaml"}
    assert " data/best/spec.yaml " in task.document["commands"][-1]
    # an ignored file is sent where it is named itself
    assert list_archive(project / "data/best/spec.yaml") == ["spec.yaml"]
    assert not [name for name in list_archive(project) if "/data" in name]
    outside = shutil.copy(project / "data/best/spec.yaml", tmp_path / "outside.yaml")
    with pytest.raises(LabError, match="is outside"):
        render_task(TaskRequest(str(outside)), environ, project)
    odd = shutil.copy(outside, project / "a$1.yaml")
    with pytest.raises(LabError, match="rename it"):
        render_task(TaskRequest(str(odd)), environ, project)


def test_the_checkout_is_small_enough_and_has_no_secrets(tmp_path) -> None:
    project = tmp_path / "lab"
    ignored = shutil.ignore_patterns(".git", ".venv", "__pycache__", "data", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, project, ignore=ignored)
    for name in (".env", ".env.local", "slm_lab/.env"):
        (project / name).write_text(f"HF_TOKEN={TOKEN}\n")
    file = io.BytesIO()
    create_file_archive(project, file)
    # the limit of a dstack server that is not told otherwise
    assert file.tell() < 2 * 2**20
    assert TOKEN.encode() not in file.getvalue()
    names = list_archive(project)
    needed = ("pyproject.toml", "README.md", "LICENSE", "slm_lab/cli/main.py", "docs/examples/search_cartpole.yaml")
    assert {f"lab/{name}" for name in needed} <= set(names)
    assert not [name for name in names if name.startswith(("lab/test", "lab/bench"))]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "HF_TOKEN is not set"),
        ({"HF_TOKEN": "", "HF_REPO": "me/runs"}, "HF_TOKEN is not set"),
        ({"HF_TOKEN": TOKEN}, "HF_REPO is not set"),
        ({"HF_TOKEN": TOKEN, "HF_REPO": "/srv/runs"}, "a remote machine cannot reach"),
        ({"HF_TOKEN": TOKEN, "HF_REPO": "./runs"}, "a remote machine cannot reach"),
    ],
)
def test_what_an_upload_needs_is_asked_for(environment, message) -> None:
    with pytest.raises(LabError, match=message) as caught:
        check_upload(environment)
    assert "--no-upload-hf" in str(caught.value)
    assert TOKEN not in str(caught.value)


def test_names_are_made_that_dstack_takes() -> None:
    for name in ("ppo_cartpole", "A.B-c", "1st", "x", "_", "ünï", "a" * 200, "a" * 40 + "_b", "9"):
        made = make_run_name(name)
        assert is_valid_dstack_resource_name(made), made
        check_name(made, "--name")
    assert make_run_name("ppo_atari_pong") == "ppo-atari-pong"
    with pytest.raises(LabError, match="did you mean 'run-a'"):
        check_name("a\n", "--name")


def test_an_experiment_is_a_task_too(tmp_path: Path) -> None:
    (tmp_path / ".dstack").symlink_to(ROOT / ".dstack")
    (tmp_path / "grid.yaml").write_text(
        "experiment: {specs: [ppo_cartpole], envs: [CartPole-v1, playground/CartpoleBalance]}"
    )
    task = render_task(TaskRequest(str(tmp_path / "grid.yaml"), upload=False), {}, tmp_path)
    assert (task.run_name, task.spec_name) == ("grid", "grid")
    line = task.document["commands"][-1]
    assert "--group ml --group playground slm-lab run grid.yaml train --continue" in line
    with pytest.raises(LabError, match="is run as a whole"):
        render_task(TaskRequest(str(tmp_path / "grid.yaml"), mode="search"), {}, tmp_path)
