"""Session: one seed, one agent, one loop."""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from loguru import logger
from torch import Tensor

from slm_lab.agent.agent import Agent, reset_rows
from slm_lab.agent.algorithm.base import Metrics
from slm_lab.agent.compile.engine import CLOCK
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import build_settings, share_cores
from slm_lab.env.vec_env import Obs, VecEnv, to_host
from slm_lab.experiment.checkpoint.replay_files import ReplayFiles
from slm_lab.experiment.checkpoint.state import content_errors, load_latest, save_state
from slm_lab.experiment.clock import Stopwatch
from slm_lab.experiment.compilation import MIN_COMPILED_STEP
from slm_lab.experiment.fault import report_fault
from slm_lab.experiment.sink import Sink, build_sinks, close_sinks, write_row
from slm_lab.experiment.tracker import Tracker
from slm_lab.experiment.video import film_episodes, write_video
from slm_lab.lib.device import pick_device
from slm_lab.lib.due import Due
from slm_lab.lib.errors import CheckpointError, DivergenceError, EnvFaultError, WorkerError
from slm_lab.lib.io import lock_file
from slm_lab.results.folder import RunFolder, previous_file
from slm_lab.results.metrics import SessionResult
from slm_lab.spec.loading import dump_spec
from slm_lab.spec.reader import printable
from slm_lab.spec.schema import Spec

# Parts of the seed key that keep envs for training and for evaluation apart.
TRAIN_ENV, EVAL_ENV, ENJOY_ENV, VIDEO_ENV, FINAL_ENV = 1, 2, 3, 4, 5
# Checkpoints by the clock come so often, or as seldom as keeps their share of the time: those of a large replay are
# slow to write.
CHECKPOINT_SECONDS = 10.0
CHECKPOINT_SHARE = 0.005
# a video of training shows the first episode, at most so many steps of it
MAX_VIDEO_STEP = 1000
# The last evaluation ends here, or after as many steps as training took: ten games of an hour each are fewer, and
# episodes may have no end.
MAX_FINAL_STEP = 300_000
# Evaluations that nobody asked for may take this share of the work of a run. It is counted in steps, not by the clock,
# so that a resumed run holds the same ones: a step of training counts as much as one of an evaluation, and a gradient
# step, which takes longer, as much as several: more where runs are too short to be compiled and envs few, so that
# updates are most of the time.
EVAL_SHARE = 0.05
GRADIENT_COST, PLAIN_GRADIENT_COST = 3, 8
# a session whose parent was killed needs a moment to save and end
LOCK_SECONDS = 20.0
FORMAT = 3
Grade = Literal["exact", "statistical"]
# what a session tells of: a row of its table, or what it is at that takes long
What = Literal["row", "starting", "compiling", "compiled"]


@dataclass(frozen=True)
class Progress:
    """Where a session stands; sent to whoever shows it."""

    session: int
    frame: int
    max_frame: int
    fps: float = math.nan
    total_reward: float = math.nan
    total_reward_ma: float = math.nan
    # of the last evaluation
    eval_reward: float = math.nan
    what: What = "row"


def build_agent(spec: Spec, env: VecEnv, session: int, num_envs: int | None = None, trial: int = 0) -> Agent:
    """The agent of a session, with the seeds of that session."""
    device = pick_device(spec.meta.device, trial + session)
    num_envs = num_envs or spec.env.num_envs
    key = (spec.meta.seed, session)
    return Agent(spec, env.facts, num_envs, key, device)


