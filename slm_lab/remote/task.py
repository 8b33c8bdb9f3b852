"""A run as a dstack task: a template from `.dstack/`, filled in. This module sends nothing and needs no torch."""

import hashlib
import math
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from slm_lab.lib.data import Document, ReadOnlyDocument
from slm_lab.lib.errors import LabError
from slm_lab.lib.runtime import COMMIT_VARIABLE, git_sha, import_modules
from slm_lab.share.settings import is_repo
from slm_lab.spec.candidate import check_search
from slm_lab.spec.grid import is_experiment_file, load_specs, read_experiment
from slm_lab.spec.loading import SHIPPED, load_spec, locate, parse_override
from slm_lab.spec.reader import printable, read_document
from slm_lab.spec.schema import SINKS, Spec

Mode = Literal["train", "search"]
SpotPolicy = Literal["auto", "spot", "on-demand"]
MODES: tuple[Mode, ...] = ("train", "search")

TEMPLATES = Path(".dstack")
# how shipped specs are named from any folder
SHIPPED_PREFIX = "slm_lab/spec/"
# where the code and the checkpoints are on the machine
CODE_DIR = "/slm-lab"
CHECKPOINT_DIR = "/checkpoint"
# a run without uploads does not get them
UPLOAD_VARIABLES = ("HF_TOKEN", "HF_REPO")
# dstack's rules
NAME_LENGTH = 41
_NAME = re.compile(r"[a-z][a-z0-9-]{1,40}")
_DURATION = re.compile(r"[1-9]\d*[smhdw]")
# dstack replaces these in commands before a shell sees them
_REPLACED = ("${{", "$$")


@dataclass(frozen=True)
class TaskRequest:
    """What to run, and on which machine; None keeps the template's value."""

    # as `slm-lab run` takes them: a file, or the bare name of a shipped spec or file
    spec_file: str
    spec_name: str | None = None
    mode: Mode = "train"
    # as `-s` takes them
    changes: tuple[str, ...] = ()
    # made from the spec's name if not given
    run_name: str | None = None
    gpu: bool = False
    # to the hub, at the end of the run
    upload: bool = True
    # a network volume for checkpoints
    volume: str | None = None
    spot: SpotPolicy | None = None
    # dollars per hour
    max_price: float | None = None
    max_duration: str | None = None
    imports: tuple[str, ...] = ()


@dataclass(frozen=True)
class RenderedTask:
    """A task for dstack."""

    run_name: str
    # as the run's folder begins
    spec_name: str
    document: ReadOnlyDocument

    @property
    def text(self) -> str:
        return yaml.safe_dump(dict(self.document), sort_keys=False, allow_unicode=True, width=100_000)


def render_task(request: TaskRequest, environ: Mapping[str, str], root: Path) -> RenderedTask:
    """The task of a request, after checking its spec, names and numbers."""
    import_modules(request.imports)
    if is_experiment_file(request.spec_file):
        return _render_experiment(request, environ, root)
    path, spec_name = locate(request.spec_file, request.spec_name)
    spec = load_spec(path, spec_name, dict(parse_override(text) for text in request.changes)).spec
    if request.mode == "search":
        check_search(spec)
    run_name = make_run_name(spec.name) if request.run_name is None else request.run_name
    check_name(run_name, "--name")
    if request.volume is not None:
        check_name(request.volume, "--volume")
    spec_file = _find_in_project(path, root)
    command = build_command(request, [spec_file, spec_name], run_name, find_groups(spec, request.gpu))
    return RenderedTask(run_name, spec.name, build_task(request, root, run_name, [spec_file], command, environ))


def _render_experiment(request: TaskRequest, environ: Mapping[str, str], root: Path) -> RenderedTask:
    """The task of an experiment file, whose runs train on one machine."""
    if request.spec_name is not None or request.mode != "train":
        raise LabError(f"{request.spec_file} is an experiment, which is run as a whole; give the file and train")
    path = Path(request.spec_file).absolute()
    experiment = read_experiment(path)
    changes = dict(parse_override(text) for text in request.changes)
    found = [loaded for _, loaded in load_specs(experiment, path, changes)]
    name = experiment.name or path.stem
    run_name = make_run_name(name) if request.run_name is None else request.run_name
    for given, option in ((run_name, "--name"), (request.volume, "--volume")):
        if given is not None:
            check_name(given, option)
    spec_file = _find_in_project(path, root)
    groups = list(dict.fromkeys(group for loaded in found for group in find_groups(loaded.spec, request.gpu)))
    command = build_command(request, [spec_file], run_name, groups)
    # that of an inline spec is the experiment's own
    files = dict.fromkeys([spec_file, *(_find_in_project(loaded.source, root) for loaded in found)])
    return RenderedTask(run_name, name, build_task(request, root, run_name, files, command, environ))


