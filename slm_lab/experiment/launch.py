"""Start and resume runs, for the command line and the Python API."""

import math
import os
import secrets
import shlex
import shutil
import sys
from pathlib import Path

import gymnasium as gym
import torch
from loguru import logger

from slm_lab.agent.algorithm.offline import Offline
from slm_lab.agent.memory.replay import check_fits
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import build_settings
from slm_lab.env.render import check_display
from slm_lab.env.vec_env import SUCCESS
from slm_lab.experiment.build import build_session_agent
from slm_lab.experiment.compilation import resolve_compile
from slm_lab.experiment.disk import check_disk, estimate_disk
from slm_lab.experiment.executor import check_executor
from slm_lab.experiment.growth import Schedules, grow, save_growth
from slm_lab.experiment.initial import load_initial
from slm_lab.experiment.options import Options
from slm_lab.experiment.signals import no_exit
from slm_lab.experiment.sink import check_sinks
from slm_lab.experiment.stopping import check_stop
from slm_lab.experiment.tracker import list_columns
from slm_lab.experiment.trial import InProcess, Trial, TrialResult, read_complete
from slm_lab.lib.data import Document, ReadOnlyDocument
from slm_lab.lib.device import free_memory, is_too_large, pick_device
from slm_lab.lib.errors import EnvError, RunFolderError, SpecError, StorageError
from slm_lab.lib.io import create_run_folder, remove_orphans, write_json
from slm_lab.lib.log import log_to
from slm_lab.lib.runtime import git_sha, import_modules, machine_facts, num_cores, package_versions
from slm_lab.lib.secret import redact
from slm_lab.lib.system import require_posix
from slm_lab.results.folder import RunFolder, find_same_run, import_hint, open_run_folder, save_spec
from slm_lab.results.metrics import MA_WINDOW, calc_spread, format_spread
from slm_lab.results.run import Run
from slm_lab.spec.algorithm import OffPolicySpec
from slm_lab.spec.loading import dump_spec, refuse_secrets
from slm_lab.spec.schema import Spec

# environment variables that affect how libraries compute; they hold no secrets
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_CBWR", "ATEN_CPU_CAPABILITY")


def prepare(spec: Spec, render: bool = False, place: Path | None = None, is_new: bool = True) -> tuple[Spec, list[str]]:
    """Build env and agent once, to find mistakes before anything is written.

    Returns the spec, with decisions that hold for the whole run, and notes for the user. `place` is the run folder,
    which need not exist; with it the disk use is estimated and checked. A new run also loads `agent.init_from`.
    """
    try:
        return _prepare(spec, render, place, is_new)
    finally:
        free_memory()


