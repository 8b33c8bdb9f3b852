"""Start and resume searches, and validate their winners, for the command line and the Python API."""

import math
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from loguru import logger

from slm_lab.env.make import is_playground, resolve_name
from slm_lab.experiment.executor import (
    POLL_SECONDS,
    Executor,
    LocalExecutor,
    Resources,
    SessionTask,
    build_executor,
)
from slm_lab.experiment.launch import check_known_to_processes, start, start_or_continue, write_origin
from slm_lab.experiment.options import Options
from slm_lab.experiment.search import Search, estimate_frames, find_rungs
from slm_lab.experiment.search_result import SearchResult
from slm_lab.experiment.trial import TrialResult
from slm_lab.lib.device import count_gpus
from slm_lab.lib.errors import LabError, RunFolderError, SpecError
from slm_lab.lib.io import create_run_folder
from slm_lab.lib.runtime import import_modules, num_cores
from slm_lab.lib.system import peak_children_mb, require_posix
from slm_lab.lib.unit import format_seconds
from slm_lab.results.folder import (
    SPEC_SUFFIX,
    RunFolder,
    find_same_run,
    import_hint,
    is_run_of,
    open_run_folder,
    save_spec,
)
from slm_lab.spec.algorithm import OffPolicySpec
from slm_lab.spec.candidate import check_search
from slm_lab.spec.loading import dump_spec, load_spec, refuse_secrets
from slm_lab.spec.schema import Spec
from slm_lab.spec.search_space import read_dimensions

# trials per searched key that a search should have
TRIALS_PER_KEY = 3
# how long a session is timed, and the longest wait for it
PROBE_SECONDS = 4.0
PROBE_LIMIT = 60.0
# a session takes about this long to load libraries
START_SECONDS = 4.0


@dataclass(frozen=True)
class Probe:
    """Speed and memory of a session."""

    fps: float
    megabytes: float


def start_search(spec: Spec, options: Options) -> SearchResult:
    """Search a spec in a new run folder."""
    require_posix("a search")
    import_modules(options.imports)
    check_search(spec)
    scheduler = spec.meta.search_scheduler
    if scheduler is not None and scheduler.grace_period >= spec.env.max_frame:
        raise SpecError(
            f"meta.search_scheduler.grace_period: {scheduler.grace_period:,} is not below env.max_frame "
            f"{spec.env.max_frame:,}, so no trial could be stopped early"
        )
    if scheduler is not None and spec.meta.log_frequency > scheduler.grace_period:
        raise SpecError(
            f"meta.log_frequency: {spec.meta.log_frequency:,} is above meta.search_scheduler.grace_period "
            f"{scheduler.grace_period:,}, so trials could not be compared there; scores are taken from rows"
        )
    check_known_to_processes(spec, options)
    # check for mistakes that affect every trial before anything is written
    refuse_secrets(dump_spec(spec), f"spec '{spec.name}'")
    executor = _build_executor(spec, options)
    probe, notes = _probe(spec, options, executor.num_slot)
    for line in advise(spec, executor.num_slot, probe):
        logger.info(line)
    folder = RunFolder(create_run_folder(options.data_dir, spec.name), spec.name)
    write_origin(spec, folder, options)
    # marks the folder as a search, whatever happens before the first trial
    folder.study_file.touch()
    for line in (f"Run folder {folder.path}", *notes[1:]):
        logger.info(line)
    return Search(spec, folder, executor, options).run()


def start_or_continue_search(spec: Spec, options: Options) -> SearchResult:
    """Resume the search of this spec in the data folder, or start one."""
    import_modules(options.imports)
    path = find_same_run(spec, options.data_dir, is_search=True)
    return start_search(spec, options) if path is None else resume_search(str(path), options)


def resume_search(where: str, options: Options, name: str | None = None) -> SearchResult:
    """Resume a search."""
    require_posix("a search")
    import_modules(options.imports)
    if where == "latest":
        where = _find_latest(options.data_dir, name)
    folder, spec = open_run_folder(where, options.data_dir, name)
    if not folder.study_file.exists():
        raise RunFolderError(f"{folder.path} is no search; resume it with train@{folder.path}")
    check_known_to_processes(spec, options)
    if not is_playground(spec.env.name):
        # with an unknown env every trial would fail
        with import_hint(folder):
            resolve_name(spec.env.name)
    logger.info(f"Continuing {folder.path}")
    return Search(spec, folder, _build_executor(spec, options), options).run()


def _find_latest(data_dir: Path, name: str | None) -> str:
    """The newest search, of one spec or of any; the newest run may be its validation."""
    journals = [
        path
        for path in data_dir.glob("*/info/*_study.log")
        if name is None or is_run_of(path.parents[1] / path.name.replace("_study.log", SPEC_SUFFIX), name)
    ]
    if not journals:
        of_spec = "" if name is None else f" of '{name}'"
        raise RunFolderError(f"there is no search{of_spec} in {data_dir} yet; start one with `slm-lab run SPEC search`")
    return str(max(journals, key=lambda path: path.stat().st_mtime_ns).parents[1])


