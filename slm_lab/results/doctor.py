"""Find symptoms in the tables of a run, by rules whose thresholds come from good runs."""

import math
from collections.abc import Callable

import numpy as np

from slm_lab.results.doctor_parts import find_alpha_at_bound, find_values_at_edge, find_vanished_bonus
from slm_lab.results.evidence import (
    EMPTY,
    LOW,
    MIN_ROWS,
    MIN_VALUES,
    Case,
    calc_best_reward,
    calc_median,
    calc_sum,
    calc_tenths,
    has_trained,
    pick_known,
    pick_part,
)
from slm_lab.results.run import Run, look_up
from slm_lab.results.symptom import Symptom
from slm_lab.spec.algorithm import AlgorithmSpec
from slm_lab.spec.schema import ALGORITHM_SPECS

# the spread of this many last rows estimates the noise of a score
LAST_ROWS = 5
# in nats; a discrete policy starts with an entropy of at least ln 2
ENTROPY_COLLAPSED = 0.05
# a collapse before this share of the run is early
EARLY = 0.3
EXPLAINED_VAR_LOW = 0.1
# values are good, whatever they explain, if their loss has fallen to this share of its largest
VAL_LOSS_FALLEN = 0.05
CLIP_FRAC_HIGH = 0.3
KL_LARGE = 0.1
# policy updates are judged after this share of the run
SETTLED = 0.2
# in stds over the last fifth of the run; without drift, batches stay below it however short rows are
OBS_SHIFT = 0.3
# change of the log of the std over the last fifth; it is 0.22 for returns that grow linearly from zero
REWARD_SHIFT = 0.2
# multiple of the discounted returns that were reached
Q_FACTOR = 2.0
# share of the whole gain
RISE = 0.1
# share of the random return
RANDOM_MARGIN = 0.05
# share of the best session's gain over random play
DISAGREE = 0.5
# a phase dominates above this share of the time, if the run took at least this many seconds
BOUND = 0.6
MIN_SECONDS = 10.0
# a score has dropped if less than this share of the best gain is left
LOST = 0.6


def find_symptoms(run: Run) -> list[Symptom]:
    """All symptoms, warnings first."""
    case = Case(run)
    found = [symptom for rule in RULES if (symptom := rule(case)) is not None]
    return sorted(found, key=lambda symptom: symptom.level == "info")


def can_judge(run: Run) -> bool:
    """Whether a session has enough rows to judge."""
    return bool(Case(run).judged)


def describe_health(run: Run) -> str:
    """The text for a run without symptoms."""
    rows = Case(run).num_row
    name = str(look_up(run.spec, "agent", "algorithm", "name"))
    if ALGORITHM_SPECS.get(name, AlgorithmSpec).learns_from == "data":
        return f"Nothing to judge: {name} learns from recorded steps, so its rows have no score; compare evaluations."
    if rows < MIN_ROWS:
        return f"Too short to judge: {rows} row(s) with a score, {MIN_ROWS} are needed (meta.log_frequency)."
    return f"No warnings: {len(RULES)} rules looked at {rows} rows."


# --- rules


def find_entropy_collapse(case: Case) -> Symptom | None:
    """A discrete policy that stopped exploring before it was any good."""
    hit: dict[int, float] = {}
    for session, table in case.judged.items():
        entropy = table.get("entropy", EMPTY)
        # a negative entropy means continuous actions, for which low values are normal
        if (entropy < 0).any() or not case.is_low(session):
            continue
        begin, end = pick_part(entropy, EARLY, 0.5), pick_part(entropy, 0.8, 1)
        if calc_median(begin) < ENTROPY_COLLAPSED and calc_median(end) < ENTROPY_COLLAPSED:
            hit[session] = float(table["frame"][np.argmax(entropy < ENTROPY_COLLAPSED)])
    if not hit:
        return None
    session, frame = min(hit.items(), key=lambda item: item[1])
    lr = case.find_lr_key("actor")
    bonus = "target_entropy" if "alpha" in case.run.tables[session] else "entropy_coef_spec"
    return Symptom(
        "warn",
        "entropy collapsed early",
        f"entropy fell below {ENTROPY_COLLAPSED} nats at frame {frame:,.0f} and stayed there"
        f"{case.where(hit)}, with a score of {case.end(session):.4g}",
        "the policy is certain of its actions before it found good ones, so it tries nothing else any more",
        f"raise agent.algorithm.{bonus}, or lower {lr}",
    )


