"""Evidence for the doctor's rules: parts of columns, and the final score compared with the best and random play."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from slm_lab.lib.array import Array
from slm_lab.results.run import Run, look_up
from slm_lab.results.table import Table

# a session needs this many rows with a score to be judged
MIN_ROWS = 20
# A column needs this many values in the rows examined. There are few if rows are written more often than the agent
# trains.
MIN_VALUES = 3
# evaluations after this share of the run say something about its end
LATE = 0.5
# a score is low if its gain is at most this share of the best gain, or of the random return
LOW = 0.5
# a score is hurt if its gain is below this share of the best gain of its session
HURT = 0.8
# the part at the end of the run over which a rise is measured
LAST_PART = 0.2
EMPTY: Array = np.empty(0)


class Case:
    """A run, with what the rules ask about it."""

    def __init__(self, run: Run) -> None:
        self.run = run

    @cached_property
    def judged(self) -> dict[int, Table]:
        """Sessions that count and have enough rows."""
        tables = self.run.counted_tables
        return {s: table for s, table in tables.items() if len(pick_known(table["total_reward"])) >= MIN_ROWS}

    @property
    def num_row(self) -> int:
        """Rows with a score in the session with the most."""
        return max((len(pick_known(table["total_reward"])) for table in self.run.counted_tables.values()), default=0)

    @property
    def random_return(self) -> float | None:
        """The return of random play that the run measured."""
        value = self.run.metrics.random_return if self.run.metrics is not None else None
        return value if value is not None and math.isfinite(value) else None

    @property
    def changes_rewards(self) -> bool:
        """Whether the agent learns from other rewards than the score counts; true if the spec is unknown."""
        env: Any = look_up(self.run.spec, "env")
        if not isinstance(env, Mapping | list) or not env:
            return True
        is_scaled = look_up(self.run.spec, "env", "reward_scale") not in (None, 1)
        is_clipped = look_up(self.run.spec, "env", "clip_reward") is not None
        return is_scaled or is_clipped or bool(look_up(self.run.spec, "env", "normalize_reward"))

    def end(self, session: int) -> float:
        """The score of the deterministic policy, or of the last tenth of training without an evaluation."""
        if self.run.score_kind != "train":
            return self.run.session_scores[session]
        return calc_tenths(self.run.tables[session]["total_reward"])[-1]

    def is_low(self, session: int) -> bool:
        """Whether the final score is poor compared with the best one or random play."""
        random_return = self.random_return
        if random_return is None:
            return False
        best = max(max(calc_tenths(table["total_reward"])) for table in self.judged.values()) - random_return
        return self.end(session) - random_return <= LOW * max(best, abs(random_return))

    def is_hurt(self, session: int) -> bool:
        """Whether the final score is clearly below the best of this session."""
        random_return = self.random_return
        if random_return is None:
            return False
        best = max(calc_tenths(self.run.tables[session]["total_reward"])) - random_return
        return self.end(session) - random_return < HURT * best

    def find_high(self, column: str, limit: float, begin: float) -> dict[int, float]:
        """Sessions in which the median of a column exceeds a limit after a fraction of the run."""
        medians = {s: calc_median(pick_part(table.get(column, EMPTY), begin, 1)) for s, table in self.judged.items()}
        return {session: median for session, median in medians.items() if median > limit}

    def find_late_evals(self) -> tuple[float, float]:
        """Means over sessions of the last evaluation in the second half but before the last fifth, and of the score.

        Sessions without such an evaluation are left out; NaN if none is left.
        """
        pairs = []
        for session, table in self.judged.items():
            evals = self.run.eval_tables.get(session, {"frame": EMPTY, "total_reward": EMPTY})
            share = evals["frame"] / table["frame"][-1]
            known = pick_known(evals["total_reward"][(share <= 1 - LAST_PART) & (share >= LATE)])
            if len(known):
                pairs.append((float(known[-1]), self.end(session)))
        before, end = np.mean(pairs, axis=0) if pairs else (math.nan, math.nan)
        return float(before), float(end)

    def find_lr_key(self, part: str) -> str:
        """The key of the learning rate of a role, which may be shared."""
        net = look_up(self.run.spec, "agent", "net")
        has_own = look_up(net, f"{part}_optim_spec") is not None or look_up(net, part, "optim_spec") is not None
        return f"agent.net.{part}_optim_spec.lr" if has_own else "agent.net.optim_spec.lr"

    def where(self, sessions: Mapping[int, Any]) -> str:
        """Which sessions, in words; empty if the run has only one."""
        count = len(self.run.counted_tables)
        if count == 1:
            return ""
        if len(sessions) == count:
            return " in all sessions"
        return f" in session {', '.join(map(str, sorted(sessions)))} of {count}"


def pick_known(column: Array) -> Array:
    """The finite values."""
    return column[np.isfinite(column)]


def pick_part(column: Array, begin: float, end: float) -> Array:
    """The finite values between two fractions of a column's rows."""
    return pick_known(column[int(begin * len(column)) : int(end * len(column))])


def calc_median(values: Array) -> float:
    """The median; NaN, for which every comparison is false, if there are few values."""
    return float(np.median(values)) if len(values) >= MIN_VALUES else math.nan


def calc_sum(column: Array, begin: float, end: float) -> float:
    """The sum between two fractions of a column's rows, empty rows counted as the mean; NaN if there are few values."""
    count = int(end * len(column)) - int(begin * len(column))
    values = pick_part(column, begin, end)
    return float(values.mean()) * count if len(values) >= MIN_VALUES else math.nan


def calc_tenths(column: Array) -> list[float]:
    """The mean of each tenth of the known values."""
    return [float(part.mean()) if len(part) else math.nan for part in np.array_split(pick_known(column), 10)]


def has_trained(table: Table) -> bool:
    """Whether a gradient step was taken."""
    return bool((table.get("opt_step", EMPTY) > 0).any())


def calc_best_reward(table: Table) -> float:
    """The largest mean reward per step of any tenth of the rows; NaN without a count of episodes."""
    frame, episode, score = (table.get(name, EMPTY) for name in ("frame", "epi", "total_reward"))
    if not len(frame) == len(episode) == len(score):
        return math.nan
    known = np.isfinite(frame) & np.isfinite(episode) & np.isfinite(score)
    rates = []
    for rows in np.array_split(np.flatnonzero(known), 10):
        frames, episodes = (column[rows[-1]] - column[rows[0]] if len(rows) else 0 for column in (frame, episode))
        if frames > 0 and episodes > 0:
            rates.append(float(score[rows].mean() * episodes / frames))
    return max(rates, default=math.nan)
