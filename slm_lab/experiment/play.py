"""Load trained agents and play with them, without exploring."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

import numpy as np
import torch
from loguru import logger

from slm_lab.agent.agent import Agent, reset_rows
from slm_lab.env.render import RenderMode
from slm_lab.env.vec_env import Episode, VecEnv
from slm_lab.experiment.build import ENJOY_ENV, build_env, build_session_agent
from slm_lab.experiment.checkpoint.published import PublishedAgent
from slm_lab.experiment.checkpoint.state import content_errors, load_state
from slm_lab.experiment.checkpoint.torch_file import load_old_model
from slm_lab.experiment.options import Options
from slm_lab.experiment.video import check_video_path, write_video
from slm_lab.lib.array import Array
from slm_lab.lib.data import State
from slm_lab.lib.device import count_gpus
from slm_lab.lib.errors import LabError, RunFolderError
from slm_lab.lib.runtime import import_modules
from slm_lab.results.folder import DATA_DIR, RunFolder, find_best_trial, import_hint, open_run_folder
from slm_lab.spec.loading import load_spec
from slm_lab.spec.reader import read_document
from slm_lab.spec.schema import Spec


def play_episodes(
    env: VecEnv, agent: Agent, num_episode: int, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[Episode]:
    """Play without exploring and yield episodes as they end, first one of each env, until there are `num_episode`."""
    obs, carry = env.reset(), agent.init_carry(env.num_envs)
    env.pop_finished()
    waiting = np.ones(env.num_envs, bool)
    count = 0
    while not should_stop():
        act = agent.act(obs, carry)
        step = env.step(act.action.numpy(force=True))
        ended = env.pop_episodes()
        # counting each env once first keeps short episodes from crowding out long ones
        for episode in ended:
            if waiting[episode.env] or not waiting.any():
                waiting[episode.env] = False
                yield episode
                count += 1
                if count == num_episode:
                    return
        obs, carry = step.obs, reset_rows(act.carry, step.done)


def film_episodes(
    env: VecEnv,
    agent: Agent,
    num_episode: int,
    add: Callable[[Array], None],
    is_over: Callable[[], bool] = lambda: False,
) -> Iterator[float]:
    """Play without exploring in one env, pass pictures to `add`, and yield the raw return of each episode."""
    obs, carry = env.reset(), agent.init_carry(1)
    env.pop_finished()
    for _ in range(num_episode):
        add(env.render())
        ended = False
        while not ended:
            if is_over():
                return
            act = agent.act(obs, carry)
            step = env.step(act.action.numpy(force=True))
            ended = bool(step.ended[0])
            # an env that ended was reset, so `render` would show its next episode
            add(env.render_ended() if ended else env.render())
            obs, carry = step.obs, reset_rows(act.carry, step.done)
        yield env.pop_finished()[0]


def best_session(folder: RunFolder, spec: Spec, trial: int = 0) -> int:
    """The session with the best score; the first that has a model if no score is known."""
    scores = {}
    for session in range(spec.meta.max_session):
        if not folder.find_model(trial, session, "best").exists():
            continue
        path = folder.session_metrics_file(trial, session)
        if folder.is_published:
            path = path.with_name(f"{path.stem}_scalar_train.json")
        metrics = read_document(path) if path.exists() else {}
        score = metrics.get("total_reward_ma")
        if score is None and metrics.get("final_eval"):
            # learning from recorded steps has no training return
            score = float(np.mean(metrics["final_eval"]))
        scores[session] = float(score) if isinstance(score, (int, float)) else float("-inf")
    if not scores:
        if folder.study_file.exists():
            raise RunFolderError(f"{folder.path} has kept no model; --keep N of a search keeps those of N trials")
        what = "no *_ckpt-best_net_model.pt; pull it again" if folder.is_published else "no trained model yet"
        more = "" if folder.is_published else f"; resume it with train@{folder.path}"
        raise RunFolderError(f"{folder.path} has {what}{more}")
    return max(scores, key=lambda session: scores[session])


def pick_model(folder: RunFolder, trial: int, session: int, at: int | None = None) -> Path:
    """The best model of a session, or the kept one nearest to frame `at`."""
    if at is None:
        return folder.find_model(trial, session, "best")
    kept = folder.find_kept_models(trial, session)
    if not kept:
        raise RunFolderError(
            f"{folder.path} has kept no models of session {session}; train with -s meta.keep_checkpoints=FRAMES"
        )
    frame = min(kept, key=lambda frame: (abs(frame - at), frame))
    if frame != at:
        logger.info(f"The model of frame {frame:,} is the nearest to {at:,}")
    return kept[frame]


def read_model(path: Path) -> State:
    """Read a model file; older versions wrote `.pt` files."""
    return load_old_model(path) if path.suffix == ".pt" else load_state(path)


def read_checkpoint_model(state: State) -> State:
    """The model within a checkpoint, with everything else that its algorithm keeps."""
    agent = state["agent"]
    return {**agent["algorithm"], "obs_normalizer": agent["obs_normalizer"]}


def to_play(spec: Spec) -> Spec:
    """A copy for an agent that only acts: not compiled, and on the CPU unless its device is a GPU of this machine."""
    kind, _, index = spec.meta.device.partition(":")
    is_here = kind in ("auto", "cuda") and int(index or 0) < count_gpus()
    return spec.replace(meta={"compile": False, "device": spec.meta.device if is_here else "cpu"})


@dataclass(frozen=True)
class Saved:
    """A saved agent of a run: its files, and the spec that it was trained with."""

    folder: RunFolder
    spec: Spec
    trial: int
    session: int
    # the model file; None for a run of the published SLM-Lab
    path: Path | None

    def load_into(self, agent: Agent) -> None:
        """Give an agent the saved weights and normalisers."""
        assert self.path is not None
        with content_errors(self.path, "does not fit the spec beside it"):
            state = read_model(self.path)
            is_checkpoint = "agent" in state
            agent.load_model_state(read_checkpoint_model(state) if is_checkpoint else state)


def find_saved(where: str, data_dir: Path = DATA_DIR, session: int | None = None, at: int | None = None) -> Saved:
    """Find the best agent of a run or of one session, or the agent as it was near frame `at`."""
    folder, spec = open_run_folder(where, data_dir, may_be_published=True)
    trial = find_best_trial(folder.path)
    spec = read_trial_spec(folder, spec, trial)
    if session is None:
        session = best_session(folder, spec, trial)
    elif session >= spec.meta.max_session:
        raise RunFolderError(f"{folder.path} has no session {session}; it has {spec.meta.max_session} of them, from 0")
    path = None if folder.is_published else pick_model(folder, trial, session, at)
    return Saved(folder, spec, trial, session, path)


def read_trial_spec(folder: RunFolder, spec: Spec, trial: int) -> Spec:
    """The spec of a trial, which a search may have changed."""
    path = folder.trial_spec_file(trial)
    if folder.is_published:
        path = path.with_suffix(".json")
    if (folder.study_file.exists() or folder.is_published) and path.exists():
        return load_spec(path, folder.name).spec
    return spec


def load_trained(
    where: str,
    data_dir: Path = DATA_DIR,
    num_envs: int = 1,
    render_mode: RenderMode | None = None,
    session: int | None = None,
    at: int | None = None,
) -> tuple[Agent, VecEnv, Spec]:
    """Load the agent that `find_saved` finds, with envs to play in."""
    return load_saved(find_saved(where, data_dir, session, at), num_envs, render_mode)


def load_saved(saved: Saved, num_envs: int = 1, render_mode: RenderMode | None = None) -> tuple[Agent, VecEnv, Spec]:
    """Load a saved agent, with envs to play in."""
    folder, spec, session = saved.folder, saved.spec, saved.session
    published = PublishedAgent(folder, saved.trial, session) if folder.is_published else None
    if published is not None:
        spec = published.fit_spec(spec)
    # this machine may lack the device of the training
    spec = spec.replace(meta={"device": to_play(spec).meta.device})
    torch.set_num_threads(spec.meta.num_threads)
    with import_hint(folder):
        env = build_env(spec, ENJOY_ENV, session, num_envs, render_mode=render_mode)
    try:
        # initial weights come from torch's global generator; do not disturb the caller's
        with torch.random.fork_rng(devices=[]):
            agent = build_session_agent(to_play(spec), env, session, num_envs, only_acts=True)
        if published is not None:
            published.load_into(agent, env)
        else:
            saved.load_into(agent)
    except BaseException:
        env.close()
        raise
    return agent, env, spec


def enjoy(
    where: str,
    options: Options,
    num_episode: int,
    on_episode: Callable[[int, float], None],
    at: int | None = None,
    session: int | None = None,
) -> list[float]:
    """Play episodes with the trained, deterministic policy; the run folder is not changed."""
    if options.render and options.video is not None:
        raise LabError("--render and --video exclude each other: one opens a window, the other needs none")
    if options.video is not None:
        check_video_path(options.video)
    import_modules(options.imports)
    render_mode: RenderMode | None = "human" if options.render else "rgb_array" if options.video else None
    agent, env, _ = load_trained(where, options.data_dir, render_mode=render_mode, session=session, at=at)
    returns = []
    try:
        with ExitStack() as stack:
            if options.video is None:
                played: Iterator[float] = map(attrgetter("total_reward"), play_episodes(env, agent, num_episode))
            else:
                video = stack.enter_context(write_video(options.video, env.render_fps))
                played = film_episodes(env, agent, num_episode, video.add)
            for index, value in enumerate(played):
                returns.append(value)
                on_episode(index, value)
    finally:
        env.close()
    return returns