def find_useless_values(case: Case) -> Symptom | None:
    """Value predictions no better than a constant, although there is something to predict."""
    hit: dict[int, float] = {}
    for session, table in case.judged.items():
        explained, loss = table.get("explained_var", EMPTY), table.get("val_loss", EMPTY)
        late, late_loss = calc_median(pick_part(explained, 0.75, 1)), calc_median(pick_part(loss, 0.75, 1))
        # if all returns are equal, as in a solved CartPole, nothing is left to explain, and the loss is small
        largest = max((value for value in calc_tenths(loss) if math.isfinite(value)), default=math.nan)
        if late < EXPLAINED_VAR_LOW and late_loss > VAL_LOSS_FALLEN * largest:
            hit[session] = late
    if not hit:
        return None
    lr = case.find_lr_key("critic")
    return Symptom(
        "warn",
        "values explain nothing",
        f"explained_var is {min(hit.values()):.2g} in the last quarter{case.where(hit)}, and val_loss has not fallen",
        "the critic predicts no better than a constant, so advantages are as noisy as the returns",
        f"change {lr} (up if val_loss never moved, down if it jumps), raise agent.algorithm.val_loss_coef where the "
        "net is shared, or set agent.algorithm.normalize_v_targets where returns are large",
    )


def find_high_clip_frac(case: Case) -> Symptom | None:
    """Policy updates that are clipped all the time; a warning only if the score suffers."""
    hit = case.find_high("clip_frac", CLIP_FRAC_HIGH, SETTLED)
    if not hit:
        return None
    is_hurt = any(case.is_low(session) or case.is_hurt(session) for session in hit)
    return Symptom(
        "warn" if is_hurt else "info",
        "clip fraction high",
        f"clip_frac is {max(hit.values()):.2g}, the median after the first fifth{case.where(hit)}",
        "many samples leave the clip range: steps are large for their data"
        + ("" if is_hurt else "; the score does not suffer from it"),
        f"lower {case.find_lr_key('actor')} or agent.algorithm.training_epoch, or set agent.algorithm.target_kl",
    )


def find_large_kl(case: Case) -> Symptom | None:
    """Policies that change a lot with each batch."""
    hit = case.find_high("kl", KL_LARGE, SETTLED)
    if not hit:
        return None
    return Symptom(
        "warn",
        "KL large",
        f"kl is {max(hit.values()):.2g}, the median after the first fifth{case.where(hit)}; runs that go well stay "
        "below 0.05",
        "each training takes the policy far from the one that gathered the data, where the data say little",
        f"set agent.algorithm.target_kl (0.02 is common), or lower {case.find_lr_key('actor')} or "
        "agent.algorithm.training_epoch",
    )


def find_norm_drift(case: Case) -> Symptom | None:
    """Normalisers that still drift at the end; a warning only if the score suffers."""
    observations: dict[int, float] = {}
    rewards: dict[int, tuple[float, float]] = {}
    is_hurt = False
    for session, table in case.judged.items():
        moved = calc_sum(table.get("obs_norm_shift", EMPTY), 0.8, 1)
        std = pick_part(table.get("reward_norm_std", EMPTY), 0.8, 1)
        if moved > OBS_SHIFT:
            observations[session] = moved
        if len(std) >= MIN_VALUES and min(std[0], std[-1]) > 0 and abs(math.log(std[-1] / std[0])) > REWARD_SHIFT:
            rewards[session] = float(std[0]), float(std[-1])
        if session in observations or session in rewards:
            is_hurt |= case.is_low(session) or case.is_hurt(session)
    if not observations and not rewards:
        return None
    seen, advice = [], ["train longer: raise env.max_frame"]
    if observations:
        seen.append(
            f"obs_norm_shift adds up to {max(observations.values()):.2g} stds over the last fifth"
            f"{case.where(observations)}"
        )
        advice.append("lower env.clip_obs against rare large values")
        advice.append("turn env.normalize_obs off if observations are of one size anyway")
    if rewards:
        first, last = max(rewards.values(), key=lambda pair: abs(math.log(pair[1] / pair[0])))
        seen.append(f"reward_norm_std went from {first:.4g} to {last:.4g} over the last fifth{case.where(rewards)}")
        advice.append(f"turn env.normalize_reward off and set a fixed env.reward_scale, about {1 / last:.2g}")
    what = " and ".join(name for name, hit in (("observations", observations), ("rewards", rewards)) if hit)
    return Symptom(
        "warn" if is_hurt else "info",
        "normaliser drifting",
        "; ".join(seen),
        f"the same {what} look different to the net from one batch to the next, so it learns after a moving target"
        + ("" if is_hurt else "; the score does not suffer from it"),
        "; or ".join(advice),
    )


