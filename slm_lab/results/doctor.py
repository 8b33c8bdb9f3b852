"""What the tables of a run tell about it, in plain words: rules with thresholds taken from runs that went well."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from slm_lab.results.run import Run, look_up
from slm_lab.results.table import Array, Table
from slm_lab.spec.algorithm import AlgorithmSpec
from slm_lab.spec.schema import ALGORITHM_SPECS

# a session with fewer rows that have a score is not judged
MIN_ROWS = 20
# A column with fewer values in the rows looked at is not judged. Each is a mean over a training, and where rows are
# written more often than trainings happen there are few.
MIN_VALUES = 3
# rows at the end whose spread is the noise of a score
LAST_ROWS = 5
# nats; certain actions of a discrete policy, whose entropy is at least ln 2 at the start
ENTROPY_COLLAPSED = 0.05
# share of the run by which a collapse counts as early
EARLY = 0.3
EXPLAINED_VAR_LOW = 0.1
# values fit, whatever they explain, once their loss is so small a share of its largest
VAL_LOSS_FALLEN = 0.05
CLIP_FRAC_HIGH = 0.3
KL_LARGE = 0.1
# share of the run after which steps of the policy are judged
SETTLED = 0.2
# stds over the last fifth of the run; batches that wander about one place stay below it however short rows are
OBS_SHIFT = 0.3
# change of the log of the std over the last fifth; returns that grow evenly from nothing have 0.22
REWARD_SHIFT = 0.2
# times the returns that were reached
Q_FACTOR = 2.0
# share of all that was gained, and of the run in which
RISE = 0.1
LAST_PART = 0.2
# share of the run from which an evaluation says something about its end
LATE = 0.5
# share of the random return
RANDOM_MARGIN = 0.05
# share of the best session's gain over random play
DISAGREE = 0.5
# share of the time, and seconds below which it says nothing
BOUND = 0.6
MIN_SECONDS = 10.0
# a score is low up to this share of the best gain that was seen, or of the random return
LOW = 0.5
# a score was lost again below this share of the best gain
LOST = 0.6
# with a gain below this share of the best one, large steps are held against a run
HURT = 0.8


@dataclass(frozen=True)
class Finding:
    """Something seen in a run."""

    # warn: worth a change; info: good to know
    level: Literal["warn", "info"]
    # a few words, for the line at the end of a run
    title: str
    seen: str
    meaning: str
    advice: str
    # dotted keys of the spec that the advice names
    keys: tuple[str, ...]


Rule = Callable[[Run], Finding | None]


def diagnose(run: Run) -> list[Finding]:
    """All findings, what is worth a change first."""
    found = [finding for rule in RULES if (finding := rule(run)) is not None]
    return sorted(found, key=lambda finding: finding.level == "info")


def count_rows(run: Run) -> int:
    """Rows with a score, of the session that has most."""
    return max((len(_known(table["total_reward"])) for table in run.counted_tables.values()), default=0)


def conclude(run: Run) -> str:
    """What to say of a run in which nothing was found."""
    rows = count_rows(run)
    if rows < MIN_ROWS:
        return f"Too short to judge: {rows} row(s) with a score, {MIN_ROWS} are needed (meta.log_frequency)."
    return f"No warnings: {len(RULES)} rules looked at {rows} rows."


# --- rules


def find_entropy_collapse(run: Run) -> Finding | None:
    """A discrete policy that was certain of its actions before it was any good."""
    hit: dict[int, float] = {}
    for session, table in _judged(run):
        entropy = table.get("entropy", _EMPTY)
        # a density's entropy passes below zero without harm, so continuous actions are left out
        if (entropy < 0).any() or not _is_low(run, session):
            continue
        begin, end = _part(entropy, EARLY, 0.5), _part(entropy, 0.8, 1)
        if _median(begin) < ENTROPY_COLLAPSED and _median(end) < ENTROPY_COLLAPSED:
            hit[session] = float(table["frame"][np.argmax(entropy < ENTROPY_COLLAPSED)])
    if not hit:
        return None
    session, frame = min(hit.items(), key=lambda item: item[1])
    lr = _lr_key(run, "actor")
    if "alpha" in run.tables[session]:
        keys: tuple[str, ...] = ("agent.algorithm.target_entropy", lr)
    else:
        keys = ("agent.algorithm.entropy_coef_spec", lr)
    return Finding(
        "warn",
        "entropy collapsed early",
        f"entropy fell below {ENTROPY_COLLAPSED} nats at frame {frame:,.0f} and stayed there"
        f"{_where(run, hit)}, with a score of {_end(run, session):.4g}",
        "the policy is certain of its actions before it found good ones, so it tries nothing else any more",
        f"raise {keys[0]}, or lower {lr}",
        keys,
    )


def find_useless_values(run: Run) -> Finding | None:
    """Value predictions no better than a constant, although there is something to predict."""
    hit: dict[int, float] = {}
    for session, table in _judged(run):
        explained, loss = table.get("explained_var", _EMPTY), table.get("val_loss", _EMPTY)
        late, late_loss = _median(_part(explained, 0.75, 1)), _median(_part(loss, 0.75, 1))
        # where all returns are alike, as in a solved CartPole, nothing is left to explain and values are right
        largest = max((value for value in _tenths(loss) if math.isfinite(value)), default=math.nan)
        if late < EXPLAINED_VAR_LOW and late_loss > VAL_LOSS_FALLEN * largest:
            hit[session] = late
    if not hit:
        return None
    lr = _lr_key(run, "critic")
    keys = (lr, "agent.algorithm.val_loss_coef", "agent.algorithm.normalize_v_targets")
    return Finding(
        "warn",
        "values explain nothing",
        f"explained_var is {min(hit.values()):.2g} in the last quarter{_where(run, hit)}, and val_loss has not fallen",
        "the critic predicts no better than a constant, so advantages are as noisy as the returns",
        f"change {lr} (up if val_loss never moved, down if it jumps), raise {keys[1]} where the net is shared, "
        f"or set {keys[2]} where returns are large",
        keys,
    )


def find_high_clip_frac(run: Run) -> Finding | None:
    """Policy steps that the clip has to hold back all the time; worth a change only if the score suffers."""
    hit: dict[int, float] = {}
    is_hurt = False
    for session, table in _judged(run):
        median = _median(_part(table.get("clip_frac", _EMPTY), SETTLED, 1))
        if median > CLIP_FRAC_HIGH:
            hit[session] = median
            is_hurt |= _is_low(run, session) or _is_hurt(run, session)
    if not hit:
        return None
    lr = _lr_key(run, "actor")
    keys = (lr, "agent.algorithm.training_epoch", "agent.algorithm.target_kl")
    return Finding(
        "warn" if is_hurt else "info",
        "clip fraction high",
        f"clip_frac is {max(hit.values()):.2g}, the median after the first fifth{_where(run, hit)}",
        "many samples leave the clip range: steps are large for their data"
        + ("" if is_hurt else "; the score does not suffer from it"),
        f"lower {lr} or {keys[1]}, or set {keys[2]}",
        keys,
    )


def find_large_kl(run: Run) -> Finding | None:
    """Policies that move far with each batch."""
    hit: dict[int, float] = {}
    for session, table in _judged(run):
        median = _median(_part(table.get("kl", _EMPTY), SETTLED, 1))
        if median > KL_LARGE:
            hit[session] = median
    if not hit:
        return None
    lr = _lr_key(run, "actor")
    keys = ("agent.algorithm.target_kl", lr, "agent.algorithm.training_epoch")
    return Finding(
        "warn",
        "KL large",
        f"kl is {max(hit.values()):.2g}, the median after the first fifth{_where(run, hit)}; runs that go well stay "
        "below 0.05",
        "each training takes the policy far from the one that gathered the data, where the data say little",
        f"set {keys[0]} (0.02 is common), or lower {lr} or {keys[2]}",
        keys,
    )


def find_norm_drift(run: Run) -> Finding | None:
    """Normalisers that still move at the end; worth a change only if the score suffers."""
    observations: dict[int, float] = {}
    rewards: dict[int, tuple[float, float]] = {}
    is_hurt = False
    for session, table in _judged(run):
        moved = _sum(table.get("obs_norm_shift", _EMPTY), 0.8, 1)
        std = _part(table.get("reward_norm_std", _EMPTY), 0.8, 1)
        if moved > OBS_SHIFT:
            observations[session] = moved
        if len(std) >= MIN_VALUES and min(std[0], std[-1]) > 0 and abs(math.log(std[-1] / std[0])) > REWARD_SHIFT:
            rewards[session] = float(std[0]), float(std[-1])
        if session in observations or session in rewards:
            is_hurt |= _is_low(run, session) or _is_hurt(run, session)
    if not observations and not rewards:
        return None
    seen, advice, keys = [], ["train longer: raise env.max_frame"], ["env.max_frame"]
    if observations:
        seen.append(
            f"obs_norm_shift adds up to {max(observations.values()):.2g} stds over the last fifth"
            f"{_where(run, observations)}"
        )
        advice.append("lower env.clip_obs against rare large values")
        advice.append("turn env.normalize_obs off if observations are of one size anyway")
        keys += ["env.clip_obs", "env.normalize_obs"]
    if rewards:
        first, last = max(rewards.values(), key=lambda pair: abs(math.log(pair[1] / pair[0])))
        seen.append(f"reward_norm_std went from {first:.4g} to {last:.4g} over the last fifth{_where(run, rewards)}")
        advice.append(f"turn env.normalize_reward off and set a fixed env.reward_scale, about {1 / last:.2g}")
        keys += ["env.normalize_reward", "env.reward_scale"]
    what = " and ".join(name for name, hit in (("observations", observations), ("rewards", rewards)) if hit)
    return Finding(
        "warn" if is_hurt else "info",
        "normaliser drifting",
        "; ".join(seen),
        f"the same {what} look different to the net from one batch to the next, so it learns after a moving target"
        + ("" if is_hurt else "; the score does not suffer from it"),
        "; or ".join(advice),
        tuple(keys),
    )


def find_overestimation(run: Run) -> Finding | None:
    """Values of actions far above the discounted return that was ever reached."""
    gamma = look_up(run.spec, "agent", "algorithm", "gamma")
    if not isinstance(gamma, int | float) or not 0 <= gamma < 1 or _changes_rewards(run):
        return None
    random_return = _random_return(run)
    hit: dict[int, tuple[float, float]] = {}
    for session, table in _judged(run):
        q = _median(_part(table.get("q", _EMPTY), 0.8, 1))
        reached = _best_reward(table) / (1 - gamma)
        if not math.isfinite(q) or not math.isfinite(reached):
            continue
        # the value of soft algorithms has the entropy to come in it
        alpha, entropy = table.get("alpha", _EMPTY), table.get("entropy", _EMPTY)
        if len(alpha) and len(alpha) == len(entropy):
            bonus = _median(_part(alpha * np.maximum(entropy, 0), 0.8, 1)) / (1 - gamma)
            reached += bonus if math.isfinite(bonus) else 0.0
        score = _known(table["total_reward"])
        # the mean over states is at most `reached` if no reward is negative; else the size of returns bounds it too
        floor = 0.0
        if random_return is None or random_return < 0 or score.min() < 0:
            floor = max(float(np.abs(score).max()), abs(random_return or 0.0))
        if q > max(Q_FACTOR * reached, floor) and max(reached, floor) > 0:
            hit[session] = q, max(reached, floor)
    if not hit:
        return None
    q, bound = max(hit.values())
    lr = _lr_key(run, "critic")
    name = str(look_up(run.spec, "agent", "algorithm", "name"))
    kind = ALGORITHM_SPECS.get(name, AlgorithmSpec)
    keys: tuple[str, ...] = (lr,)
    advice = f"lower {lr}"
    if kind.actions == "joint" and name != "DoubleDQN":
        keys += ("agent.algorithm.name",)
        advice += f", or use DoubleDQN as {keys[1]}"
    if kind.has_target:
        keys += ("agent.net.update_frequency", "agent.net.polyak_coef")
        advice += f", or let the target net follow more slowly: {keys[-2]} up, {keys[-1]} down"
    return Finding(
        "warn",
        "Q far above returns",
        f"q is {q:.4g} at the end{_where(run, hit)}; from the rewards that were reached it should be about "
        f"{bound:.4g} at most",
        "the values feed on their own errors (overestimation), and the policy follows them",
        advice,
        keys,
    )


def find_rise(run: Run) -> Finding | None:
    """A score that was still on its way up."""
    curves = [_tenths(table["total_reward"]) for _, table in _judged(run)]
    if not curves:
        return None
    curve = np.mean(curves, axis=0)
    spread = np.mean([_known(table["total_reward"])[-LAST_ROWS:].std() for _, table in _judged(run)])
    random_return = _random_return(run)
    # a run that was good from its first rows has gained all the same
    lowest = curve.min() if random_return is None else min(curve.min(), random_return)
    rise, gained = curve[-1] - curve[-3], curve[-1] - lowest
    # two steps up to the highest point, not the wandering of a curve that is done
    if not (curve[-1] == curve.max() and curve[-3] < curve[-2] < curve[-1]):
        return None
    if rise <= RISE * gained or rise <= 2 * spread or gained <= RANDOM_MARGIN * abs(random_return or 0.0):
        return None
    # the mean of the last 100 episodes rises long after the policy has stopped to
    end = curve[-1]
    if run.score_kind != "train":
        before, end = _get_late_evals(run)
        rise, gained = end - before, end - min(lowest, before)
        if not rise > RISE * gained:
            return None
    return Finding(
        "warn",
        "score still rising",
        f"the score rose by {rise:.4g} to {end:.4g} over the last fifth, {rise / gained:.0%} of all it gained",
        "learning was not over when the run was",
        "train longer: raise env.max_frame, and the ends of schedules with it",
        ("env.max_frame",),
    )


def find_loss_of_score(run: Run) -> Finding | None:
    """A score that was much better before."""
    random_return = _random_return(run)
    curves = [_tenths(table["total_reward"]) for _, table in _judged(run)]
    if random_return is None or not curves:
        return None
    curve = np.mean(curves, axis=0)
    end = float(np.mean([_end(run, session) for session, _ in _judged(run)]))
    best = curve.max() - random_return
    if best <= LOW * abs(random_return) or end - random_return >= LOST * best:
        return None
    keys = (_lr_key(run, "actor"), "agent.net.lr_scheduler_spec", "agent.net.clip_grad_val")
    return Finding(
        "warn",
        "score lost again",
        f"the score at the end is {end:.4g}, after {curve.max():.4g} in the best tenth of the run",
        "learning went on until it undid what it had learned",
        f"lower {keys[0]}, let it fall with {keys[1]}, or set {keys[2]}",
        keys,
    )


def find_no_learning(run: Run) -> Finding | None:
    """A score that random play reaches too."""
    random_return = _random_return(run)
    ends = [_end(run, session) for session, table in _judged(run) if _has_trained(table)]
    if random_return is None or not ends:
        return None
    score = float(np.mean(ends))
    if not score <= random_return + RANDOM_MARGIN * abs(random_return):
        return None
    lr = _lr_key(run, "actor")
    keys = (lr, "env.normalize_obs", "env.max_frame")
    return Finding(
        "warn",
        "no better than random",
        f"the score at the end is {score:.4g}; random play has {random_return:.4g}",
        "nothing was learned that shows in the score",
        f"another {lr} (ten times up or down), {keys[1]} for observations on different scales, "
        f"or a larger {keys[2]} if the run was short or rewards are rare",
        keys,
    )


def find_disagreement(run: Run) -> Finding | None:
    """Sessions of one spec of which some have learned far less than others."""
    random_return = _random_return(run)
    ends = {session: _end(run, session) for session, _ in _judged(run)}
    if random_return is None or len(ends) < 2:
        return None
    best = max(ends.values()) - random_return
    if best <= RANDOM_MARGIN * abs(random_return):
        return None
    behind = {session: end for session, end in ends.items() if end - random_return < DISAGREE * best}
    if not behind:
        return None
    lr = _lr_key(run, "actor")
    keys = (lr, "meta.max_session")
    listed = ", ".join(f"session {session} at {end:.4g}" for session, end in sorted(behind.items()))
    return Finding(
        "warn",
        "sessions disagree",
        f"{len(behind)} of {len(ends)} are far behind the best one at {max(ends.values()):.4g}: {listed}",
        "whether it works depends on the seed, so the mean describes none of the sessions",
        f"lower {lr} for steadier learning, and raise {keys[1]} to know how often it fails",
        keys,
    )


def find_bound(run: Run) -> Finding | None:
    """What most of the time was spent on."""
    phases: dict[str, float] = {}
    for metrics in run.session_metrics.values():
        of_session = metrics.get("phases")
        for name, value in of_session.items() if isinstance(of_session, Mapping) else ():
            # compiling is done once, and a longer run has the less of it
            if name != "compile" and isinstance(value, int | float) and math.isfinite(value):
                phases[name] = phases.get(name, 0.0) + value
    total = sum(phases.values())
    if total < MIN_SECONDS:
        return None
    name, seconds = max(phases.items(), key=lambda item: item[1])
    share = seconds / total
    if share < BOUND or name not in _BOUND_ADVICE:
        return None
    meaning, advice, keys = _BOUND_ADVICE[name]
    if name == "update" and look_up(run.spec, "meta", "compile") is not True:
        advice, keys = f"set meta.compile to true; else {advice}", ("meta.compile", *keys)
    return Finding("info", f"{name}-bound", f"{name} took {share:.0%} of the time", meaning, advice, keys)


_BOUND_ADVICE: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "env": (
        "the envs are the limit",
        "set env.num_workers to step them in processes, or try another env.backend",
        ("env.num_workers", "env.backend"),
    ),
    "act": (
        "choosing actions is the limit: each step of the envs asks the net once",
        "raise env.num_envs, so that one call serves more of them (this changes learning too)",
        ("env.num_envs",),
    ),
    "update": (
        "gradient steps are the limit; faster envs would change little",
        "a smaller net or fewer gradient steps per frame (both change learning too)",
        ("agent.net.hid_layers",),
    ),
}

RULES: tuple[Rule, ...] = (
    find_no_learning,
    find_entropy_collapse,
    find_useless_values,
    find_high_clip_frac,
    find_large_kl,
    find_norm_drift,
    find_overestimation,
    find_disagreement,
    find_loss_of_score,
    find_rise,
    find_bound,
)


# --- reading tables

_EMPTY: Array = np.empty(0)


def _judged(run: Run) -> Iterator[tuple[int, Table]]:
    """Sessions that count, with rows enough to say something."""
    for session, table in run.counted_tables.items():
        if len(_known(table["total_reward"])) >= MIN_ROWS:
            yield session, table


def _known(column: Array) -> Array:
    return column[np.isfinite(column)]


def _part(column: Array, begin: float, end: float) -> Array:
    """The finite values between two shares of a column's rows."""
    return _known(column[int(begin * len(column)) : int(end * len(column))])


