"""What the table of a session knows of its rows."""

from pathlib import Path

import pytest

from slm_lab.env.vec_env import Episode
from slm_lab.experiment.control import Session
from slm_lab.experiment.tracker import Tracker
from slm_lab.results.folder import RunFolder
from slm_lab.results.metrics import MA_WINDOW
from test.tiny import make_tiny_spec

CLOCK = {"frame": 0, "wall_t": 0.0, "fps": 0.0, "t": 0, "epi": 0, "opt_step": 0, "lr": 0.0}


def add(tracker: Tracker, *returns: float) -> bool:
    """Whether the row after episodes of these returns is the best."""
    tracker.record([Episode(0, total_reward, 1, {}) for total_reward in returns], None)
    tracker.add_row(CLOCK)
    return tracker.is_best()


def test_the_best_row_has_the_best_mean_of_a_whole_window(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path / "table.csv", [])
    tracker.add_row(CLOCK)
    assert not tracker.is_best(), "no episode has ended"
    # one lucky episode at the start is no measure
    assert add(tracker, 500.0)
    assert add(tracker, *[1.0] * 9)
    assert add(tracker, *[2.0] * (MA_WINDOW - 10)), "the first whole window, 6.89 on average"
    assert not add(tracker, *[3.0] * 10), "the lucky one has left the window"

    resumed = Tracker(tmp_path / "resumed.csv", [])
    resumed.load_state_dict(tracker.state_dict())
    assert not add(resumed, *[4.0] * 10)
    assert add(resumed, *[9.0] * MA_WINDOW)
    assert add(resumed, 9.0), "of equals the newest"
    resumed.close()
    tracker.close()


def test_an_evaluation_of_many_episodes_counts_them_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long episodes end last: a window of the last 100 would favour them."""
    session = Session(make_tiny_spec(meta={"rigorous_eval": 150}), RunFolder(tmp_path, "tiny"))
    episodes = [Episode(0, float(number), 1, {}) for number in range(150)]
    monkeypatch.setattr(session.evaluation, "_play", lambda *_: (episodes, 150))
    row = session.evaluation.run(CLOCK, lambda: False)
    assert row is not None
    assert row["total_reward"] == pytest.approx(74.5)