def find_overestimation(case: Case) -> Symptom | None:
    """Q-values far above any discounted return reached."""
    gamma = look_up(case.run.spec, "agent", "algorithm", "gamma")
    if not isinstance(gamma, int | float) or not 0 <= gamma < 1 or case.changes_rewards:
        return None
    random_return = case.random_return
    hit: dict[int, tuple[float, float]] = {}
    for session, table in case.judged.items():
        q = calc_median(pick_part(table.get("q", EMPTY), 0.8, 1))
        reached = calc_best_reward(table) / (1 - gamma)
        if not math.isfinite(q) or not math.isfinite(reached):
            continue
        # values of soft algorithms include the future entropy
        alpha, entropy = table.get("alpha", EMPTY), table.get("entropy", EMPTY)
        if len(alpha) and len(alpha) == len(entropy):
            # damaged rows may contain infinities
            with np.errstate(invalid="ignore"):
                bonus = calc_median(pick_part(alpha * np.maximum(entropy, 0), 0.8, 1)) / (1 - gamma)
            reached += bonus if math.isfinite(bonus) else 0.0
        score = pick_known(table["total_reward"])
        # `reached` bounds the mean value only if no reward is negative; otherwise allow the size of returns as well
        floor = 0.0
        if random_return is None or random_return < 0 or score.min() < 0:
            floor = max(float(np.abs(score).max()), abs(random_return or 0.0))
        if q > max(Q_FACTOR * reached, floor) and max(reached, floor) > 0:
            hit[session] = q, max(reached, floor)
    if not hit:
        return None
    q, bound = max(hit.values())
    lr = case.find_lr_key("critic")
    name = str(look_up(case.run.spec, "agent", "algorithm", "name"))
    kind = ALGORITHM_SPECS.get(name, AlgorithmSpec)
    advice = f"lower {lr}"
    if kind.actions == "joint" and name != "DoubleDQN":
        advice += ", or use DoubleDQN as agent.algorithm.name"
    if kind.has_target:
        advice += (
            ", or let the target net follow more slowly: agent.net.update_frequency up, agent.net.polyak_coef down"
        )
    return Symptom(
        "warn",
        "Q far above returns",
        f"q is {q:.4g} at the end{case.where(hit)}; from the rewards that were reached it should be about "
        f"{bound:.4g} at most",
        "the values feed on their own errors (overestimation), and the policy follows them",
        advice,
    )


def find_rise(case: Case) -> Symptom | None:
    """A score that was still rising at the end."""
    curves = [calc_tenths(table["total_reward"]) for _, table in case.judged.items()]
    if not curves:
        return None
    curve = np.mean(curves, axis=0)
    spread = np.mean([pick_known(table["total_reward"])[-LAST_ROWS:].std() for _, table in case.judged.items()])
    random_return = case.random_return
    # count the gain over random play, since a run can be good from its first rows on
    lowest = curve.min() if random_return is None else min(curve.min(), random_return)
    rise, gained = curve[-1] - curve[-3], curve[-1] - lowest
    # two steps up to the highest point, unlike the fluctuation of a converged curve
    if not (curve[-1] == curve.max() and curve[-3] < curve[-2] < curve[-1]):
        return None
    if rise <= RISE * gained or rise <= 2 * spread or gained <= RANDOM_MARGIN * abs(random_return or 0.0):
        return None
    # the mean of the last 100 episodes still rises long after the policy has converged; evaluations do not lag
    end = curve[-1]
    if case.run.score_kind != "train":
        before, end = case.find_late_evals()
        rise, gained = end - before, end - min(lowest, before)
        if not rise > RISE * gained:
            return None
    return Symptom(
        "warn",
        "score still rising",
        f"the score rose by {rise:.4g} to {end:.4g} over the last fifth, {rise / gained:.0%} of all it gained",
        "learning was not over when the run was",
        "train longer: raise env.max_frame, and the ends of schedules with it",
    )


