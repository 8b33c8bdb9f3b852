"""Session: one seed, one agent, one loop."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from loguru import logger
from torch import Tensor

from slm_lab.agent.agent import reset_rows
from slm_lab.agent.algorithm.base import Metrics
from slm_lab.agent.compile.engine import CLOCK
from slm_lab.env.build import build_vec_env
from slm_lab.env.facts_document import save_facts
from slm_lab.env.make import build_settings, share_cores
from slm_lab.env.vec_env import Obs, to_host
from slm_lab.experiment.build import TRAIN_ENV, build_session_agent
from slm_lab.experiment.callback import Callback, CallbackError, Hooks, Moment
from slm_lab.experiment.checkpoint.replay_files import ReplayFiles
from slm_lab.experiment.checkpoint.state import (
    check_form,
    content_errors,
    copy_state,
    load_latest,
    read_frame,
    save_state,
)
from slm_lab.experiment.clock import Stopwatch
from slm_lab.experiment.evaluation import Evaluation
from slm_lab.experiment.fault import report_fault
from slm_lab.experiment.filming import Filming
from slm_lab.experiment.growth import to_comparable
from slm_lab.experiment.initial import load_initial
from slm_lab.experiment.messages import Progress, What
from slm_lab.experiment.options import DEFAULTS, Options
from slm_lab.experiment.sink import Sink, build_sinks, close_sinks, group_row, write_row
from slm_lab.experiment.stopping import StopCondition
from slm_lab.experiment.tracker import Tracker
from slm_lab.lib.data import State
from slm_lab.lib.device import pick_device
from slm_lab.lib.due import Due
from slm_lab.lib.errors import CheckpointError, DivergenceError, EnvFaultError, WorkerError
from slm_lab.lib.io import lock_file
from slm_lab.results.folder import RunFolder, previous_file
from slm_lab.results.metrics import SessionResult
from slm_lab.spec.loading import dump_spec
from slm_lab.spec.reader import printable
from slm_lab.spec.schema import Spec

# Seconds between checkpoints; longer if saving is slow, as with a large replay, so that it takes at most this share of
# the time.
CHECKPOINT_SECONDS = 10.0
CHECKPOINT_SHARE = 0.005
# a session whose parent was killed may still be saving
LOCK_SECONDS = 20.0
FORMAT = 4
Grade = Literal["exact", "statistical"]


class Session:
    """Trains one agent from its first frame, or from its last checkpoint, to the end."""

    def __init__(
        self,
        spec: Spec,
        folder: RunFolder,
        trial: int = 0,
        session: int = 0,
        on_progress: Callable[[Progress], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
        options: Options = DEFAULTS,
        end_frame: int | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        torch.set_num_threads(spec.meta.num_threads)
        self.spec = spec
        self.folder = folder
        self.trial = trial
        self.session = session
        self.on_progress = on_progress
        self.should_stop = should_stop
        device = pick_device(spec.meta.device, trial + session)
        settings = build_settings(
            spec.env,
            (TRAIN_ENV, spec.meta.seed, session),
            is_training=True,
            num_cores=share_cores(spec),
            device=str(device),
            imports=options.imports,
        )
        self.env = build_vec_env(settings, spec.env.num_workers, "human" if options.render else None)
        if not self.env.is_exact:
            logger.info(
                f"Env backend {spec.env.backend}: a run repeats from its seed; one that was stopped resumes "
                "statistically, with new episodes"
            )
        self.agent = build_session_agent(spec, self.env, session, device=device)
        names = (*self.agent.algorithm.metric_names, *self.agent.norm_names)
        episodes = folder.table_file(trial, session, "episode") if spec.meta.episode_table else None
        self.tracker = Tracker(folder.table_file(trial, session, "train"), names, spec.env.info_keys, episodes)
        self.evaluation = Evaluation(spec, self.agent, session, folder.table_file(trial, session, "eval"))
        self.filming = Filming(spec, self.agent, session)
        if self.filming.due is not None and options.render:
            # MuJoCo cannot draw into a window and into memory by turns
            logger.warning("meta.video_frequency: no videos while --render shows a window")
            self.filming.due = None
        self.hooks = Hooks(callbacks) if callbacks else None
        # built once the frame to resume from is known
        self.sinks: list[Sink] = []
        self.log_due = Due(spec.meta.log_frequency)
        self.stop = StopCondition(spec.meta.stop, self.tracker, self.evaluation.tracker)
        self.save_due = Due(spec.meta.checkpoint_frequency) if spec.meta.checkpoint_frequency else None
        self.keep_due = Due(spec.meta.keep_checkpoints) if spec.meta.keep_checkpoints else None
        self.replay_files = {
            name: ReplayFiles(folder.replay_prefix(trial, session, name), replay)
            for name, replay in self.agent.algorithm.replays.items()
        }
        self.frame = 0
        # `verify` replays only a part of a run
        self.end_frame = min(spec.env.max_frame, end_frame or spec.env.max_frame)
        # whether a callback ended the session
        self.is_ended = False
        # whether the envs could be restored exactly; None if the session did not resume
        self.grade: Grade | None = None
        # the mark of the last checkpoint on disk
        self.saved: tuple[int, ...] | None = None
        # the next frame at which anything may be due, so that a step needs one comparison
        self.next_due = 0
        self.watch = Stopwatch(CLOCK)
        self.last_save = time.perf_counter()
        self.save_seconds = 0.0
        self.best_model: State | None = None

    def run(self) -> SessionResult:
        """Train to the end or until asked to stop; either way everything is saved."""
        self._tell("starting")
        CLOCK.on_change = lambda is_compiling: self._tell("compiling" if is_compiling else "compiled")
        try:
            with lock_file(self.folder.lock_file(self.trial, self.session), LOCK_SECONDS):
                return self._run()
        except (DivergenceError, EnvFaultError) as error:
            raise report_fault(
                error, self.folder, self.spec, self.trial, self.session, self.frame, self.agent
            ) from error
        finally:
            CLOCK.on_change = lambda is_compiling: None
            self.tracker.close()
            self.env.close()
            self.evaluation.close()
            self.filming.close()
            close_sinks(self.sinks)

    def _run(self) -> SessionResult:
        obs, carry = self._begin()
        watch = self.watch
        watch.start()
        is_offline = self.spec.agent.algorithm.learns_from == "data"
        obs, carry = self._learn(obs, carry) if is_offline else self._interact(obs, carry)
        is_done = self.frame >= self.spec.env.max_frame or self.stop.is_met or self.is_ended
        if self.saved != self._mark():
            self._save(obs, carry)
        if is_done and (not self.tracker.rows or self.tracker.last("frame") != self.frame):
            # after the checkpoint: a run that is made longer has no row here
            self._log_row()
        # a session that resumes may have been killed between the checkpoint and the models
        self._save_models()
        watch.lap("save")
        if self.hooks is not None:
            self.hooks.tell(self._moment(), is_step=False)
        final_eval = self.evaluation.play_final(self.should_stop) if is_done else []
        watch.lap("evaluate")
        ended_early = is_done and self.frame < self.spec.env.max_frame
        return SessionResult(self.session, is_done, self.frame, watch.phases, final_eval, ended_early)

    def _interact(self, obs: Obs, carry: Any) -> tuple[Obs, Any]:
        """Act and learn until the end; returns the last observation and hidden state."""
        env, agent, watch = self.env, self.agent, self.watch
        # workers can die, and an env can return an invalid action mask
        may_fail = env.is_remote or env.facts.mask is not None
        while self.frame < self.end_frame and not self.should_stop():
            before = agent.context.act_generator.get_state() if may_fail else None
            act = agent.act(obs, carry, explore=True)
            watch.lap("act")
            try:
                step = env.step(act.action.numpy(force=True))
            except (WorkerError, EnvFaultError) as error:
                if isinstance(error, EnvFaultError):
                    error.num_frame = env.num_envs
                # undo the random numbers of the failed step, so that the checkpoint resumes exactly before it
                if before is not None:
                    agent.context.act_generator.set_state(before)
                    self._save(obs, carry)
                raise
            watch.lap("env")
            agent.observe(obs, act, step)
            obs, carry = step.obs, reset_rows(act.carry, step.done)
            watch.lap("observe")
            self.frame += env.num_envs
            self._finish_step(agent.update(self.frame), obs, carry)
        return obs, carry

    def _learn(self, obs: Obs, carry: Any) -> tuple[Obs, Any]:
        """Learn from recorded steps until the end; the training env is not stepped."""
        while self.frame < self.end_frame and not self.should_stop():
            self.frame += 1
            self._finish_step(self.agent.update(self.frame), obs, carry)
        return obs, carry

    # --- after each step

    def _finish_step(self, metrics: Metrics | None, obs: Obs, carry: Any) -> None:
        """Write rows, evaluate, save and call callbacks, as far as they are due."""
        watch, now = self.watch, self.watch.lap("update")
        if metrics is not None or self.env.finished or self.frame >= self.next_due:
            self._record(metrics)
            now = watch.lap("record")
        if self.replay_files:
            for files in self.replay_files.values():
                files.flush()
            now = watch.lap("save")
        if self._is_save_due(now):
            self._save(obs, carry)
            watch.lap("save")
        if self.hooks is not None and self.hooks.is_due:
            self._tell_hooks(self.hooks, obs, carry)
            watch.lap("callbacks")

    def _record(self, metrics: Metrics | None) -> None:
        if metrics is not None or self.env.finished:
            self.tracker.record(self.env.pop_episodes(), metrics, self.frame)
        if self.log_due(self.frame):
            self._log_row()
        if self.evaluation.is_due(self.frame):
            self.watch.lap("record")
            self._evaluate()
            self.watch.lap("evaluate")
        if self.filming.due is not None and self.filming.due(self.frame):
            path = self.folder.video_file(self.trial, self.session, self.frame)
            self.filming.film(path, self.frame, self.should_stop)
        if self.keep_due is not None and self.keep_due(self.frame):
            save_state(self.folder.model_file(self.trial, self.session, str(self.frame)), self.agent.model_state())
        if self.stop.is_met:
            self._end_early()
        periods = (self.log_due, self.evaluation.due, self.filming.due, self.keep_due)
        self.next_due = min(due.next for due in periods if due is not None)

    def _end_early(self, reason: str = "meta.stop is fulfilled") -> None:
        logger.info(f"Session {self.session} stops at frame {self.frame:,}: {reason}")
        self.end_frame = self.frame

    def _tell_hooks(self, hooks: Hooks, obs: Obs, carry: Any) -> None:
        try:
            if hooks.tell(self._moment()):
                self.is_ended = True
                self._end_early("a callback ends it")
        except CallbackError:
            self._save(obs, carry)
            raise

    def _moment(self) -> Moment:
        return Moment(self.spec, self.session, self.frame, self.agent)

    def _add_event(self, name: str, content: Any) -> None:
        if self.hooks is not None:
            self.hooks.events.append((name, content))

    def _log_row(self) -> None:
        row = self.tracker.add_row(self._clock() | self.agent.measure_norms())
        if self.tracker.is_best():
            self.best_model = copy_state(self.agent.model_state(), self.best_model)
        write_row(self.sinks, group_row("train", row), self.frame)
        self._add_event("on_row", row)
        evaluated = self.evaluation.tracker
        numbers = {name: row[name] for name in ("fps", "total_reward", "total_reward_ma")}
        self._tell("row", **numbers, eval_reward=evaluated.last("total_reward") if evaluated.rows else math.nan)

    def _evaluate(self) -> None:
        row = self.evaluation.run(self._clock(), self.should_stop)
        if row is not None:
            write_row(self.sinks, group_row("eval", row), self.frame)
            self._add_event("on_eval", row)

    def _tell(self, what: What = "row", **numbers: float) -> None:
        self.on_progress(Progress(self.session, self.frame, self.spec.env.max_frame, what=what, **numbers))

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

    # --- start and resume

    def _begin(self) -> tuple[Obs, Any]:
        """Start or resume; returns the observation and hidden state to act on."""
        save_facts(self.folder.spaces_file(self.trial, self.session), self.env.facts)
        path = self.folder.resume_file(self.trial, self.session)
        state, problems = load_latest(path, self._load_rows)
        for problem in problems:
            logger.warning(f"{problem}; the checkpoint before it is used")
        if state is None:
            self.evaluation.tracker.open()
            self.sinks = build_sinks(self.spec, self.folder, self.trial, self.session)
            if self.spec.agent.init_from is not None:
                logger.info(load_initial(self.agent, self.spec.agent.init_from))
            if self.hooks is not None:
                self.hooks.start(self._moment())
            return self.env.reset(), self.agent.init_carry(self.spec.env.num_envs)
        with content_errors(previous_file(path) if problems else path):
            obs, carry = self._restore(state, path)
        self.sinks = build_sinks(self.spec, self.folder, self.trial, self.session, self.frame + 1)
        # not if the previous checkpoint was used instead: then the last one is missing
        if path.exists():
            self.saved = self._mark()
        if self.evaluation.is_owed:
            self._evaluate()
        if self.stop.is_met:
            self._end_early()
        if self.hooks is not None:
            self.hooks.start(self._moment())
        return obs, carry

    def _restore(self, state: State, path: Path) -> tuple[Obs, Any]:
        """Restore a checkpoint; returns the observation and hidden state to act on."""
        if state.get("format") != FORMAT:
            raise CheckpointError(f"{path}: was written by another version of the lab; resume it with that one")
        if not self._is_own(state):
            raise CheckpointError(f"{path}: belongs to another spec; resume it with the spec it was made with")
        if (place := state["place"]) != self._place():
            told = printable(f"trial {place.get('trial')} session {place.get('session')}")
            raise CheckpointError(f"{path}: is that of {told}; was it copied? Put the right one in its place")
        self.agent.load_state_dict(state["agent"])
        self.tracker.load_state_dict(state["tracker"])
        self.frame = read_frame(state)
        self.evaluation.load_state_dict(state, self.frame)
        self.watch.total = float(state["wall_t"])
        phases = {str(name): float(seconds) for name, seconds in state["phases"].items()}
        if not all(math.isfinite(seconds) and seconds >= 0 for seconds in (self.watch.total, *phases.values())):
            raise ValueError("its times are not numbers of seconds")
        self.watch.phases.update(phases)
        self.best_model = state["best_model"]
        if self.best_model is not None:
            check_form(self.best_model, self.agent.model_state(), "best_model")
        self._restore_hooks(state.get("callbacks"))
        for due in (self.log_due, self.save_due, self.filming.due, self.keep_due):
            if due is not None:
                due.skip_to(self.frame)
        obs = self.env.load_state_dict(state["env"])
        if state["obs"].shape != tuple(obs.shape):
            raise ValueError("its observations are not those of as many envs")
        is_exact = np.array_equal(to_host(obs), state["obs"]) and self.env.has_same_return
        self.grade = "exact" if is_exact else "statistical"
        if is_exact:
            logger.info(f"Session {self.session} resumes at frame {self.frame}: exact")
        else:
            logger.warning(
                f"Session {self.session} resumes at frame {self.frame}: statistical only, because the env could "
                "not be rebuilt from its seed and actions; scores stay comparable, bits do not"
            )
        carry = state["carry"]
        if carry is not None and not (isinstance(carry, Tensor) and len(carry) == self.spec.env.num_envs):
            raise ValueError("its hidden states are not those of as many envs")
        carry = None if carry is None else carry.to(self.agent.device)
        if not is_exact:
            # the envs start new episodes, so those in the memory end here, and hidden states start from zero
            self.agent.break_off(state["obs"], carry)
            carry = self.agent.init_carry(self.spec.env.num_envs)
        return obs, carry

    def _restore_hooks(self, state: State | None) -> None:
        if state is None:
            return
        (self.hooks or Hooks(())).load_state_dict(state)
        # a run that was made longer since continues
        if state["ended_at"] is not None and self.spec.env.max_frame <= state["ended_at"]:
            self.is_ended, self.end_frame = True, self.frame

    def _load_rows(self, state: State) -> None:
        is_own = self._is_own(state) and state.get("place") == self._place()
        if state.get("format") != FORMAT or not is_own:
            return  # refused by the caller
        for name, files in self.replay_files.items():
            files.load(state["rows"][name])

    def _is_own(self, state: State) -> bool:
        """Whether a checkpoint belongs to this spec, apart from the ends of schedules."""
        return bool(to_comparable(state.get("spec")) == to_comparable(self._identity()))

    def _identity(self) -> State:
        """What must not differ between a checkpoint and the run that continues it."""
        spec = dump_spec(self.spec)[self.spec.name]
        # the length may grow, and the others only say how envs are stepped
        for key in ("max_frame", "num_workers", "backend", "step_timeout"):
            spec["env"].pop(key)
        return {key: spec[key] for key in ("agent", "env")} | {"seed": self.spec.meta.seed}

    def _place(self) -> dict[str, int]:
        """What identifies the session of a checkpoint among those of the same spec."""
        return {"trial": self.trial, "session": self.session}

    # --- checkpoints

    def _save(self, obs: Obs, carry: Any) -> None:
        folder, trial, session = self.folder, self.trial, self.session
        began = time.perf_counter()
        # never replace a good checkpoint by one with broken weights
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
            **self.evaluation.state_dict(),
            "frame": self.frame,
            "wall_t": self.watch.total,
            "phases": dict(self.watch.phases),
            "best_model": self.best_model,
            **({} if self.hooks is None else {"callbacks": self.hooks.state_dict()}),
        }
        save_state(folder.resume_file(trial, session), state, keep_previous=True)
        self._add_event("on_checkpoint", folder.resume_file(trial, session))
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
        """Differs if there is something new to save; saving the same twice would drop the previous checkpoint."""
        return self.frame, len(self.tracker.rows), self.evaluation.num_step, self.evaluation.is_owed, self.is_ended

    def _is_save_due(self, now: float) -> bool:
        # saving does not affect the run, so it may depend on wall time
        if self.save_due is not None:
            return self.save_due(self.frame)
        return now - self.last_save > max(CHECKPOINT_SECONDS, self.save_seconds / CHECKPOINT_SHARE)