class Session:
    """Trains one agent from its first frame, or from its last checkpoint, to the end."""

    def __init__(
        self,
        spec: Spec,
        folder: RunFolder,
        trial: int,
        session: int,
        on_progress: Callable[[Progress], None],
        should_stop: Callable[[], bool],
        render: bool = False,
        imports: tuple[str, ...] = (),
        end_frame: int | None = None,
    ) -> None:
        torch.set_num_threads(spec.meta.num_threads)
        self.spec = spec
        self.folder = folder
        self.trial = trial
        self.session = session
        self.on_progress = on_progress
        self.should_stop = should_stop
        settings = build_settings(
            spec.env,
            (TRAIN_ENV, spec.meta.seed, session),
            num_cores=share_cores(spec),
            device=str(pick_device(spec.meta.device, trial + session)),
            imports=imports,
        )
        self.env = build_vec_env(settings, spec.env.num_workers, "human" if render else None)
        if not self.env.is_exact:
            logger.info(
                f"Env backend {spec.env.backend}: a run repeats from its seed; one that was stopped continues "
                "statistically, with new episodes"
            )
        self.agent = build_agent(spec, self.env, session, trial=trial)
        names = (*self.agent.algorithm.metric_names, *self.agent.norm_names)
        self.tracker = Tracker(folder.table_file(trial, session, "train"), names)
        # the table is always there, without rows if nothing is evaluated
        self.eval_tracker = Tracker(folder.table_file(trial, session, "eval"), ())
        self.eval_env: VecEnv | None = None
        self.video_env: VecEnv | None = None
        # built when it is known which frame the session goes on from
        self.sinks: list[Sink] = []
        self.log_due = Due(spec.meta.log_frequency)
        self.eval_due = Due(spec.eval_every) if spec.meta.num_eval_episode else None
        self.save_due = Due(spec.meta.checkpoint_frequency) if spec.meta.checkpoint_frequency else None
        self.video_due = Due(spec.meta.video_frequency) if spec.meta.video_frequency and session == 0 else None
        if self.video_due is not None and render:
            # MuJoCo cannot draw into a window and into memory by turns
            logger.warning("meta.video_frequency: no videos while --render shows a window")
            self.video_due = None
        self.replay_files = {
            name: ReplayFiles(folder.replay_prefix(trial, session, name), replay)
            for name, replay in self.agent.algorithm.replays.items()
        }
        self.frame = 0
        # a replay of a part of a run ends where that part does
        self.end_frame = min(spec.env.max_frame, end_frame or spec.env.max_frame)
        # how a continued session found its envs; None for one that began anew
        self.grade: Grade | None = None
        # what the last checkpoint on disk holds
        self.saved: tuple[int, ...] | None = None
        # the next frame at which a row, an evaluation or a video may be due: one comparison per step
        self.next_due = 0
        self.watch = Stopwatch(CLOCK)
        self.last_save = time.perf_counter()
        self.save_seconds = 0.0
        self.best_model: dict[str, Any] | None = None
        # an evaluation that a stop has cut short, to be made up for
        self.is_eval_due = False
        # steps that evaluations took so far, and that the longest took
        self.eval_step = 0
        self.eval_length = 0

    def run(self) -> SessionResult:
        """Train to the end or until asked to stop; either way everything is saved."""
        self._tell("starting")
        CLOCK.on_change = lambda is_compiling: self._tell("compiling" if is_compiling else "compiled")
        try:
            with lock_file(self.folder.lock_file(self.trial, self.session), LOCK_SECONDS):
                return self._run()
        except (DivergenceError, EnvFaultError) as error:
            place = (self.trial, self.session, self.frame)
            raise report_fault(error, self.folder, self.spec, *place, self.agent) from error
        finally:
            CLOCK.on_change = lambda is_compiling: None
            self.tracker.close()
            self.env.close()
            for env in (self.eval_env, self.video_env):
                if env is not None:
                    env.close()
            self.eval_tracker.close()
            close_sinks(self.sinks)

    def _run(self) -> SessionResult:
        obs, carry = self._begin()
        env, agent, watch = self.env, self.agent, self.watch
        watch.start()
        while self.frame < self.end_frame and not self.should_stop():
            drawn = agent.context.act_generator.get_state() if env.is_remote else None
            act = agent.act(obs, carry, explore=True)
            watch.lap("act")
            try:
                step = env.step(act.action.cpu().numpy())
            except WorkerError:
                # a step that was not done leaves nothing behind, so the run continues from here as if nothing happened
                if drawn is not None:
                    agent.context.act_generator.set_state(drawn)
                    self._save(obs, carry)
                raise
            watch.lap("env")
            agent.observe(obs, act, step)
            obs, carry = step.obs, reset_rows(act.carry, step.done)
            watch.lap("observe")
            self.frame += env.num_envs
            metrics = agent.update(self.frame)
            watch.lap("update")
            if metrics is not None or env.finished or self.frame >= self.next_due:
                self._record(metrics)
            now = watch.lap("record")
            for files in self.replay_files.values():
                files.flush()
            if self._is_save_due(now):
                self._save(obs, carry)
            watch.lap("save")
        is_done = self.frame >= self.spec.env.max_frame
        if is_done and (not self.tracker.rows or self.tracker.last("frame") != self.frame):
            self._log_row()
        if self.saved != self._mark():
            self._save(obs, carry)
        else:
            # a kill may have come between the checkpoint and the models
            self._save_models()
        watch.lap("save")
        final_eval = self._play_final() if is_done else []
        watch.lap("evaluate")
        return SessionResult(self.session, is_done, self.frame, watch.total, watch.phases, final_eval)

    # --- start and continuation

    def _begin(self) -> tuple[Obs, Any]:
        """The first observation and hidden state, or those of the checkpoint."""
        path = self.folder.resume_file(self.trial, self.session)
        state, problems = load_latest(path, self._load_rows)
        for problem in problems:
            logger.warning(f"{problem}; the checkpoint before it is used")
        if state is None:
            self.eval_tracker.open()
            self.sinks = build_sinks(self.spec, self.folder, self.trial, self.session)
            return self.env.reset(), self.agent.init_carry(self.spec.env.num_envs)
        with content_errors(previous_file(path) if problems else path):
            obs, carry = self._restore(state, path)
        self.sinks = build_sinks(self.spec, self.folder, self.trial, self.session, self.frame + 1)
        # not where the one before was used
        if path.exists():
            self.saved = self._mark()
        if self.is_eval_due:
            self._evaluate()
        return obs, carry

    def _restore(self, state: dict[str, Any], path: Path) -> tuple[Obs, Any]:
        """Go on where a checkpoint was written."""
        if state.get("format") != FORMAT:
            raise CheckpointError(f"{path}: was written by another version of the lab; continue it with that one")
        if state.get("spec") != self._identity():
            raise CheckpointError(f"{path}: belongs to another spec; continue it with the spec it was made with")
        # checkpoints of before had no place
        place = state.get("place", self._place())
        if place != self._place():
            told = printable(f"trial {place.get('trial')} session {place.get('session')}")
            raise CheckpointError(f"{path}: is that of {told}; was it copied? Put the right one in its place")
        self.agent.load_state_dict(state["agent"])
        self.tracker.load_state_dict(state["tracker"])
        # runs that were begun before evaluations were held by default have none
        if state["eval_tracker"] is None:
            self.eval_tracker.open()
        else:
            self.eval_tracker.load_state_dict(state["eval_tracker"])
        self.eval_step, self.eval_length = (int(count) for count in state.get("eval_steps", (0, 0)))
        self.frame = read_frame(state)
        self.watch.total = float(state["wall_t"])
        phases = {str(name): float(seconds) for name, seconds in state["phases"].items()}
        if not all(math.isfinite(seconds) and seconds >= 0 for seconds in (self.watch.total, *phases.values())):
            raise ValueError("its times are not numbers of seconds")
        self.watch.phases.update(phases)
        self.best_model = state["best_model"]
        if self.best_model is not None:
            check_form(self.best_model, self.agent.model_state(), "best_model")
        self.is_eval_due = bool(state["is_eval_due"]) and self.eval_due is not None
        for due in (self.log_due, self.eval_due, self.save_due, self.video_due):
            if due is not None:
                due.skip_to(self.frame)
        obs = self.env.load_state_dict(state["env"])
        is_exact = np.array_equal(to_host(obs), state["obs"]) and self.env.has_same_return
        self.grade = "exact" if is_exact else "statistical"
        if is_exact:
            logger.info(f"Session {self.session} continues at frame {self.frame}: exact")
        else:
            logger.warning(
                f"Session {self.session} continues at frame {self.frame}: statistical only, because the env could "
                "not be rebuilt from its seed and actions; scores stay comparable, bits do not"
            )
        # episodes that start anew have nothing to remember
        carry = self.agent.init_carry(self.spec.env.num_envs)
        if is_exact:
            carry = state["carry"]
            if carry is not None and not (isinstance(carry, Tensor) and len(carry) == self.spec.env.num_envs):
                raise ValueError("its hidden states are not those of as many envs")
        return obs, None if carry is None else carry.to(self.agent.device)

    def _load_rows(self, state: dict[str, Any]) -> None:
        is_own = state.get("spec") == self._identity() and state.get("place", self._place()) == self._place()
        if state.get("format") != FORMAT or not is_own:
            return  # refused by the caller
        for name, files in self.replay_files.items():
            files.load(state["rows"][name])

    def _identity(self) -> dict[str, Any]:
        """What must not differ between a checkpoint and the run that continues it."""
        spec = dump_spec(self.spec)[self.spec.name]
        # how envs are stepped changes no number
        for key in ("max_frame", "num_workers", "backend", "step_timeout"):
            spec["env"].pop(key)
        return {key: spec[key] for key in ("agent", "env")} | {"seed": self.spec.meta.seed}

    def _place(self) -> dict[str, int]:
        """Whose checkpoint it is: sessions of a spec differ in nothing else."""
        return {"trial": self.trial, "session": self.session}

    def _save(self, obs: Obs, carry: Any) -> None:
        folder, trial, session = self.folder, self.trial, self.session
        began = time.perf_counter()
        # the good checkpoint is not replaced by one that no one can go on from
        self.agent.check_weights()
        state = {
            "format": FORMAT,
            "spec": self._identity(),
            "place": self._place(),
            "agent": self.agent.state_dict(),
            "rows": {name: files.save() for name, files in self.replay_files.items()},
            "env": self.env.state_dict(),
            "obs": to_host(obs),
            "carry": carry,
            "tracker": self.tracker.state_dict(),
            "eval_tracker": self.eval_tracker.state_dict(),
            "eval_steps": [self.eval_step, self.eval_length],
            "frame": self.frame,
            "wall_t": self.watch.total,
            "phases": dict(self.watch.phases),
            "best_model": self.best_model,
            "is_eval_due": self.is_eval_due,
        }
        save_state(folder.resume_file(trial, session), state, keep_previous=True)
        self.saved = self._mark()
        for files in self.replay_files.values():
            files.clean()
        self._save_models()
        self.last_save = time.perf_counter()
        self.save_seconds = self.last_save - began

    def _save_models(self) -> None:
        model = self.agent.model_state()
        save_state(self.folder.model_file(self.trial, self.session, "last"), model)
        save_state(self.folder.model_file(self.trial, self.session, "best"), self.best_model or model)

    def _mark(self) -> tuple[int, ...]:
        """What changes when there is something to save: a second checkpoint of it would drop the one before."""
        return self.frame, len(self.tracker.rows), self.eval_step, self.is_eval_due

    def _is_save_due(self, now: float) -> bool:
        # saving changes nothing in the run, so it may follow the clock on the wall
        if self.save_due is not None:
            return self.save_due(self.frame)
        return now - self.last_save > max(CHECKPOINT_SECONDS, self.save_seconds / CHECKPOINT_SHARE)

    # --- records

    def _record(self, metrics: Metrics | None) -> None:
        if metrics is not None or self.env.finished:
            self.tracker.record(self.env.pop_finished(), metrics)
        if self.log_due(self.frame):
            self._log_row()
        if self.eval_due is not None and self.eval_due(self.frame) and self._may_evaluate():
            self.watch.lap("record")
            self._evaluate()
            self.watch.lap("evaluate")
        if self.video_due is not None and self.video_due(self.frame):
            self._film()
        periods = (self.log_due, self.eval_due, self.video_due)
        self.next_due = min(due.next for due in periods if due is not None)

    def _log_row(self) -> None:
        row = self.tracker.add_row(self._clock() | self.agent.measure_norms())
        if self.tracker.is_best():
            self.best_model = copy_state(self.agent.model_state(), self.best_model)
        self._write_row("", row)
        self.on_progress(
            Progress(
                self.session,
                self.frame,
                self.spec.env.max_frame,
                row["fps"],
                row["total_reward"],
                row["total_reward_ma"],
                self.eval_tracker.last("total_reward") if self.eval_tracker.rows else math.nan,
            )
        )

    def _tell(self, what: What) -> None:
        self.on_progress(Progress(self.session, self.frame, self.spec.env.max_frame, what=what))

    def _write_row(self, prefix: str, row: Mapping[str, float]) -> None:
        known = {prefix + name: value for name, value in row.items() if name != "frame" and not math.isnan(value)}
        write_row(self.sinks, known, self.frame)

    def _clock(self) -> dict[str, float]:
        return {
            "frame": self.frame,
            "wall_t": round(self.watch.total, 3),
            "fps": round(self.frame / max(self.watch.working, 1e-9), 1),
            "t": self.frame // self.spec.env.num_envs,
            "epi": self.env.num_episode,
            "opt_step": self.agent.algorithm.opt_step,
            "lr": self.agent.algorithm.lr,
        }

    def _calc_eval_budget(self, frame: int) -> int:
        """Steps that evaluations may have taken by a frame."""
        env, num_episode = self.spec.env, self.spec.meta.num_eval_episode
        if self.spec.meta.rigorous_eval is not None:
            return MAX_FINAL_STEP // num_episode
        utd = self.spec.agent.algorithm.calc_utd(env.num_envs)
        is_short = env.max_frame * utd * self.spec.meta.max_session < MIN_COMPILED_STEP
        cost = PLAIN_GRADIENT_COST if is_short and env.num_envs <= num_episode else GRADIENT_COST
        return int(EVAL_SHARE * frame * (1 / max(num_episode, env.num_envs) + cost * utd))

    def _may_evaluate(self) -> bool:
        """Whether one as long as the longest so far is within the budget; those that were asked for are held anyway."""
        is_asked_for = self.spec.meta.rigorous_eval is not None
        return is_asked_for or self._calc_eval_budget(self.frame) - self.eval_step >= self.eval_length

    def _evaluate(self) -> None:
        """Deterministic episodes in envs of their own; training does not notice.

        One that does not end in time leaves no row, since a mean of those that ended would be one of short episodes.
        """
        num_episode = self.spec.meta.num_eval_episode
        if self.eval_env is None:
            settings = build_settings(
                self.spec.env,
                (EVAL_ENV, self.spec.meta.seed, self.session),
                num_episode,
                device=str(self.agent.device),
            )
            self.eval_env = build_vec_env(settings)
        # the first of a kind may borrow from what is still to come
        limit = self._calc_eval_budget(self.spec.env.max_frame)
        num_step = 0

        def is_over() -> bool:
            nonlocal num_step
            if num_step >= limit or self.should_stop():
                return True
            num_step += 1
            return False

        returns = list(play_episodes(self.eval_env, self.agent, num_episode, is_over))
        is_whole = len(returns) == num_episode
        self.is_eval_due = not is_whole and num_step < limit
        if self.is_eval_due:
            return
        self.eval_step += num_step
        self.eval_length = max(self.eval_length, num_step if is_whole else 2 * num_step)
        if is_whole:
            self.eval_tracker.recent.clear()
            self.eval_tracker.record(returns, None)
            self._write_row("eval/", self.eval_tracker.add_row(self._clock()))

    def _play_final(self) -> list[float]:
        """Raw returns of deterministic episodes with the last weights, each from a start of its own."""
        num_episode = self.spec.meta.final_eval
        if not num_episode:
            return []
        settings = build_settings(
            self.spec.env,
            (FINAL_ENV, self.spec.meta.seed, self.session),
            num_episode,
            device=str(self.agent.device),
        )
        env = build_vec_env(settings)
        max_step = min(self.spec.env.max_frame, MAX_FINAL_STEP)
        num_step = 0

        def is_over() -> bool:
            nonlocal num_step
            num_step += num_episode
            return self.should_stop() or num_step > max_step

        try:
            returns = list(play_episodes(env, self.agent, num_episode, is_over))
        finally:
            env.close()
        if len(returns) == num_episode:
            return returns
        if not self.should_stop():
            # a mean of those that have ended would be one of short episodes
            logger.info(
                f"No final evaluation: {len(returns)} of {num_episode} episodes ended within {max_step:,} steps "
                "(meta.final_eval, env.max_t)"
            )
        return []

    def _film(self) -> None:
        """A video of one deterministic episode, always from the same start, in an env of its own."""
        path = self.folder.video_file(self.trial, self.session, self.frame)
        try:
            if self.video_env is None:
                settings = build_settings(self.spec.env, (VIDEO_ENV, self.spec.meta.seed, self.session), 1)
                self.video_env = build_vec_env(settings, render_mode="rgb_array")
            with write_video(path, self.video_env.render_fps) as video:

                def is_over() -> bool:
                    if self.should_stop():
                        # there are seconds to save and end: no time for a video
                        video.discard()
                    return video.is_discarded or video.num_frame > MAX_VIDEO_STEP

                for _ in film_episodes(self.video_env, self.agent, 1, video.add, is_over):
                    pass
        except Exception as error:  # whatever keeps it from being drawn, training goes on
            self.video_due = None
            logger.warning(f"No video at frame {self.frame}, and no further tries: {error}")


