"""`slm-lab env`: check an env, or list the registered ones."""

import importlib.util
import json
import shlex
import sys
from typing import Annotated, Any

import gymnasium as gym
import typer
from pydantic import ValidationError

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import ImportsOption
from slm_lab.env.build import load_playground, make_single_env
from slm_lab.env.check import check_env
from slm_lab.env.make import PLAYGROUND_PREFIX, build_settings, is_playground
from slm_lab.env.watch import close_envs
from slm_lab.experiment.signals import no_exit
from slm_lab.lib.errors import EnvError
from slm_lab.lib.runtime import import_modules
from slm_lab.spec.problem import describe_first
from slm_lab.spec.schema import EnvSpec

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Work with environments.")

MARKS = {"ok": "ok   ", "note": "note ", "wrong": "WRONG"}
# families by how the entry point of an env begins
FAMILIES = {
    "classic control": ("gymnasium.envs.classic_control",),
    "Box2D": ("gymnasium.envs.box2d",),
    "MuJoCo": ("gymnasium.envs.mujoco",),
    "Atari": ("ale_py",),
    "toy text": ("gymnasium.envs.toy_text", "gymnasium.envs.tabular", "gymnasium.envs.phys2d"),
    "probes with known answers": ("slm_lab.env.probe",),
}
# not in gymnasium's registry
PLAYGROUND = "MuJoCo Playground"


@app.command()
def check(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A registered id, playground/X, or package.module:EnvId.")
    ],
    kwargs: Annotated[
        str, typer.Option("--kwargs", metavar="JSON", help="Options of the env as JSON, as in env.kwargs.")
    ] = "{}",
    wrappers: Annotated[
        str, typer.Option("--wrappers", metavar="JSON", help="Wrappers as JSON, as in env.wrappers.")
    ] = "[]",
    steps: Annotated[int, typer.Option(min=1, help="Random steps to take.")] = 1000,
    imports: ImportsOption = None,
) -> None:
    """Step an env with random actions and report problems for training."""
    with user_errors():
        import_modules(imports or [])
        options = _read_json("--kwargs", kwargs, '{"continuous": true}')
        around = _read_json("--wrappers", wrappers, '["ClipReward"]')
        try:
            spec = EnvSpec(name=name, kwargs=options, wrappers=around, max_frame=1)
        except ValidationError as error:
            raise EnvError(describe_first(error, EnvSpec, {"kwargs": options, "wrappers": around}, "env")) from None
        settings = build_settings(spec, (0,), 1)
        # a second Playground env would compile for a minute
        make_fresh = None if is_playground(name) else lambda: make_single_env(settings)
        with no_exit():
            env = make_single_env(settings)
            try:
                items = check_env(env, steps, make_fresh=make_fresh)
            except SystemExit as error:
                raise EnvError(f"{name} exits the process: {error!r}") from None
            finally:
                close_envs([env], name)
        for item in items:
            sys.stdout.write(f"{MARKS[item.level]}  {item.text}\n")
        wrong = sum(item.level == "wrong" for item in items)
        if wrong:
            raise EnvError(f"{name} has {wrong} problem(s)")
        words = [word for module in imports or [] for word in ("--import", module)]
        given = (("env.name", name), ("env.kwargs", options and kwargs), ("env.wrappers", around and wrappers))
        changes = [word for key, value in given if value for word in ("-s", f"{key}={value}")]
        command = shlex.join(["slm-lab", "run", *words, "SPEC", "train", *changes])
        sys.stdout.write(f"\nTrain in it with: {command}\n")


def _read_json(option: str, text: str, example: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise EnvError(f"{option}: JSON expected, such as '{example}' ({error})") from None


@app.command("list")
def list_(
    words: Annotated[list[str] | None, typer.Argument(help="List only names that contain all of these.")] = None,
) -> None:
    """List the registered envs by family, with the newest version of each."""
    families: dict[str, list[str]] = {family: [] for family in (*FAMILIES, PLAYGROUND, "others")}
    for name in [*newest_ids(), *playground_names()]:
        if all(word.lower() in name.lower() for word in words or []):
            families[family_of(name)].append(name)
    if not any(families.values()):
        sys.stderr.write(f"Error: no registered env matches: {' '.join(words or [])}\n")
        sys.exit(2)
    for family, names in families.items():
        if names:
            sys.stdout.write(f"{family} ({len(names)})\n  " + "\n  ".join(sorted(names)) + "\n")


def playground_names() -> list[str]:
    """Names of the envs of MuJoCo Playground, if it is installed."""
    if importlib.util.find_spec("mujoco_playground") is None:
        return []
    names: list[str] = load_playground("playground").list_names()
    return names


def newest_ids() -> list[str]:
    """Registered ids, the highest version of each."""
    newest: dict[tuple[str | None, str], tuple[int, str]] = {}
    for name, spec in gym.registry.items():
        if family_of(name) == "Atari" and spec.namespace != "ALE":
            continue  # older names of the same games
        version = -1 if spec.version is None else spec.version
        key = (spec.namespace, spec.name)
        newest[key] = max(newest.get(key, (-2, "")), (version, name))
    return [name for _, name in newest.values()]


def family_of(name: str) -> str:
    """The family of a name."""
    if name.startswith(PLAYGROUND_PREFIX):
        return PLAYGROUND
    entry = gym.registry[name].entry_point
    module = entry if isinstance(entry, str) else entry.__module__ if entry is not None else ""
    for family, starts in FAMILIES.items():
        if module.startswith(starts):
            return family
    return "others"
