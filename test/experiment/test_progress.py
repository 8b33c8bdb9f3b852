"""What a person or a machine sees while sessions train."""

import io
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace

import pytest
from loguru import logger
from rich.console import Console

from slm_lab.experiment.messages import Progress
from slm_lab.experiment.progress import BARS, CURVE_WIDTH, ProgressView, draw_curve
from slm_lab.lib.log import setup_console


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    setup_console("INFO")


def progress(frame: int = 500, session: int = 0, score: float = 20.0) -> Progress:
    return Progress(session, frame, 1000, 900.0, score, score / 2, score * 2)


def test_a_curve_goes_from_the_lowest_bar_to_the_highest() -> None:
    rising = [(frame, float(frame)) for frame in range(1000)]
    curve = draw_curve(rising, 1000)
    assert len(curve) == CURVE_WIDTH
    assert list(curve) == sorted(curve, key=BARS.index)
    assert (curve[0], curve[-1]) == (BARS[0], BARS[-1])


def test_a_curve_shows_how_far_training_is() -> None:
    assert draw_curve([], 1000) == ""
    half = draw_curve([(frame, 1.0) for frame in range(500)], 1000)
    assert half == BARS[0] * (CURVE_WIDTH // 2)
    # nothing was known in between, and the last frame belongs to the last bar
    gap = draw_curve([(0, 0.0), (1000, 7.0)], 1000)
    assert gap == BARS[0] + " " * (CURVE_WIDTH - 2) + BARS[-1]


def test_a_terminal_has_a_line_per_session() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=140)
    with ProgressView(3, 1000, console) as view:
        for frame in (100, 900):
            view.update(progress(frame, score=float(frame)))
        view.update(progress(300, session=1, score=math.nan))
    shown = stream.getvalue()
    assert BARS[-1] in shown
    assert "900.00" in shown
    assert "waiting" in shown


@pytest.mark.parametrize("width", [80, 60])
def test_a_narrow_terminal_keeps_all_digits(width: int) -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=width)
    view = ProgressView(1, 10_000_000, console)
    view.update(replace(progress(9_999_996, score=-12345.67), fps=123_456.0))
    console.print(view._table())
    shown = stream.getvalue()
    for text in ("9,999,996", "-12345.67", "-24691.34", "123,456"):
        assert text in shown
    assert "…" not in shown
    assert shown.count("\n") == 2


def test_waiting_starting_compiling_and_training_differ() -> None:
    view = ProgressView(4, 1000, Console(file=io.StringIO(), force_terminal=True, width=80))
    view.live = object()  # type: ignore[assignment]
    view.update(Progress(1, what="starting"))
    view.update(Progress(2, what="compiling"))
    view.update(progress(session=3))
    assert [view._cells(session)[1] for session in range(4)] == ["waiting", "starting 0s", "compiling 0s", "500"]
    # later in a run, and when it is over
    view.update(Progress(3, what="compiling"))
    assert view._cells(3)[1:5] == ("500", "20.00", "40.00", "compiling 0s")
    view.update(Progress(3, what="compiled"))
    assert view._cells(3)[4] == "900"


def test_without_a_terminal_there_are_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    setup_console("INFO")
    with ProgressView(1, 1000, Console(file=io.StringIO())) as view:
        view.update(progress(1000))
    assert "Session 0 frame 1,000/1,000 | total_reward 20.00 | eval 40.00 | fps 900" in capsys.readouterr().err


def test_lines_for_machines_are_json_with_the_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    setup_console("INFO", "json")
    with ProgressView(1, 1000, Console(file=io.StringIO(), force_terminal=True), may_draw=False) as view:
        view.update(progress(1000, score=math.nan))
    logger.warning("a {}", "b")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert first["level"] == "INFO"
    # JSON has no NaN
    empty = dict.fromkeys(("total_reward", "total_reward_ma", "eval_reward"))
    assert first["progress"] == {**asdict(progress(1000)), **empty}
    assert (second["level"], second["message"]) == ("WARNING", "a b")
    assert second["time"].startswith("20")