def play_episodes(
    env: VecEnv, agent: Agent, num_episode: int, should_stop: Callable[[], bool] = lambda: False
) -> Iterator[float]:
    """Raw returns of `num_episode` episodes without exploring, as they end; one of each env comes first."""
    obs, carry = env.reset(), agent.init_carry(env.num_envs)
    env.pop_finished()
    waiting = np.ones(env.num_envs, bool)
    count = 0
    while not should_stop():
        act = agent.act(obs, carry)
        step = env.step(act.action.cpu().numpy())
        ended = env.pop_finished()
        # counting each env once first keeps short episodes from crowding out long ones
        for index, value in zip(np.flatnonzero(step.ended), ended, strict=True):
            if waiting[index] or not waiting.any():
                waiting[index] = False
                yield value
                count += 1
                if count == num_episode:
                    return
        obs, carry = step.obs, reset_rows(act.carry, step.done)


def copy_state(value: Any, old: Any = None) -> Any:
    """A copy that training does not change; tensors of an older copy are written over."""
    if isinstance(value, torch.Tensor):
        return value.clone() if old is None else old.copy_(value)
    if isinstance(value, dict):
        return {key: copy_state(item, None if old is None else old[key]) for key, item in value.items()}
    return value


def check_form(value: Any, like: Any, name: str) -> None:
    """Refuse saved tensors that have not the names, shapes and types of others; what else a net keeps is its own."""
    if isinstance(like, dict):
        if not isinstance(value, dict) or value.keys() != like.keys():
            raise ValueError(f"{name} has other parts than that of this run")
        for key, item in like.items():
            check_form(value[key], item, f"{name}.{key}")
    elif isinstance(like, Tensor) and (
        not isinstance(value, Tensor) or value.shape != like.shape or value.dtype != like.dtype
    ):
        raise ValueError(f"{name} has another form than that of this run")


def read_frame(state: dict[str, Any]) -> int:
    """The frame of a checkpoint."""
    frame = state["frame"]
    if type(frame) is not int or frame < 0:
        raise ValueError("its frame is not a whole number")
    return frame