def _median(values: Array) -> float:
    """NaN, which no comparison is true for, where values are few."""
    return float(np.median(values)) if len(values) >= MIN_VALUES else math.nan


def _sum(column: Array, begin: float, end: float) -> float:
    """The sum between two shares of a column's rows, those without a value as the others; NaN where values are few."""
    count = int(end * len(column)) - int(begin * len(column))
    values = _part(column, begin, end)
    return float(values.mean()) * count if len(values) >= MIN_VALUES else math.nan


def _tenths(column: Array) -> list[float]:
    """The mean of each tenth of the values that are known."""
    return [float(part.mean()) if len(part) else math.nan for part in np.array_split(_known(column), 10)]


def _end(run: Run, session: int) -> float:
    """The score of a session: of its deterministic policy, or the last tenth of training where none was evaluated."""
    if run.score_kind != "train":
        return run.session_scores[session]
    return _tenths(run.tables[session]["total_reward"])[-1]


def _get_late_evals(run: Run) -> tuple[float, float]:
    """Means over sessions of the last evaluation in the second half but before the last fifth, and of the score.

    Sessions without such an evaluation are left out; NaN where all are.
    """
    pairs = []
    for session, table in _judged(run):
        evals = run.eval_tables.get(session, {"frame": _EMPTY, "total_reward": _EMPTY})
        share = evals["frame"] / table["frame"][-1]
        known = _known(evals["total_reward"][(share <= 1 - LAST_PART) & (share >= LATE)])
        if len(known):
            pairs.append((float(known[-1]), _end(run, session)))
    before, end = np.mean(pairs, axis=0) if pairs else (math.nan, math.nan)
    return float(before), float(end)