def find_loss_of_score(case: Case) -> Symptom | None:
    """A score that was much better before."""
    random_return = case.random_return
    curves = [calc_tenths(table["total_reward"]) for _, table in case.judged.items()]
    if random_return is None or not curves:
        return None
    curve = np.mean(curves, axis=0)
    end = float(np.mean([case.end(session) for session, _ in case.judged.items()]))
    best = curve.max() - random_return
    if best <= LOW * abs(random_return) or end - random_return >= LOST * best:
        return None
    lr = case.find_lr_key("actor")
    return Symptom(
        "warn",
        "score dropped",
        f"the score at the end is {end:.4g}, after {curve.max():.4g} in the best tenth of the run",
        "further training made the policy worse",
        f"lower {lr}, let it fall with agent.net.lr_scheduler_spec, or set agent.net.clip_grad_val",
    )


def find_no_learning(case: Case) -> Symptom | None:
    """A score no better than random play."""
    random_return = case.random_return
    ends = [case.end(session) for session, table in case.judged.items() if has_trained(table)]
    if random_return is None or not ends:
        return None
    score = float(np.mean(ends))
    if not score <= random_return + RANDOM_MARGIN * abs(random_return):
        return None
    lr = case.find_lr_key("actor")
    return Symptom(
        "warn",
        "no better than random",
        f"the score at the end is {score:.4g}; random play has {random_return:.4g}",
        "nothing was learned that shows in the score",
        f"another {lr} (ten times up or down), env.normalize_obs for observations on different scales, "
        "or a larger env.max_frame if the run was short or rewards are rare",
    )


def find_disagreement(case: Case) -> Symptom | None:
    """Sessions that learned far less than others of the same spec."""
    random_return = case.random_return
    ends = {session: case.end(session) for session, _ in case.judged.items()}
    if random_return is None or len(ends) < 2:
        return None
    best = max(ends.values()) - random_return
    if best <= RANDOM_MARGIN * abs(random_return):
        return None
    behind = {session: end for session, end in ends.items() if end - random_return < DISAGREE * best}
    if not behind:
        return None
    lr = case.find_lr_key("actor")
    listed = ", ".join(f"session {session} at {end:.4g}" for session, end in sorted(behind.items()))
    return Symptom(
        "warn",
        "sessions disagree",
        f"{len(behind)} of {len(ends)} are far behind the best one at {max(ends.values()):.4g}: {listed}",
        "whether it works depends on the seed, so the mean describes none of the sessions",
        f"lower {lr} for steadier learning, and raise meta.max_session to know how often it fails",
    )


def find_bound(case: Case) -> Symptom | None:
    """The phase that took most of the time."""
    phases: dict[str, float] = {}
    for metrics in case.run.session_metrics.values():
        for name, value in (metrics.phases or {}).items():
            # compiling happens once, so it matters less in a longer run
            if name != "compile" and math.isfinite(value):
                phases[name] = phases.get(name, 0.0) + value
    total = sum(phases.values())
    if total < MIN_SECONDS:
        return None
    name, seconds = max(phases.items(), key=lambda item: item[1])
    share = seconds / total
    if share < BOUND or name not in _BOUND_ADVICE:
        return None
    meaning, advice = _BOUND_ADVICE[name]
    if name == "update" and look_up(case.run.spec, "meta", "compile") is not True:
        advice = f"set meta.compile to true; else {advice}"
    return Symptom("info", f"{name}-bound", f"{name} took {share:.0%} of the time", meaning, advice)


_BOUND_ADVICE = {
    "env": (
        "the envs are the limit",
        "set env.num_workers to step them in processes, or try another env.backend",
    ),
    "act": (
        "choosing actions is the limit: each step of the envs asks the net once",
        "raise env.num_envs, so that one call serves more of them (this changes learning too)",
    ),
    "update": (
        "gradient steps are the limit; faster envs would change little",
        "a smaller net (agent.net.hid_layers) or fewer gradient steps per frame (both change learning too)",
    ),
}

RULES: tuple[Callable[[Case], Symptom | None], ...] = (
    find_no_learning,
    find_entropy_collapse,
    find_useless_values,
    find_high_clip_frac,
    find_large_kl,
    find_norm_drift,
    find_overestimation,
    find_values_at_edge,
    find_alpha_at_bound,
    find_vanished_bonus,
    find_disagreement,
    find_loss_of_score,
    find_rise,
    find_bound,
)
