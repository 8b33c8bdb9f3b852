"""The names of all files of a run, and how to find runs."""

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from loguru import logger

from slm_lab.lib.errors import EnvError, EnvFaultError, LabError, RunFolderError, SpecError, nearest
from slm_lab.lib.io import is_locked, write_yaml
from slm_lab.lib.runtime import git_sha
from slm_lab.spec.loading import dump_spec, flatten_spec, load_spec, name_for_env, read_specs
from slm_lab.spec.reader import printable, read_document
from slm_lab.spec.schema import Spec

# the default folder of runs
DATA_DIR = Path("data")
SPEC_SUFFIX = "_spec.yaml"
# of the published SLM-Lab
PUBLISHED_SUFFIX = "_spec.json"
REPORT_NAME = "report.html"
# of models, checkpoints, rows of replays and fault bundles
STATE_SUFFIX = ".safetensors"
_GLOB = "*?["
_TABLE = re.compile(r"(?P<name>.+)_t(?P<trial>\d+)_s(?P<session>\d+)_session_df_(?P<kind>train|eval)\.csv")
SUBFOLDERS = ("info", "model", "graph", "log", "video", "fault")


@dataclass(frozen=True)
class RunFolder:
    """`data/{spec_name}_{time}/` and the paths inside it."""

    path: Path
    name: str

    @property
    def spec_file(self) -> Path:
        return self.path / f"{self.name}{SPEC_SUFFIX}"

    @property
    def is_published(self) -> bool:
        """Whether the run is of the published SLM-Lab, which saved other weights and no state to resume from."""
        return not self.spec_file.exists()

    @property
    def provenance_file(self) -> Path:
        return self.path / "info" / f"{self.name}_provenance.json"

    @property
    def study_file(self) -> Path:
        return self.path / "info" / f"{self.name}_study.log"

    @property
    def search_file(self) -> Path:
        return self.path / "info" / f"{self.name}_search.json"

    @property
    def experiment_table_file(self) -> Path:
        return self.path / f"{self.name}_experiment_df.csv"

    @property
    def best_spec_file(self) -> Path:
        return self.path / f"{self.name}_best{SPEC_SUFFIX}"

    @property
    def report_file(self) -> Path:
        return self.path / REPORT_NAME

    def prefix(self, trial: int | None = None, session: int | None = None) -> str:
        """The prefix of file names: of the run, of a trial, or of a session."""
        parts = (("t", trial), ("s", session))
        return "_".join([self.name, *(f"{letter}{number}" for letter, number in parts if number is not None)])

    def trial_spec_file(self, trial: int) -> Path:
        return self.path / f"{self.prefix(trial)}{SPEC_SUFFIX}"

    def trial_metrics_file(self, trial: int) -> Path:
        return self.path / f"{self.prefix(trial)}_trial_metrics.json"

    def published_metrics_file(self, trial: int) -> Path:
        """The file of a trial's metrics in the published SLM-Lab."""
        return self.path / "info" / self.trial_metrics_file(trial).name

    def find_spec_files(self, trial: int) -> list[Path]:
        """The existing spec files, the trial's own first."""
        stems, suffixes = (self.prefix(trial), self.name), (SPEC_SUFFIX, PUBLISHED_SUFFIX)
        files = [self.path / f"{stem}{suffix}" for stem in stems for suffix in suffixes]
        return [file for file in files if file.exists()]

    def session_metrics_file(self, trial: int, session: int) -> Path:
        return self.path / "info" / f"{self.prefix(trial, session)}_session_metrics.json"

    def spaces_file(self, trial: int, session: int) -> Path:
        """The facts about the env that an agent needs to act without it."""
        return self.path / "info" / f"{self.prefix(trial, session)}_spaces.json"

    def table_file(self, trial: int, session: int, kind: str) -> Path:
        return self.path / "info" / f"{self.prefix(trial, session)}_session_df_{kind}.csv"

    def model_file(self, trial: int, session: int, which: str) -> Path:
        return self.path / "model" / f"{self.prefix(trial, session)}_ckpt-{which}_net_model{STATE_SUFFIX}"

    def find_model(self, trial: int, session: int, which: str) -> Path:
        """A model file of this version, or a `.pt` file of the published SLM-Lab or an older version."""
        path = self.model_file(trial, session, which)
        return path if path.exists() else path.with_suffix(".pt")

    def find_kept_models(self, trial: int, session: int) -> dict[int, Path]:
        """The models that `meta.keep_checkpoints` kept, by frame."""
        pattern = self.model_file(trial, session, "*").name
        name = re.compile(re.escape(pattern).replace(r"\*", r"(\d+)"))
        files = {name.fullmatch(file.name): file for file in (self.path / "model").glob(pattern)}
        return {int(match[1]): file for match, file in files.items() if match is not None}

    def resume_file(self, trial: int, session: int) -> Path:
        return self.path / "model" / f"{self.prefix(trial, session)}_ckpt-last_resume{STATE_SUFFIX}"

    def replay_prefix(self, trial: int, session: int, which: str) -> Path:
        return self.path / "model" / f"{self.prefix(trial, session)}_replay-{which}"

    def lock_file(self, trial: int, session: int) -> Path:
        return self.path / "model" / f".{self.prefix(trial, session)}.lock"

    def graph_file(self, name: str, trial: int | None = None, session: int | None = None) -> Path:
        """A picture of the whole search, of a trial, or of a session."""
        return self.path / "graph" / f"{self.prefix(trial, session)}_{name}.png"

    def fault_file(self, trial: int, session: int, frame: int) -> Path:
        return self.path / "fault" / f"{self.prefix(trial, session)}_f{frame}{STATE_SUFFIX}"

    def video_file(self, trial: int, session: int, frame: int) -> Path:
        return self.path / "video" / f"{self.prefix(trial, session)}_f{frame}.mp4"

    def log_file(self, trial: int | None = None, session: int | None = None) -> Path:
        return self.path / "log" / f"{self.prefix(trial, session)}.log"