def _has_trained(table: Table) -> bool:
    return bool((table.get("opt_step", _EMPTY) > 0).any())


def _random_return(run: Run) -> float | None:
    value = run.metrics.get("random_return")
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _best_gain(run: Run, random_return: float) -> float:
    """The most that any session was above random play, over a tenth of its rows."""
    return max(max(_tenths(table["total_reward"])) for _, table in _judged(run)) - random_return


def _is_low(run: Run, session: int) -> bool:
    """Whether the score at the end is poor beside what was seen, or close to random play."""
    random_return = _random_return(run)
    if random_return is None:
        return False
    return _end(run, session) - random_return <= LOW * max(_best_gain(run, random_return), abs(random_return))


def _is_hurt(run: Run, session: int) -> bool:
    """Whether the score at the end is clearly below the best of this session."""
    random_return = _random_return(run)
    if random_return is None:
        return False
    best = max(_tenths(run.tables[session]["total_reward"])) - random_return
    return _end(run, session) - random_return < HURT * best


def _best_reward(table: Table) -> float:
    """The largest mean reward per step of any tenth of the rows; NaN if episodes were not counted."""
    frame, episode, score = (table.get(name, _EMPTY) for name in ("frame", "epi", "total_reward"))
    if not len(frame) == len(episode) == len(score):
        return math.nan
    known = np.isfinite(frame) & np.isfinite(episode) & np.isfinite(score)
    rates = []
    for rows in np.array_split(np.flatnonzero(known), 10):
        frames, episodes = (column[rows[-1]] - column[rows[0]] if len(rows) else 0 for column in (frame, episode))
        if frames > 0 and episodes > 0:
            rates.append(float(score[rows].mean() * episodes / frames))
    return max(rates, default=math.nan)


def _changes_rewards(run: Run) -> bool:
    """Whether learning sees other rewards than the score does; an unknown spec counts as if."""
    env: Any = look_up(run.spec, "env")
    if not isinstance(env, Mapping | list) or not env:
        return True
    scale = look_up(run.spec, "env", "reward_scale")
    return (
        bool(look_up(run.spec, "env", "normalize_reward"))
        or look_up(run.spec, "env", "clip_reward") is not None
        or scale not in (None, 1)
    )


def _lr_key(run: Run, part: str) -> str:
    """The key of the learning rate that holds for a part: of its own, if the spec has one."""
    net = look_up(run.spec, "agent", "net")
    has_own = isinstance(net, Mapping) and (f"{part}_optim_spec" in net or look_up(net, part, "optim_spec") is not None)
    return f"agent.net.{part}_optim_spec.lr" if has_own else "agent.net.optim_spec.lr"


def _where(run: Run, sessions: Mapping[int, Any]) -> str:
    """Which sessions, unless there is only one."""
    count = len(run.counted_tables)
    if count == 1:
        return ""
    if len(sessions) == count:
        return " in all sessions"
    return f" in session {', '.join(map(str, sorted(sessions)))} of {count}"