def _build_executor(spec: Spec, options: Options) -> Executor:
    """An executor for as many parallel sessions as the machine or cluster has room for."""
    needs = spec.meta.search_resources
    cpu = max(needs.cpu, spec.meta.num_threads)
    limit = None
    if options.ray_address is None:
        limit = int(num_cores() / cpu)
        if needs.gpu and (num_gpu := count_gpus()):
            limit = min(limit, int(num_gpu / needs.gpu))
        if limit < 1:
            raise LabError(
                f"meta.search_resources: a session needs cpu {needs.cpu:g} and gpu {needs.gpu:g}, which is more than "
                f"this machine has ({num_cores()} cores); lower them"
            )
    return build_executor(options, Resources(cpu, needs.gpu), limit)


def validate(result: SearchResult, num_session: int, options: Options, is_continued: bool = False) -> TrialResult:
    """Train the winner with seeds that the search has not used, or resume that."""
    if result.best_spec is None:
        raise LabError(f"{result.folder}: no trial is done, so there is no winner to validate")
    spec = load_spec(result.best_spec).spec
    # sessions of another seed share no random numbers
    fresh = spec.replace(meta={"seed": spec.meta.seed + 1, "max_session": num_session})
    return start_or_continue(fresh, options) if is_continued else start(fresh, options)


def advise(spec: Spec, num_slot: int, probe: Probe | None) -> list[str]:
    """Notes for the user before a search starts, one line each."""
    num_key, num_trial = len(read_dimensions(spec)), spec.meta.max_trial or 1
    lines = [f"Search over {num_key} key(s) with {num_trial} trial(s), {num_slot} session(s) at once"]
    if num_trial < TRIALS_PER_KEY * num_key:
        lines.append(
            f"That is {num_trial / num_key:.1f} trials per key; 3 to 4 find something: -s meta.max_trial="
            f"{(TRIALS_PER_KEY + 1) * num_key}, or search fewer keys"
        )
    rungs, scheduler = find_rungs(spec), spec.meta.search_scheduler
    if rungs:
        factor = scheduler.reduction_factor if scheduler is not None else 1
        told = ", ".join(f"{rung:,}" for rung in rungs)
        lines.append(f"About one in {factor} trials continues at each of the frames {told}")
    if scheduler is not None and len(scheduler.sessions) > len(rungs) + 1:
        lines.append(
            f"meta.search_scheduler.sessions has {len(scheduler.sessions)} entries for {len(rungs)} rung(s); those "
            f"after the first {len(rungs) + 1} are never reached"
        )
    if probe is not None:
        most, expected = (
            frames / probe.fps / num_slot + num_trial * START_SECONDS / num_slot for frames in estimate_frames(spec)
        )
        early = f", about {format_seconds(expected)} with early stopping" if expected < most else ""
        lines.append(
            f"A session runs at {probe.fps:,.0f} frames per second and takes {probe.megabytes:,.0f} MB: the search "
            f"takes at most {format_seconds(most)}{early}"
        )
    return lines


def _probe(spec: Spec, options: Options, num_slot: int) -> tuple[Probe | None, list[str]]:
    """Time one session for a few seconds; returns its speed, or None if it was too short, and notes for the user.

    It runs in a separate process, since an env can end its process. If it fails, every trial would.
    """
    agent = spec.agent
    if isinstance(agent.algorithm, OffPolicySpec):
        # train from the start: acting alone is many times faster
        soon = agent.algorithm.model_copy(update={"training_start_step": spec.env.num_envs})
        agent = agent.model_copy(update={"algorithm": soon})
    row_every = 10 * spec.env.num_envs
    whole = spec.replace(meta={"max_session": num_slot, "compile": False})
    short = spec.model_copy(update={"agent": agent, "search": {}}).replace(
        meta={"compile": False, "log_frequency": row_every, "max_session": 1, "search_scheduler": None},
        env={"num_workers": 0},
    )
    quiet = replace(options, log_level="ERROR")
    notes: list[str] = []
    fps, first, end = 0.0, 0.0, None
    with tempfile.TemporaryDirectory() as path:
        folder = RunFolder(Path(path), spec.name)
        save_spec(folder.spec_file, whole)
        save_spec(folder.trial_spec_file(0), short)
        executor = LocalExecutor(1)
        executor.submit(SessionTask(folder.path, spec.name, 0, 0, quiet, "ERROR", spec.meta.num_threads, is_probe=True))
        # building an env may take minutes, so the limit counts from the notes, which come after that
        limit = math.inf
        try:
            while end is None and time.monotonic() < limit:
                for event in executor.poll(POLL_SECONDS):
                    if event.notes is not None:
                        notes, limit = event.notes, time.monotonic() + PROBE_LIMIT
                    if event.progress is not None and event.progress.what == "row":
                        fps = event.progress.fps
                        first = first or time.monotonic()
                    end = event.end or end
                if first and time.monotonic() - first > PROBE_SECONDS:
                    executor.stop((0, 0))
        finally:
            executor.close()
    if end is not None and end.result is None and not end.is_stopped:
        if end.reason == "input":
            raise LabError(end.error)
        reason = end.error.strip().splitlines()[-1]
        if end.reason != "diverged":
            raise LabError(f"no trial was started, since a session of the spec fails: {reason}")
        logger.warning(f"A session with the values of the spec itself fails: {reason}")
    if not fps:
        return None, notes
    return Probe(fps, peak_children_mb()), notes