@dataclass(frozen=True)
class TableFile:
    """The file of a session's table, with the parts of its name."""

    path: Path
    name: str
    session: int
    kind: Literal["train", "eval"]


def find_table_files(path: Path, trial: int | None = None) -> Iterator[TableFile]:
    """The tables in a run folder, of one trial or of all."""
    for file in sorted((path / "info").glob("*_session_df_*.csv")):
        match = _TABLE.fullmatch(file.name)
        if match is not None and trial in (None, int(match["trial"])):
            yield TableFile(file, match["name"], int(match["session"]), "train" if match["kind"] == "train" else "eval")


def find_best_trial(path: Path) -> int:
    """The best trial of a search; 0 in any other run, which has only one."""
    for file in path.glob("info/*_search.json"):
        best = read_document(file).get("best_trial")
        if isinstance(best, int):
            return best
    return 0


def is_search(path: Path) -> bool:
    """Whether a run is a search, finished or not."""
    return any(any((path / "info").glob(f"*_{kind}")) for kind in ("study.log", "search.json"))


def is_running(path: Path) -> bool:
    """Whether a process holds the lock of one of the run's sessions."""
    return any(is_locked(file) for file in (path / "model").glob(".*.lock"))


def previous_file(path: Path) -> Path:
    """The file of the previous checkpoint."""
    return path.with_name(path.name.replace("ckpt-last", "ckpt-prev"))


def replay_file(prefix: Path, start: int, end: int) -> Path:
    """The file of some rows of a replay."""
    return prefix.with_name(f"{prefix.name}_{start}-{end}{STATE_SUFFIX}")


def save_spec(path: Path, spec: Spec) -> None:
    """Save a spec with the commit of the code, which is ignored when the spec is read."""
    document = dump_spec(spec)
    document[spec.name]["meta"]["git_sha"] = git_sha() or "unknown"
    write_yaml(path, document)


