"""Start, continue and replay runs; what the command line and Python both call."""

import math
import os
import secrets
import shutil
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from loguru import logger

from slm_lab.agent.agent import Agent
from slm_lab.agent.memory.replay import check_fits
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import build_settings
from slm_lab.env.render import RenderMode, check_display
from slm_lab.env.vec_env import VecEnv
from slm_lab.experiment.checkpoint.published import PublishedAgent
from slm_lab.experiment.checkpoint.state import content_errors, load_state
from slm_lab.experiment.checkpoint.torch_file import load_old_model
from slm_lab.experiment.compilation import resolve_compile
from slm_lab.experiment.control import ENJOY_ENV, build_agent, play_episodes
from slm_lab.experiment.disk import check_disk, estimate_disk
from slm_lab.experiment.executor import Connect, load_ray
from slm_lab.experiment.signals import no_exit
from slm_lab.experiment.sink import check_sinks
from slm_lab.experiment.trial import Trial, TrialResult
from slm_lab.experiment.video import check_video_path, film_episodes, write_video
from slm_lab.lib.device import pick_device
from slm_lab.lib.errors import EnvError, LabError, RunFolderError, SpecError, StorageError
from slm_lab.lib.io import create_run_folder, remove_orphans, write_json
from slm_lab.lib.log import LogFormat, log_to
from slm_lab.lib.runtime import git_sha, import_modules, machine_facts, num_cores, package_versions
from slm_lab.lib.secret import redact
from slm_lab.results.folder import (
    DATA_DIR,
    RunFolder,
    find_best_trial,
    find_same_run,
    import_hint,
    open_run_folder,
    save_spec,
)
from slm_lab.results.metrics import MA_WINDOW, calc_spread, format_spread
from slm_lab.results.run import Run
from slm_lab.spec.algorithm import OffPolicySpec
from slm_lab.spec.loading import dump_spec, load_spec, refuse_secrets
from slm_lab.spec.memory import ReplaySpec
from slm_lab.spec.net import RecurrentNetSpec
from slm_lab.spec.reader import read_document
from slm_lab.spec.schema import Spec

# variables that set how libraries compute; they hold no secrets
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_CBWR", "ATEN_CPU_CAPABILITY")


@dataclass(frozen=True)
class Options:
    """How to run, beside what: none of it changes a result."""

    data_dir: Path = DATA_DIR
    log_level: str = "INFO"
    render: bool = False
    imports: tuple[str, ...] = ()
    # file for the episodes that enjoy plays
    video: Path | None = None
    # of the console; log files are for people
    log_format: LogFormat = "text"
    # sessions run on this Ray cluster; "local": on one of their own
    ray_address: str | None = None


def prepare(spec: Spec, render: bool = False, place: Path | None = None) -> tuple[Spec, list[str]]:
    """Build env and agent once, so that a mistake is told before anything is written.

    Returns the spec with what is decided now and not anew by a continued run, and what to know beforehand. What the
    run takes of the disk is told and checked if it is known where its files will be: in a run folder or a new one.
    """
    # a spec from Python has not been read from a file
    refuse_secrets(dump_spec(spec), f"spec '{spec.name}'")
    if render:
        check_display()
    check_sinks(spec)
    torch.set_num_threads(spec.meta.num_threads)
    here = Path.cwd()
    with no_exit():
        env = build_vec_env(build_settings(spec.env, (0,), 1, device=str(pick_device(spec.meta.device, 0))))
    try:
        agent = build_agent(spec, env, 0)
    finally:
        env.close()
        # an env may have changed it
        os.chdir(here)
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
        check_fits(replay.num_bytes, replay.spec.max_size, num_parallel)
        notes.append(
            f"{replay.spec.name} of {replay.spec.max_size:,} transitions: up to {replay.num_bytes / 1e6:,.1f} MB of "
            "memory per session, and as much on disk"
        )
    if place is not None:
        need = estimate_disk(spec, agent)
        check_disk(need, place)
        notes.append(str(need))
    return spec, notes


def check_known_to_processes(spec: Spec, options: Options) -> None:
    """Refuse what only the caller's own script has registered, where sessions are processes of their own."""
    if options.imports:
        return  # they may import the rest
    env, agent = gym.registry.get(spec.env.name), spec.agent
    if env is not None and str(getattr(env.entry_point, "__module__", env.entry_point)).split(":")[0] == "__main__":
        raise EnvError(f"env.name: '{spec.env.name}' {_tell_how_to_import('__main__')}")
    parts = {"algorithm.name": agent.algorithm, "memory.name": agent.memory, "net.type": agent.net}
    for key, part in parts.items():
        if not (module := type(part).__module__).startswith("slm_lab."):
            raise SpecError(f"agent.{key}: {type(part).__name__} {_tell_how_to_import(module)}")


