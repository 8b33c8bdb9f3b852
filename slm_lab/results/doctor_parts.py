"""Rules on parts that only some agents have: critics with bins, a learned alpha, bonuses for new observations."""

import math

from slm_lab.results.evidence import EMPTY, Case, calc_median, calc_tenths, pick_part
from slm_lab.results.run import look_up
from slm_lab.results.symptom import Symptom

# share of the range of the bins, counted from either end
EDGE = 0.05
# factor within which alpha counts as being at a bound
AT_BOUND = 1.05
# share of its largest tenth at which a bonus is gone
BONUS_GONE = 0.01


def find_values_at_edge(case: Case) -> Symptom | None:
    """Values of a critic with bins that are as large, or as small, as its bins allow."""
    critic = look_up(case.run.spec, "agent", "algorithm", "critic")
    low, high = (look_up(critic, key) for key in ("v_min", "v_max"))
    if (
        look_up(critic, "kind") != "categorical"
        or not isinstance(low, int | float)
        or not isinstance(high, int | float)
    ):
        return None
    margin = EDGE * (high - low)
    hit: dict[int, float] = {}
    for session, table in case.judged.items():
        value = calc_median(pick_part(table.get("q", EMPTY), 0.8, 1))
        if value > high - margin or value < low + margin:
            hit[session] = value
    if not hit:
        return None
    session = min(hit)
    key, bound = ("v_max", high) if hit[session] > high - margin else ("v_min", low)
    return Symptom(
        "warn",
        "values at the edge of the bins",
        f"q is {hit[session]:.4g} in the last fifth of the run{case.where(hit)}, the bins end at {bound:.4g}",
        "returns beyond the last bin count as that bin, so actions that lead there look alike",
        f"widen agent.algorithm.critic.{key}, or scale rewards by env.normalize_reward",
    )


def find_alpha_at_bound(case: Case) -> Symptom | None:
    """A learned entropy coefficient that its bounds keep from steering the entropy to its target."""
    config = look_up(case.run.spec, "agent", "algorithm")
    low, high = (look_up(config, key) for key in ("log_alpha_min", "log_alpha_max"))
    if (
        look_up(config, "fixed_alpha") is not None
        or not isinstance(low, int | float)
        or not isinstance(high, int | float)
    ):
        return None
    bounds = {"log_alpha_min": math.exp(low), "log_alpha_max": math.exp(high)}
    hit: dict[int, str] = {}
    for session, table in case.judged.items():
        alpha = calc_median(pick_part(table.get("alpha", EMPTY), 0.8, 1))
        for key, bound in bounds.items():
            if bound / AT_BOUND < alpha < bound * AT_BOUND and case.is_low(session):
                hit[session] = key
    if not hit:
        return None
    key = hit[min(hit)]
    verb, move, kind, scale = (
        ("lower", "fall", "noisier", "raise") if key == "log_alpha_min" else ("raise", "rise", "more certain", "lower")
    )
    return Symptom(
        "warn",
        "alpha at its bound",
        f"alpha is {bounds[key]:.3g} in the last fifth of the run{case.where(hit)}, the bound that {key} sets",
        f"alpha cannot {move} further, so the policy stays {kind} than its target entropy",
        f"{verb} agent.algorithm.{key}, or {scale} env.reward_scale",
    )


def find_vanished_bonus(case: Case) -> Symptom | None:
    """A bonus for new observations that is gone before the env was solved."""
    hit: dict[int, float] = {}
    for session, table in case.judged.items():
        bonus = table.get("rnd_bonus", EMPTY)
        largest = max((value for value in calc_tenths(bonus) if math.isfinite(value)), default=math.nan)
        late = calc_median(pick_part(bonus, 0.8, 1))
        if late < BONUS_GONE * largest and case.is_low(session):
            hit[session] = late / largest
    if not hit:
        return None
    session = min(hit)
    return Symptom(
        "warn",
        "bonus vanished",
        f"rnd_bonus fell to {hit[session]:.2%} of its largest tenth{case.where(hit)}, with a score of "
        f"{case.end(session):.4g}",
        "the prediction knows every observation that the agent reaches, so nothing draws it to new ones",
        "raise agent.algorithm.rnd.coef or agent.algorithm.rnd.batch_size, or lower agent.net.optim_spec.lr",
    )
