"""Evaluations of a session: deterministic episodes in separate envs, without effect on training."""

from collections.abc import Callable, Mapping
from pathlib import Path

from loguru import logger

from slm_lab.agent.agent import Agent
from slm_lab.env.vec_env import Episode, VecEnv
from slm_lab.experiment.build import EVAL_ENV, FINAL_ENV, build_env
from slm_lab.experiment.play import play_episodes
from slm_lab.experiment.tracker import Tracker
from slm_lab.lib.data import ReadOnlyDocument, State
from slm_lab.lib.due import Due
from slm_lab.spec.schema import Spec

# The final evaluation takes at most this many steps, and no more than training did, since episodes may never end. Ten
# games of an hour each are fewer.
MAX_FINAL_STEP = 300_000
# Evaluations by default (without meta.rigorous_eval) may take this share of the work of a run. Work is counted in steps
# instead of seconds, so that a resumed run makes the same evaluations. An env step counts the same in training and in
# evaluations, a gradient step as several. Without compiling, gradient steps cost more; this is assumed of short runs
# with few envs.
EVAL_SHARE = 0.05
GRADIENT_COST, PLAIN_GRADIENT_COST = 3, 8
MIN_LONG_STEP = 20_000


class Evaluation:
    """Evaluates the agent of a session now and then, within a budget of steps, and at the end."""

    def __init__(self, spec: Spec, agent: Agent, session: int, table: Path) -> None:
        self.spec = spec
        self.agent = agent
        self.session = session
        # the table is always there, without rows if nothing is evaluated
        self.tracker = Tracker(table, (), spec.env.info_keys, window=max(1, spec.meta.num_eval_episode))
        self.due = Due(spec.eval_every) if spec.meta.num_eval_episode else None
        self.env: VecEnv | None = None
        # whether a stop interrupted an evaluation, which is repeated when the session resumes
        self.is_owed = False
        # steps of all evaluations so far, and of the longest
        self.num_step = 0
        self.longest = 0

    def is_due(self, frame: int) -> bool:
        """Whether to evaluate now; by default only if the longest evaluation so far would fit the budget."""
        if self.due is None or not self.due(frame):
            return False
        return self.spec.meta.rigorous_eval is not None or self._calc_budget(frame) - self.num_step >= self.longest

    def _calc_budget(self, frame: int) -> int:
        """Steps that evaluations may have taken by a frame."""
        env, num_episode = self.spec.env, self.spec.meta.num_eval_episode
        if self.spec.meta.rigorous_eval is not None:
            return MAX_FINAL_STEP // num_episode
        utd = self.spec.agent.algorithm.calc_utd(env.num_envs)
        is_short = env.max_frame * utd * self.spec.meta.max_session < MIN_LONG_STEP
        cost = PLAIN_GRADIENT_COST if is_short and env.num_envs <= num_episode else GRADIENT_COST
        return int(EVAL_SHARE * frame * (1 / max(num_episode, env.num_envs) + cost * utd))

    def run(self, clock: Mapping[str, float], should_stop: Callable[[], bool]) -> dict[str, float] | None:
        """Evaluate and return the row; None if not all episodes ended, since the mean would favour short ones."""
        num_episode = self.spec.meta.num_eval_episode
        if self.env is None:
            self.env = build_env(self.spec, EVAL_ENV, self.session, num_episode, self.agent.device)
        # the length of an evaluation is not known before the first one, which may use the budget of the whole run
        limit = self._calc_budget(self.spec.env.max_frame)
        episodes, num_step = self._play(self.env, num_episode, limit, should_stop)
        is_whole = len(episodes) == num_episode
        self.is_owed = not is_whole and num_step < limit
        if self.is_owed:
            return None
        self.num_step += num_step
        self.longest = max(self.longest, num_step if is_whole else 2 * num_step)
        if not is_whole:
            return None
        self.tracker.recent.clear()
        self.tracker.record(episodes, None)
        return self.tracker.add_row(clock)

    def play_final(self, should_stop: Callable[[], bool]) -> list[float]:
        """Raw returns of deterministic episodes with the last weights, one in each env; empty if not all ended."""
        num_episode = self.spec.meta.final_eval
        if not num_episode:
            return []
        is_offline = self.spec.agent.algorithm.learns_from == "data"
        max_step = MAX_FINAL_STEP if is_offline else min(self.spec.env.max_frame, MAX_FINAL_STEP)
        env = build_env(self.spec, FINAL_ENV, self.session, num_episode, self.agent.device)
        try:
            episodes, _ = self._play(env, num_episode, max_step // num_episode, should_stop)
        finally:
            env.close()
        if len(episodes) == num_episode:
            return [episode.total_reward for episode in episodes]
        if not should_stop():
            logger.info(
                f"No final evaluation: {len(episodes)} of {num_episode} episodes ended within {max_step:,} steps "
                "(meta.final_eval, env.max_t)"
            )
        return []

    def _play(
        self, env: VecEnv, num_episode: int, max_step: int, should_stop: Callable[[], bool]
    ) -> tuple[list[Episode], int]:
        """Play `num_episode` episodes, or fewer within `max_step` steps; returns them and the number of steps."""
        num_step = 0

        def is_over() -> bool:
            nonlocal num_step
            if num_step >= max_step or should_stop():
                return True
            num_step += 1
            return False

        return list(play_episodes(env, self.agent, num_episode, is_over)), num_step

    def state_dict(self) -> State:
        """Entries of the session's checkpoint on which the next evaluations depend."""
        return {
            "eval_tracker": self.tracker.state_dict(),
            "eval_steps": [self.num_step, self.longest],
            "is_eval_due": self.is_owed,
        }

    def load_state_dict(self, state: ReadOnlyDocument, frame: int) -> None:
        """Restore from a checkpoint."""
        self.tracker.load_state_dict(state["eval_tracker"])
        self.num_step, self.longest = (int(count) for count in state["eval_steps"])
        self.is_owed = bool(state["is_eval_due"]) and self.due is not None
        if self.due is not None:
            self.due.skip_to(frame)

    def close(self) -> None:
        """Close the envs and the table."""
        if self.env is not None:
            self.env.close()
        self.tracker.close()