def _tell_how_to_import(module: str) -> str:
    """What is wrong with something that a module has registered in this process only, and the fix."""
    fix = f"pass imports=['{module}'], or --import {module}"
    if module == "__main__":
        module = "your script (__main__)"
        fix = "move it to a module, such as my_module.py, and pass imports=['my_module'], or --import my_module"
    return f"is registered by {module}, which the processes of sessions do not import; {fix}"


def start(spec: Spec, options: Options) -> TrialResult:
    """Train a spec in a new run folder."""
    import_modules(options.imports)
    connect = find_cluster(options)
    # a folder that is not there yet holds nothing
    spec, notes = prepare(spec, options.render, options.data_dir / spec.name)
    if spec.meta.max_session > 1 or connect is not None:
        check_known_to_processes(spec, options)
    folder = RunFolder(create_run_folder(options.data_dir, spec.name), spec.name)
    try:
        save_spec(folder.trial_spec_file(0), spec)
        write_origin(spec, folder, options)
    except StorageError:
        # a folder without its spec is no run
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return _train(spec, folder, options, [f"Run folder {folder.path}", *notes], connect)


def start_or_continue(spec: Spec, options: Options) -> TrialResult:
    """Go on with the run of this spec that is in the data folder, or start one; what is done already only tells so."""
    import_modules(options.imports)
    path = find_same_run(spec, options.data_dir, is_search=False)
    if path is None:
        return start(spec, options)
    metrics = RunFolder(path, spec.name).trial_metrics_file(0)
    if metrics.exists() and read_document(metrics).get("is_complete"):
        logger.info(f"{path} is done already")
    return resume(str(path), options)


def write_origin(spec: Spec, folder: RunFolder, options: Options) -> None:
    """Write down what a run is and where it comes from."""
    save_spec(folder.spec_file, spec)
    facts = {
        # tells two runs apart that were started with the same words in the same second, on two machines
        "run_id": secrets.token_hex(8),
        "command": [redact(word) for word in sys.argv],
        **describe_machine(spec),
        "imports": list(options.imports),
    }
    write_json(folder.provenance_file, facts)


def describe_machine(spec: Spec) -> dict[str, Any]:
    """All that may change the bits of a result, but for the spec."""
    return {
        "git_sha": git_sha(),
        "versions": package_versions(),
        "machine": machine_facts(),
        "torch": {
            # with the kind of build, which the package's own version may leave out
            "version": torch.__version__,
            "device": str(pick_device(spec.meta.device, 0)),
            # which instructions kernels are chosen for
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        },
        "variables": {name: os.environ.get(name, "unset") for name in VARIABLES},
    }


def resume(where: str, options: Options, name: str | None = None) -> TrialResult:
    """Continue a run from its last checkpoints, or show its result if it is done."""
    import_modules(options.imports)
    connect = find_cluster(options)
    folder, saved = open_run_folder(where, options.data_dir, name)
    if folder.study_file.exists():
        raise RunFolderError(f"{folder.path} is a search; continue it with search@{folder.path}")
    with import_hint(folder):
        saved, notes = prepare(saved, options.render, folder.path)
    if saved.meta.max_session > 1 or connect is not None:
        check_known_to_processes(saved, options)
    # what is decided anew, such as updates that cannot be compiled here, holds for every session
    save_spec(folder.trial_spec_file(0), saved)
    remove_orphans(folder.path)
    return _train(saved, folder, options, [f"Continuing {folder.path}", *notes], connect)


def find_cluster(options: Options) -> Connect | None:
    return None if options.ray_address is None else load_ray(options.ray_address)


def _train(spec: Spec, folder: RunFolder, options: Options, notes: list[str], connect: Connect | None) -> TrialResult:
    try:
        with log_to(folder.log_file(), options.log_level):
            for note in notes:
                logger.info(note)
            return Trial(
                spec, folder, 0, options.imports, options.log_level, options.render, options.log_format, connect
            ).run()
    except StorageError as error:
        raise StorageError(
            f"{error}; checkpoints are whole: make room, then continue with slm-lab run train@{folder.path}"
        ) from None


