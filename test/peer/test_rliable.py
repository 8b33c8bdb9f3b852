"""Statistics are those of rliable (Agarwal et al. 2021), where both have them.

It is not among the lab's own dependencies, so these tests are skipped without it. To run them:
`uv run --group peer pytest test/peer`.
"""

import numpy as np
import pytest

from slm_lab.results.aggregate import calc_aggregate_iqm
from slm_lab.results.metrics import calc_spread
from slm_lab.results.statistics import calc_improvement

REASON = "needs the group peer: uv run --group peer pytest test/peer"
metrics = pytest.importorskip("rliable.metrics", reason=REASON)
library = pytest.importorskip("rliable.library", reason=REASON)


def make_scores(seed: int, num_session: int, num_env: int) -> np.ndarray:
    """Scores (S, E), some of them equal."""
    return np.random.default_rng(seed).normal(50.0, 20.0, (num_session, num_env)).round(-1)


@pytest.mark.parametrize("num_session", [4, 5, 10])
def test_iqm(num_session: int) -> None:
    scores = make_scores(0, num_session, 1)
    assert calc_spread(scores[:, 0].tolist()).iqm == pytest.approx(metrics.aggregate_iqm(scores))


@pytest.mark.parametrize(("num_session", "num_env"), [(4, 1), (10, 3), (7, 5)])
def test_probability_of_improvement(num_session: int, num_env: int) -> None:
    ours, theirs = make_scores(1, num_session, num_env), make_scores(2, num_session + 1, num_env)
    pairs = [(ours[:, env].tolist(), theirs[:, env].tolist()) for env in range(num_env)]
    assert calc_improvement(pairs).value == pytest.approx(metrics.probability_of_improvement(ours, theirs))


def test_iqm_over_envs_and_its_interval() -> None:
    # not rounded: the bounds of an interval would jump by more than the tolerance
    scores = np.random.default_rng(3).normal(50.0, 20.0, (8, 4))
    ours = calc_aggregate_iqm(list(scores.T))
    value, interval = library.get_interval_estimates({"A": scores}, metrics.aggregate_iqm, reps=10_000)
    assert ours.value == pytest.approx(value["A"])
    # random draws of two generators: a twentieth of the interval's width
    assert (ours.low, ours.high) == pytest.approx(tuple(interval["A"].flat), abs=(ours.high - ours.low) / 20)