def open_run_folder(
    where: str, data_dir: Path, name: str | None = None, may_be_published: bool = False
) -> tuple[RunFolder, Spec]:
    """The run meant by a folder, a file in it, a glob, or `latest`, with its saved spec.

    With a name, it must be a run of that spec; a run of the published lab can only be played.
    """
    suffixes = (SPEC_SUFFIX, PUBLISHED_SUFFIX) if may_be_published else (SPEC_SUFFIX,)
    path = find_run_path(where, data_dir, name, suffixes)
    files = _find_spec_files(path, SPEC_SUFFIX)
    if not files and (files := _find_spec_files(path, PUBLISHED_SUFFIX)) and not may_be_published:
        raise RunFolderError(
            f"{path} is a run of the published SLM-Lab, which saved no state to resume from; play it with "
            f"enjoy@{path}, or train its spec again: slm-lab run {files[0]} train"
        )
    if not files:
        raise RunFolderError(f"{path} is not a run of this lab: it has no *{SPEC_SUFFIX} ({_where_runs_are(data_dir)})")
    saved_name = _name_of(files[0])
    if list(read_specs(files[0])) != [saved_name]:
        raise RunFolderError(f"{files[0]} does not contain exactly the spec '{saved_name}'; was it renamed?")
    if name is not None and not is_run_of(files[0], name):
        raise RunFolderError(f"{path} is a run of '{saved_name}', not of '{name}'; leave the spec out")
    folder = RunFolder(path, saved_name)
    with import_hint(folder):
        return folder, load_spec(files[0], saved_name).spec


@contextmanager
def import_hint(folder: RunFolder) -> Iterator[None]:
    """Add to an error the modules that the run was started with; the lab never imports them by itself."""
    try:
        yield
    except (SpecError, EnvError) as error:
        missing = [] if isinstance(error, EnvFaultError) else _find_missing_imports(folder)
        if not missing:
            raise
        words = shlex.join(word for name in missing for word in ("--import", name))
        raise type(error)(f"{error}\n  The run was started with {words}: run again with {words}") from None


def _find_missing_imports(folder: RunFolder) -> list[str]:
    """Modules that a run was started with and that are not imported yet."""
    try:
        names = read_document(folder.provenance_file).get("imports")
    except (LabError, OSError):
        return []
    known = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    # users may type what is shown, and the run may come from a stranger
    return [name for name in known if re.fullmatch(r"\w+(\.\w+)*", name, re.A) and name not in sys.modules]


def _find_spec_files(path: Path, suffix: str) -> list[Path]:
    """The spec files of a run, that of the whole run first, since `{name}_t0_spec.yaml` of a trial is longer."""
    files = [file for file in path.glob(f"*{suffix}") if file.is_file()]
    return sorted(files, key=lambda file: (len(file.name), file.name))


def _name_of(file: Path) -> str:
    return file.name.removesuffix(PUBLISHED_SUFFIX).removesuffix(SPEC_SUFFIX)


def is_run_of(file: Path, name: str) -> bool:
    """Whether a saved spec has a name, or that name with the env appended."""
    saved_name = _name_of(file)
    if not saved_name.startswith(f"{name}_"):
        return saved_name == name
    match read_specs(file).get(saved_name):
        case {"env": {"name": str(env)}}:
            return name_for_env(name, env) == saved_name
    return False


def find_run_path(
    where: str, data_dir: Path, name: str | None = None, suffixes: tuple[str, ...] = (SPEC_SUFFIX, PUBLISHED_SUFFIX)
) -> Path:
    """The folder meant by its name, a file in it, a glob, or `latest`; refused if a link leads out of it."""
    path = _find_latest(data_dir, name, suffixes) if where == "latest" else _find_path(where, data_dir)
    if not path.name.isprintable():
        raise RunFolderError(f"{printable(str(path), 300)}: its name contains a control character; rename it")
    # other files are replaced as a whole, so links do not matter there
    for item in (*path.glob("*/"), *path.glob("*/*/"), *path.glob("info/*_study.log")):
        if item.is_symlink():
            raise RunFolderError(f"{item} is a link, so writes would go elsewhere; replace it with its target")
    return path


def _find_latest(data_dir: Path, name: str | None, suffixes: tuple[str, ...]) -> Path:
    """The run whose spec was saved last, of one spec or of any; unreadable ones are skipped."""
    ages: dict[Path, int] = {}
    for folder in data_dir.glob("*"):
        try:
            files = [file for suffix in suffixes for file in _find_spec_files(folder, suffix)]
            if files and (name is None or is_run_of(files[0], name)):
                ages[folder] = max(file.stat().st_mtime_ns for file in files)
        except (LabError, OSError) as error:
            logger.warning(f"Skipped {folder}: {describe_failure(error)}")
    if not ages:
        of_spec = "" if name is None else f" of '{name}'"
        raise RunFolderError(f"there is no run{of_spec} in {data_dir} yet; start one with `slm-lab run`")
    return max(ages, key=lambda folder: ages[folder])


