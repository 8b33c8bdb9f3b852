"""Pages in a browser: they draw themselves without a network, answer clicks, and run nothing of strangers."""

import re
from pathlib import Path

import numpy as np
import pytest

from slm_lab.results.page import PAGE
from slm_lab.results.report_chart import write_graph
from slm_lab.results.report_search import write_search_report
from test.results.sample import SPEC, make_table, write_run
from test.results.test_report import HTML, level_run, write_hostile, write_search

pytestmark = pytest.mark.xdist_group("browser")


def test_a_report_opens_offline_and_draws(tmp_path, show) -> None:
    evals = {session: make_table(rows=5, step=4000, seed=session) for session in range(4)}
    run = write_run(tmp_path / "run", evals=evals)
    shown = show(run)
    page = shown.page
    assert (shown.errors, shown.requests) == ([], [(run.path / "report.html").as_uri()])
    assert page.title() == shown.text("h1") == "PPO on CartPole-v1"
    assert shown.curves("train") == {"0/0": 40, "0/1": 40, "0/2": 40, "0/3": 40, "0/mean": 40}
    assert page.locator("circle.evaluation").count() == 5
    assert shown.curves("entropy")["0/2"] == 37
    # of the returns, loss and entropy; the learning rate never changes
    assert page.locator("path.band").count() == 3
    assert page.locator("[data-score]").count() == 4
    # what was drawn has a height: the curve rises
    box = page.locator("path.curve").first.bounding_box()
    assert box["width"] > 800
    assert box["height"] > 150
    parts = (f"slm-lab run train@{run.path}", f"slm-lab run enjoy@{run.path}", "cores", "update 62.5 %")
    for part in (*parts, "constant: lr 0.0003"):
        assert part in shown.text()
    assert "20k" in page.locator(".tick").all_text_contents()


@pytest.mark.parametrize(
    ("value", "exact", "short"),
    [
        (1.5e-10, "1.5e-10", "1.5e-10"),
        (-2.5e30, "-2.5e+30", "-2.5e+30"),
        (0.00025, "0.00025", "2.5e-4"),
        (1200.5, "1200.5", "1.2k"),
        (20_000, "20,000", "20k"),
        (0, "0", "0"),
    ],
)
def test_numbers_keep_their_size(browser, value: float, exact: str, short: str) -> None:
    text = (PAGE / "number.js").read_text(encoding="utf-8").replace("export ", "")
    page = browser.new_page()
    assert page.evaluate(f"(value) => {{ {text}; return [exact(value), short(value)]; }}", value) == [exact, short]
    page.close()


def test_a_click_hides_a_session_in_every_chart(tmp_path, show) -> None:
    shown = show(write_run(tmp_path / "run", {s: make_table(rows=120, seed=s) for s in range(4)}))
    chart = shown.page.locator("[data-chart=train]")
    shown.click("0/1")
    assert set(shown.curves("train")) == set(shown.curves("loss")) == {"0/0", "0/2", "0/3", "0/mean"}
    assert shown.page.locator('[data-toggle="0/1"]').get_attribute("aria-pressed") == "false"
    shown.click("0/1")
    assert "0/1" in shown.curves("train")
    shown.click("0/band")
    assert shown.page.locator("path.band").count() == 0
    shown.click("0/all")
    shown.click("0/mean")
    assert shown.curves("train") == {}
    assert "all curves are hidden" in chart.text_content()
    shown.click("0/all")
    assert "400" in chart.locator("> svg").text_content()
    # the moving average of these tables is half of the reward, and the title says what is drawn
    assert "mean of the last 100 episodes" in chart.text_content()
    shown.click("smooth")
    assert "400" not in chart.locator("> svg").text_content()
    assert "total_reward_ma" in chart.locator("figcaption").text_content()
    assert shown.errors == []


def test_the_doctor_is_drawn_with_keys_as_code(tmp_path, show) -> None:
    shown = show(level_run(tmp_path / "run", kl=0.4, clip_frac=0.5))
    boxes = shown.page.locator("[data-symptom]")
    assert boxes.evaluate_all("all => all.map(box => [box.className, box.dataset.symptom])") == [
        ["symptom warn", "KL large"],
        ["symptom info", "clip fraction high"],
    ]
    words = shown.text('[data-symptom="KL large"]')
    assert words.startswith("KL large Seen kl is 0.4, the median")
    assert "Try set agent.algorithm.target_kl (0.02 is common), or lower agent.net.optim_spec.lr or agent" in words
    keys = shown.page.locator('[data-symptom="KL large"] code').all_text_contents()
    assert keys == ["agent.algorithm.target_kl", "agent.net.optim_spec.lr", "agent.algorithm.training_epoch"]
    assert (shown.errors, "No warnings" in shown.text()) == ([], False)
    both = show(level_run(tmp_path / "quiet"), level_run(tmp_path / "bad", kl=0.4), width=360)
    words = both.text("section:has(> h2:text-is('Doctor'))")
    assert re.match(r"Doctor quiet No warnings: \d+ rules looked at 100 rows. bad KL large Seen", words)