def build_task(
    request: TaskRequest,
    root: Path,
    run_name: str,
    spec_files: Iterable[str],
    command: Sequence[str],
    environ: Mapping[str, str],
) -> Document:
    """The filled-in template of a request. A task contains only names of variables, never their values."""
    template = read_template(root, request)
    document: Document = {"type": template["type"], "name": run_name, **template}
    # the template's paths start at its own folder, dstack's at the folder it is called in
    document["files"] = [{"local_path": ".", "path": CODE_DIR}]
    # one by one: they may be in a folder that is not sent, as shipped specs and data/ are
    document["files"] += [{"local_path": file, "path": f"{CODE_DIR}/{file}"} for file in spec_files]
    document["env"] = [
        name for name in template.get("env", []) if (request.upload if name in UPLOAD_VARIABLES else environ.get(name))
    ]
    if (commit := git_sha(root)) is not None:
        document["env"] += [f"{COMMIT_VARIABLE}={commit}"]
    if request.volume is not None:
        document["volumes"] = [{"name": request.volume, "path": CHECKPOINT_DIR}]
    line = shlex.join(command)
    if mark := next((mark for mark in _REPLACED if mark in line), None):
        raise LabError(f"'{mark}' in {line}: dstack would replace it before the run sees it; write it differently")
    document["commands"] = [*template["commands"], line]
    given = {"spot_policy": request.spot, "max_price": request.max_price, "max_duration": request.max_duration}
    document |= {key: value for key, value in given.items() if value is not None}
    price = document["max_price"]
    if not isinstance(price, (int, float)) or not (math.isfinite(price) and price > 0):
        raise LabError(f"--max-price: dollars per hour above 0 expected, got {price}")
    if not _DURATION.fullmatch(str(document["max_duration"])):
        raise LabError(f"--max-duration: a time like 30m, 6h or 2d expected, got '{document['max_duration']}'")
    return document


def build_command(request: TaskRequest, source: Sequence[str], run_name: str, groups: Sequence[str]) -> tuple[str, ...]:
    """The command that runs a spec on the machine, the same for the first start and after a preemption."""
    words = ["uv", "run", "--no-default-groups", *(word for group in groups for word in ("--group", group))]
    words += ["slm-lab", "run", *source, request.mode]
    words += [word for change in request.changes for word in ("-s", change)]
    words += [word for module in request.imports for word in ("--import", module)]
    words += ["--continue", "--data-dir", f"{CHECKPOINT_DIR}/{run_name}"]
    return (*words, "--upload-hf") if request.upload else tuple(words)


def find_groups(spec: Spec, gpu: bool) -> list[str]:
    """The groups of packages that a spec needs."""
    groups = ["ml"]
    asked = spec.meta.model_dump()
    # TensorBoard is in ml
    groups += [name for name in SINKS[1:] if asked[name]]
    if spec.env.backend == "envpool":
        groups.append("envpool")
    if spec.env.name.startswith("playground/"):
        groups += ["playground", "playground-gpu"] if gpu else ["playground"]
    return groups


def make_run_name(spec_name: str) -> str:
    """A valid dstack name, from that of a spec."""
    name = re.sub(r"[^a-z0-9]+", "-", spec_name.lower()).lstrip("0123456789-")
    if len(name) > NAME_LENGTH:
        # two long names may begin alike
        digest = hashlib.sha256(name.encode()).hexdigest()[:6]
        name = f"{name[: NAME_LENGTH - 7].rstrip('-')}-{digest}"
    name = name.rstrip("-")
    return name if len(name) > 1 else f"run-{name}".rstrip("-")


def check_name(name: str, option: str) -> None:
    """Refuse a name that dstack would refuse later."""
    if not _NAME.fullmatch(name):
        raise LabError(
            f"{option}: 2 to {NAME_LENGTH} lower-case letters, digits and '-' expected, a letter first, got "
            f"'{printable(name)}'; did you mean '{make_run_name(name)}'?"
        )


def find_root(start: Path) -> Path:
    """The checkout to send: the nearest folder upwards with the templates, otherwise that of this code."""
    for folder in (start, *start.parents, SHIPPED.parents[1]):
        if (folder / TEMPLATES / template_name("train", False)).is_file():
            return folder
    raise LabError(
        f"run-remote sends a checkout of the lab, and {start} is not in one; there is no {TEMPLATES}/ folder"
    )


def template_name(mode: Mode, gpu: bool) -> str:
    return f"run-{'gpu' if gpu else 'cpu'}-{mode}.yml"


def read_template(root: Path, request: TaskRequest) -> Document:
    """The template of a mode and a kind of machine; users may have changed it."""
    path = root / TEMPLATES / template_name(request.mode, request.gpu)
    template = read_document(path)
    missing = [key for key in ("type", "commands", "max_price", "max_duration") if key not in template]
    if missing:
        raise LabError(f"{path}: {', '.join(missing)} is missing; it limits the cost or defines the command")
    return template


def _find_in_project(path: Path, root: Path) -> str:
    """The path of a spec file for the command on the machine."""
    if path.is_relative_to(SHIPPED):
        return f"{SHIPPED_PREFIX}{path.relative_to(SHIPPED).as_posix()}"
    try:
        name = path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        raise LabError(f"{path} is outside {root}, the folder that is sent; copy the spec into it") from None
    if "$" in name:
        raise LabError(f"{path}: a '$' in a file name does not reach the machine unchanged; rename it")
    return name


def check_upload(environ: Mapping[str, str]) -> None:
    """Refuse a run that could not upload its results, before it costs money."""
    remedy = "in the environment or in .env, or give --no-upload-hf"
    for name, what in zip(UPLOAD_VARIABLES, ("a token with write access", "the repo for results"), strict=True):
        if not environ.get(name):
            raise LabError(f"{name} is not set ({what}), so the results could not be uploaded; set it {remedy}")
    if not is_repo(repo := environ["HF_REPO"]):
        raise LabError(f"HF_REPO is '{repo}', which a remote machine cannot reach; set USER/REPO {remedy}")