def describe_failure(error: LabError | OSError) -> str:
    """Why a file of a run cannot be read, in one line."""
    if isinstance(error, LabError) or error.strerror is None:
        return printable(str(error), limit=400)
    return printable(f"{error.filename}: cannot be read ({error.strerror})", limit=400)


def _find_path(where: str, data_dir: Path) -> Path:
    for candidate in (Path(where), data_dir / where):
        if candidate.exists():
            return _find_run_above(candidate)
    shown = printable(where, 300)
    if any(char in where for char in _GLOB):
        matches = _find_matches(where, data_dir)
        if len(matches) != 1:
            found = "".join(f"\n  {printable(str(match), 300)}" for match in matches)
            found = found or f" nothing ({_where_runs_are(data_dir)})"
            raise RunFolderError(f"'{shown}' must match one run, but matches{found}")
        return matches[0]
    known = [folder.name for folder in data_dir.glob("*") if folder.is_dir()]
    raise RunFolderError(f"no run folder '{shown}'{nearest(Path(where).name, known)} ({_where_runs_are(data_dir)})")


def _find_matches(where: str, data_dir: Path) -> list[Path]:
    """The folders that a glob matches, here or else in the data folder, as a plain name is looked up."""
    path = Path(where)
    places = [Path(path.anchor)] if path.is_absolute() else [Path(), data_dir]
    for place in places:
        try:
            matches = sorted({_find_run_above(match) for match in place.glob(str(path.relative_to(path.anchor)))})
        except ValueError as error:
            # ** within a name, before Python 3.13
            raise RunFolderError(f"'{printable(where, 300)}' is no pattern: {error}") from None
        if matches:
            return matches
    return []


def match_names(names: Sequence[str], pattern: str) -> list[str]:
    """The names that are meant by a name, a glob or a part of names."""
    if pattern in names:
        return [pattern]
    if any(char in pattern for char in _GLOB):
        return sorted(name for name in names if fnmatchcase(name, pattern))
    return sorted(name for name in names if pattern in name)


def _find_run_above(path: Path) -> Path:
    """The folder of a path; for a subfolder of a run, the folder of the run."""
    folder = path if path.is_dir() else path.parent
    is_own = folder.name in SUBFOLDERS and any(folder.parent.glob(f"*{SPEC_SUFFIX}"))
    return folder.parent if is_own else folder


def find_same_run(spec: Spec, data_dir: Path, is_search: bool) -> Path | None:
    """The newest run of this spec; None if no run has its name, an error if its settings differ."""
    other: tuple[Path, str] | None = None
    runs = {path.parent for path in data_dir.glob(f"*/{spec.name}{SPEC_SUFFIX}")}
    for path in sorted(runs, key=lambda path: -(path / f"{spec.name}{SPEC_SUFFIX}").stat().st_mtime_ns):
        folder, saved = open_run_folder(str(path), data_dir)
        if folder.name != spec.name or folder.study_file.exists() != is_search:
            continue
        difference = _describe_difference(saved, spec)
        if difference is None:
            return path
        other = other or (path, difference)
    if other is not None:
        raise RunFolderError(
            f"{other[0]} is a run of '{spec.name}' with another {other[1]}; --continue resumes the same spec "
            "only: give the same settings, or another --data-dir"
        )
    return None


def _describe_difference(saved: Spec, spec: Spec) -> str | None:
    """The first key in which a saved spec differs from the given one, with both values."""
    there, here = (flatten_spec(dump_spec(each)[each.name]) for each in (saved, spec))
    if spec.meta.compile == "auto":
        # the saved spec has the decision
        here["meta.compile"] = there["meta.compile"]
    for path in {**here, **there}:
        if here.get(path) != there.get(path):
            return f"{path}: {there.get(path)} there, {here.get(path)} here"
    return None


def _where_runs_are(data_dir: Path) -> str:
    """The command that lists the runs."""
    option = [] if data_dir == DATA_DIR else ["--data-dir", str(data_dir)]
    return f"`{shlex.join(['slm-lab', 'list', *option])}` shows the runs in {data_dir}"