def _prepare(spec: Spec, render: bool, place: Path | None, is_new: bool) -> tuple[Spec, list[str]]:
    # specs from files are checked when read, specs from Python here
    refuse_secrets(dump_spec(spec), f"spec '{spec.name}'")
    if render:
        check_display()
    check_sinks(spec)
    torch.set_num_threads(spec.meta.num_threads)
    here = Path.cwd()
    with no_exit():
        device = str(pick_device(spec.meta.device, 0))
        env = build_vec_env(build_settings(spec.env, (0,), 1, is_training=True, device=device))
    try:
        if spec.env.info_keys:
            env.try_episode()
        try:
            agent = build_session_agent(spec, env, 0)
        except RuntimeError as error:
            if not is_too_large(error):
                raise
            raise SpecError(
                "agent.net: its weights do not fit into the memory of this machine; use smaller layers"
            ) from None
        if is_new and spec.agent.init_from is not None:
            load_initial(agent, spec.agent.init_from)
    finally:
        env.close()
        # the env may have changed the working folder
        os.chdir(here)
    told = dict.fromkeys((*spec.env.info_keys, SUCCESS))
    names = (*agent.algorithm.metric_names, *agent.norm_names)
    check_stop(spec, list_columns(names, told), list_columns((), told))
    spec, note = resolve_compile(spec, agent)
    notes = [note]
    algorithm = spec.agent.algorithm
    if isinstance(algorithm, OffPolicySpec):
        utd = algorithm.calc_utd(spec.env.num_envs)
        every = max(spec.env.num_envs, algorithm.training_frequency)
        notes.append(
            f"Trains with {algorithm.num_grad_step} gradient step(s) every {every} frames after frame "
            f"{algorithm.training_start_step:,}: update-to-data ratio {utd:.3g}"
        )
    for replay in agent.algorithm.replays.values():
        num_parallel = min(spec.meta.max_session, max(1, num_cores() // spec.meta.num_threads))
        check_fits(replay.num_bytes, replay.spec.max_size, agent.device, num_parallel)
        notes.append(
            f"{replay.spec.name} of {replay.spec.max_size:,} transitions: up to {replay.num_bytes / 1e6:,.1f} MB of "
            "memory per session, and as much on disk"
        )
    if isinstance(agent.algorithm, Offline):
        notes.append(str(agent.algorithm.memory))
    if place is not None:
        need = estimate_disk(spec, agent)
        check_disk(need, place)
        notes.append(str(need))
    return spec, notes


def check_known_to_processes(spec: Spec, options: Options) -> None:
    """Refuse envs and plugins that only this process has registered, for sessions in separate processes."""
    if options.imports:
        return  # these modules may register everything
    env, agent = gym.registry.get(spec.env.name), spec.agent
    if env is not None and str(getattr(env.entry_point, "__module__", env.entry_point)).split(":")[0] == "__main__":
        raise EnvError(f"env.name: '{spec.env.name}' {_tell_how_to_import('__main__')}")
    parts = {"algorithm.name": agent.algorithm, "memory.name": agent.memory, "net.type": agent.net}
    for key, part in parts.items():
        if not (module := type(part).__module__).startswith("slm_lab."):
            raise SpecError(f"agent.{key}: {type(part).__name__} {_tell_how_to_import(module)}")


def _tell_how_to_import(module: str) -> str:
    """Why something that is registered only in this process cannot be used, and the fix."""
    fix = f"pass imports=['{module}'], or --import {module}"
    if module == "__main__":
        module = "your script (__main__)"
        fix = "move it to a module, such as my_module.py, and pass imports=['my_module'], or --import my_module"
    return f"is registered by {module}, which the processes of sessions do not import; {fix}"


def start(spec: Spec, options: Options, in_process: InProcess | None = None) -> TrialResult:
    """Train a spec in a new run folder; with `in_process` the sessions train in this process, one after the other."""
    require_posix("training")
    import_modules(options.imports)
    check_executor(options)
    # the folder does not exist yet; its name is enough to find the disk
    spec, notes = prepare(spec, options.render, options.data_dir / spec.name)
    if in_process is None and (spec.meta.max_session > 1 or options.ray_address is not None):
        check_known_to_processes(spec, options)
    folder = RunFolder(create_run_folder(options.data_dir, spec.name), spec.name)
    try:
        # first, because without it the folder would not count as a run
        write_origin(spec, folder, options)
        save_spec(folder.trial_spec_file(0), spec)
    except StorageError:
        # a folder without a spec is not a run
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return _train(spec, folder, options, [f"Run folder {folder.path}", *notes], in_process)


def start_or_continue(spec: Spec, options: Options) -> TrialResult:
    """Resume the run of this spec in the data folder, or start one; a run that is done only shows its result."""
    import_modules(options.imports)
    path = find_same_run(spec, options.data_dir, is_search=False)
    return start(spec, options) if path is None else resume(str(path), options)


def write_origin(spec: Spec, folder: RunFolder, options: Options) -> None:
    """Write the spec and provenance of a run."""
    save_spec(folder.spec_file, spec)
    facts = {
        # distinguishes runs of the same command in the same second on two machines
        "run_id": secrets.token_hex(8),
        "command": [redact(word) for word in sys.argv],
        **describe_machine(spec),
        "imports": list(options.imports),
    }
    write_json(folder.provenance_file, facts)


def describe_machine(spec: Spec) -> Document:
    """Everything beside the spec that may change the bits of a result."""
    return {
        "git_sha": git_sha(),
        "versions": package_versions(),
        "machine": machine_facts(),
        "torch": {
            # includes the kind of build, unlike the version of the package
            "version": torch.__version__,
            "device": str(pick_device(spec.meta.device, 0)),
            # the instruction set that kernels use
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        },
        "variables": {name: os.environ.get(name, "unset") for name in VARIABLES},
    }


def resume(
    where: str,
    options: Options,
    name: str | None = None,
    changes: ReadOnlyDocument | None = None,
    schedules: Schedules | None = None,
    in_process: InProcess | None = None,
) -> TrialResult:
    """Resume a run from its last checkpoints, or show its result if it is done; `changes` make it longer."""
    require_posix("training")
    import_modules(options.imports)
    check_executor(options)
    folder, saved = open_run_folder(where, options.data_dir, name)
    if folder.study_file.exists():
        raise RunFolderError(f"{folder.path} is a search; resume it with search@{folder.path}")
    if not changes and in_process is None and (complete := read_complete(saved, folder)) is not None:
        longer = shlex.join(["slm-lab", "resume", str(folder.path), "-s", "env.max_frame=N"])
        logger.info(f"{folder.path} is complete, nothing is left to train; {longer} makes it longer")
        return complete
    before = saved
    with import_hint(folder):
        if changes:
            saved = grow(folder, saved, changes, schedules)
        saved, notes = prepare(saved, options.render, folder.path, is_new=False)
    if in_process is None and (saved.meta.max_session > 1 or options.ray_address is not None):
        check_known_to_processes(saved, options)
    if changes:
        save_growth(folder, before, saved, schedules)
    # decisions that were made again, for example not to compile on this machine, hold for every session
    save_spec(folder.trial_spec_file(0), saved)
    remove_orphans(folder.path)
    return _train(saved, folder, options, [f"Continuing {folder.path}", *notes], in_process)


def _train(
    spec: Spec, folder: RunFolder, options: Options, notes: list[str], in_process: InProcess | None
) -> TrialResult:
    try:
        with log_to(folder.log_file(), options.log_level):
            for note in notes:
                logger.info(note)
            return Trial(spec, folder, options, in_process=in_process).run()
    except StorageError as error:
        raise StorageError(
            f"{error}; checkpoints are whole: make room, then resume with slm-lab run train@{folder.path}"
        ) from None


def summarize(run: Run) -> str:
    """The score with its spread and its meaning, in one line."""
    if run.spread is None:
        return "none yet: no episode has ended; train longer, or set env.max_t"
    return f"{format_spread(run.spread)} ({run.score_meaning})"


def summarize_training(run: Run) -> str | None:
    """The mean return of the last training episodes; None if that is the score, or if no episode has ended."""
    known = [score for score in run.get_scores("train").values() if math.isfinite(score)]
    if run.score_kind == "train" or not known:
        return None
    return f"{calc_spread(known).mean:.2f} (last {MA_WINDOW} episodes, exploring)"