def test_a_pointer_reads_values_and_a_button_copies_a_command(tmp_path, show) -> None:
    run = write_run(tmp_path / "run")
    shown = show(run)
    box = shown.page.locator("[data-chart=train] > svg").bounding_box()
    shown.page.mouse.move(box["x"] + box["width"] - 14, box["y"] + 50)
    tip = shown.text("[data-chart=train] .tip")
    assert "frame 20,000" in tip
    assert re.findall(r"mean|session \d", tip) == ["mean", "session 0", "session 1", "session 2", "session 3"]
    assert f"{run.tables[3]['total_reward'][-1]:.2f}" in tip
    shown.page.evaluate(
        "Object.defineProperty(navigator, 'clipboard', {value: {writeText: async text => { window.copied = text; }}})"
    )
    button = shown.page.locator(".command .copy").nth(1)
    button.click()
    assert button.text_content() == "Copied"
    assert shown.page.evaluate("window.copied") == f"slm-lab run train@{run.path}"


def test_strangers_run_nothing(tmp_path, show) -> None:
    shown = show(write_hostile(tmp_path))
    assert (shown.errors, len(shown.requests)) == ([], 1)
    assert shown.page.evaluate("[window.hit === undefined, document.images.length]") == [True, 0]
    assert shown.text("h1") == shown.page.title() == f"{HTML} on {HTML}"
    # a handler that got in all the same would be refused
    shown.page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.hit=1\">')")
    shown.page.wait_for_timeout(100)
    assert shown.errors != []
    assert shown.page.evaluate("window.hit === undefined")


def test_a_video_may_be_loaded(tmp_path, show) -> None:
    run = write_run(tmp_path / "run", {0: make_table()})
    video = run.path / "video" / "demo_t0_s0_f500.mp4"
    video.parent.mkdir()
    video.write_bytes(b"no video, but a file")
    shown = show(run)
    assert shown.page.locator("video").evaluate("video => video.src") == video.as_uri()
    # a refusal by the page's policy would be an error, and nothing would be asked for
    assert (shown.errors, shown.requests[1:2]) == ([], [video.as_uri()])
    assert shown.curves("train") == {"0/0": 40}


def test_runs_side_by_side_fit_a_phone(tmp_path, show) -> None:
    other = {**SPEC, "agent": {"algorithm": {"name": "PPO", "gamma": 0.9}}}
    shown = show(write_run(tmp_path / "first"), write_run(tmp_path / "second", spec=other), width=360)
    # sessions are a click away
    assert set(shown.curves("train")) == {"0/mean", "1/mean"}
    shown.click("1/2")
    assert set(shown.curves("train")) == {"0/mean", "1/mean", "1/2"}
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 360
    assert "probability of improvement 0.50" in shown.text()
    assert "agent.algorithm.gamma" in shown.text()
    assert shown.errors == []


@pytest.mark.parametrize("has_legend", [True, False])
def test_a_graph_is_its_curves_alone(tmp_path, show, has_legend) -> None:
    runs = [write_run(tmp_path / "a"), write_run(tmp_path / "b", {0: make_table(level=90.0)})]
    write_graph(runs, ["ours", "theirs"], "Mine", tmp_path / "graph.html", has_legend)
    shown = show(tmp_path / "graph.html")
    assert (shown.errors, shown.text("h1")) == ([], "Mine")
    assert set(shown.curves("train")) == {"0/mean", "1/0"}
    assert ("ours" in shown.text()) == has_legend
    assert "Doctor" not in shown.text()


def test_a_search_is_drawn(tmp_path: Path, show) -> None:
    write_search_report(write_search(tmp_path / "search"), tmp_path / "report.html")
    shown = show(tmp_path / "report.html", width=360)
    assert shown.errors == []
    dots = shown.page.locator('[data-chart="score against optim_spec.lr"] circle')
    assert [dot.text_content().split("\n")[0] for dot in dots.all()] == ["trial 1: 30", "trial 2: 40", "trial 0: 90"]
    places = [dot.bounding_box()["x"] for dot in dots.all()]
    assert np.argsort(places).tolist() == [2, 0, 1]
    assert shown.page.locator("path.trial").count() == 3
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= 360