def best_session(folder: RunFolder, spec: Spec, trial: int = 0) -> int:
    """The session with the best score; the first that has a model if no score is known."""
    scores = {}
    for session in range(spec.meta.max_session):
        if not folder.find_model(trial, session, "best").exists():
            continue
        path = folder.session_metrics_file(trial, session)
        if folder.is_published:
            path = path.with_name(f"{path.stem}_scalar_train.json")
        score = read_document(path).get("total_reward_ma") if path.exists() else None
        scores[session] = float(score) if isinstance(score, (int, float)) else float("-inf")
    if not scores:
        if folder.study_file.exists():
            raise RunFolderError(f"{folder.path} has kept no model; --keep N of a search keeps those of N trials")
        what = "no *_ckpt-best_net_model.pt; pull it again" if folder.is_published else "no trained model yet"
        more = "" if folder.is_published else f"; continue it with train@{folder.path}"
        raise RunFolderError(f"{folder.path} has {what}{more}")
    return max(scores, key=lambda session: scores[session])


def to_play(spec: Spec) -> Spec:
    """A copy whose agent keeps no past: playing needs none, and it may be larger than this machine."""
    spec = spec.replace(meta={"compile": False})
    memory = spec.agent.memory
    if not isinstance(memory, ReplaySpec) or isinstance(spec.agent.net, RecurrentNetSpec):
        return spec
    small = memory.model_copy(update={"max_size": 64 * spec.env.num_envs})
    return spec.model_copy(update={"agent": spec.agent.model_copy(update={"memory": small})})


def load_trained(
    where: str,
    data_dir: Path = DATA_DIR,
    num_envs: int = 1,
    render_mode: RenderMode | None = None,
    session: int | None = None,
) -> tuple[Agent, VecEnv, Spec]:
    """The best agent of a run with envs to play in."""
    folder, spec = open_run_folder(where, data_dir, may_be_published=True)
    trial = find_best_trial(folder.path)
    trial_spec = folder.trial_spec_file(trial)
    if folder.is_published:
        trial_spec = trial_spec.with_suffix(".json")
    if (folder.study_file.exists() or folder.is_published) and trial_spec.exists():
        spec = load_spec(trial_spec, folder.name).spec
    if session is None:
        session = best_session(folder, spec, trial)
    published = PublishedAgent(folder, trial, session) if folder.is_published else None
    if published is not None:
        spec = published.fit_spec(spec)
    torch.set_num_threads(spec.meta.num_threads)
    device = str(pick_device(spec.meta.device, session))
    settings = build_settings(spec.env, (ENJOY_ENV, spec.meta.seed, session), num_envs, device=device)
    with import_hint(folder):
        env = build_vec_env(settings, render_mode=render_mode)
    try:
        # initial weights are drawn from torch's global generator, which belongs to the caller here
        with torch.random.fork_rng(devices=[]):
            agent = build_agent(to_play(spec), env, session, num_envs)
        if published is not None:
            published.load_into(agent, env)
        else:
            path = folder.find_model(trial, session, "best")
            state = load_old_model(path) if path.suffix == ".pt" else load_state(path)
            with content_errors(path, "does not fit the spec beside it"):
                agent.load_model_state(state)
    except BaseException:
        env.close()
        raise
    return agent, env, spec


def enjoy(where: str, options: Options, num_episode: int, on_episode: Callable[[int, float], None]) -> list[float]:
    """Play episodes with the trained, deterministic policy; nothing of the run is written to."""
    if options.render and options.video is not None:
        raise LabError("--render and --video exclude each other: one opens a window, the other needs none")
    if options.video is not None:
        check_video_path(options.video)
    import_modules(options.imports)
    render_mode: RenderMode | None = "human" if options.render else "rgb_array" if options.video else None
    agent, env, _ = load_trained(where, options.data_dir, render_mode=render_mode)
    returns = []
    try:
        with ExitStack() as stack:
            if options.video is None:
                played = play_episodes(env, agent, num_episode)
            else:
                video = stack.enter_context(write_video(options.video, env.render_fps))
                played = film_episodes(env, agent, num_episode, video.add)
            for index, value in enumerate(played):
                returns.append(value)
                on_episode(index, value)
    finally:
        env.close()
    return returns


def summarize(run: Run) -> str:
    """The score with its spread and what it is of, in one line."""
    if run.spread is None:
        return "none yet: no episode has ended; train longer, or set env.max_t"
    return f"{format_spread(run.spread)} ({run.score_meaning})"


def summarize_training(run: Run) -> str | None:
    """The mean return of the last episodes of training; None where that is the score, or none has ended."""
    known = [score for score in run.get_scores("train").values() if math.isfinite(score)]
    if run.score_kind == "train" or not known:
        return None
    return f"{calc_spread(known).mean:.2f} (last {MA_WINDOW} episodes, exploring)"
