"""The pages of `slm-lab ui` in a real browser."""

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from playwright.sync_api import APIResponse, Page, Route, expect

from slm_lab.experiment.study import Study
from slm_lab.lib.io import lock_file, write_text, write_yaml
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import dump_spec
from slm_lab.spec.search_space import read_dimensions
from slm_lab.ui.places import Place
from slm_lab.ui.summary import calc_seconds_left, find_status
from test.results.sample import make_spec, make_table, write_run, write_table
from test.tiny import make_tiny_spec
from test.ui.conftest import Look, Served, serve

LIVE_MS = 2000


def make_shipped_spec(algorithm: str = "PPO", **env: object) -> dict[str, object]:
    spec = make_spec(algorithm)
    return spec | {"env": spec["env"] | env, "meta": {"max_session": 2}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Runs, a search and an experiment that never trained."""
    data = tmp_path_factory.mktemp("data")
    tables = {session: make_table(60, seed=session) for session in range(4)}
    evals = {session: make_table(5, 6000, seed=session) for session in range(4)}
    write_run(data / "one", tables, evals, spec=make_shipped_spec())
    write_run(
        data / "two", {s: make_table(60, seed=9 + s, level=90.0) for s in range(4)}, spec=make_shipped_spec("SARSA")
    )
    flat = {0: make_table(60, level=21.0, entropy=np.linspace(2e-3, 1e-3, 60))}
    write_run(data / "flat", flat, spec=make_shipped_spec())
    write_run(data / "live", {0: make_table(20), 1: make_table(20, seed=1)}, spec=make_shipped_spec(), has_end=False)
    for label, env in (("ppo", "cartpole"), ("ppo", "acrobot"), ("a2c", "cartpole"), ("a2c", "acrobot")):
        name = {"cartpole": "CartPole-v1", "acrobot": "Acrobot-v1"}[env]
        spec = make_spec({"ppo": "PPO", "a2c": "ActorCritic"}[label], name)
        write_run(data / "grid" / f"{label}_{env}", {s: make_table(seed=s) for s in range(3)}, spec=spec)
    write_search(data / "seek")
    with serve(data) as served:
        yield served


def write_search(path: Path) -> None:
    """A search of eight trials, as its driver leaves it while two of them are under way."""
    search = {"agent.net.optim_spec.lr__loguniform": [1e-5, 1e-2], "agent.algorithm.gamma__uniform": [0.9, 0.999]}
    spec = make_tiny_spec(search=search, meta={"max_trial": 8, "search_scheduler": {"grace_period": 200}})
    folder = RunFolder(path, spec.name)
    study = Study(folder.study_file, spec.name, read_dimensions(spec), 0, 8, spec.meta.search_scheduler)
    for number in range(8):
        trial, _ = study.ask()
        study.report(trial, 200, 10.0 * number)
        if number in (0, 1):
            study.stop(trial)
        elif number == 2:
            study.fail(trial, "ValueError: <b>lost</b>")
        elif number < 7:
            study.report(trial, 400, 20.0 * number)
            study.finish(trial, 30.0 * number)
        write_table(folder.table_file(trial, 0, "train"), make_table(20, seed=number, level=30.0 * number + 25))
    write_yaml(folder.spec_file, dump_spec(spec))
    write_text(folder.best_spec_file, "best: {of: all}\n")


def append_row(path: Path, frame: float, reward: float) -> None:
    """Append a row to a table of `make_table`, as a run does."""
    columns = path.read_text().partition("\n")[0].split(",")
    values = {"frame": frame, "total_reward": reward, "opt_step": 1.0, "wall_t": frame}
    with path.open("a") as file:
        file.write(",".join(str(values.get(name, 1.0)) for name in columns) + "\n")


# --- runs


def test_runs_are_listed_sorted_and_filtered(served: Served, look: Look) -> None:
    shown = look(served)
    page = shown.page
    expect(page.locator("[data-run]")).to_have_count(10)
    expect(page.locator('[data-run="one"] .pill')).to_have_text("done")
    expect(page.locator('[data-run="live"] .pill')).to_have_text("stopped")
    expect(page.locator('[data-run="one"] .c-score')).to_contain_text("[")
    page.get_by_role("button", name="score").click()
    expect(page.locator("[data-run]").first).to_have_attribute("data-run", "one")
    page.get_by_role("button", name="score").click()
    expect(page.locator("[data-run]").first).to_have_attribute("data-run", "flat")
    page.keyboard.press("/")
    page.keyboard.type("sarsa")
    expect(page.locator("[data-run]")).to_have_count(1)
    page.get_by_label("Filter runs").fill("")
    page.get_by_label("Group by").select_option("env")
    expect(page.locator(".row.group strong")).to_contain_text(["CartPole-v1"])
    page.get_by_label("Group by").select_option("none")


def test_keys_move_open_choose_and_explain(served: Served, look: Look) -> None:
    page = look(served).page
    expect(page.locator("[data-run]")).to_have_count(10)
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(page.locator(".row.at")).to_have_count(1)
    chosen = page.locator(".row.at").get_attribute("data-run")
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.keyboard.press("t")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.keyboard.press("Enter")
    kind = {"grid": "experiment", "seek": "search"}.get(chosen or "", "run")
    expect(page).to_have_url(f"{served.origin}/#/{kind}/{quote(chosen or '', safe='')}")


def test_tags_and_notes_are_kept_beside_the_run(served: Served, look: Look) -> None:
    page = look(served, "run/two").page
    page.get_by_label("Tags").fill("baseline, <b>bold</b>")
    page.get_by_label("Note", exact=True).fill("the <i>second</i> one")
    page.get_by_label("Note", exact=True).blur()
    expect(page.get_by_text("saved in notes.json")).to_be_visible()
    assert '"baseline"' in (served.data_dir / "two" / "notes.json").read_text()
    page.goto(f"{served.origin}/#/")
    expect(page.locator('[data-run="two"] .tag')).to_have_text(["baseline", "<b>bold</b>"])


# --- a run


def test_a_run_has_curves_that_can_be_hidden(served: Served, look: Look) -> None:
    shown = look(served, "run/one")
    expect(shown.page.locator('[data-chart="train"] path.curve')).to_have_count(5)
    assert set(shown.curves("train")) == {"0/mean", "0/0", "0/1", "0/2", "0/3"}
    shown.click("0/2")
    assert set(shown.curves("train")) == {"0/mean", "0/0", "0/1", "0/3"}
    expect(shown.page.locator('[data-chart="train"] path.band')).to_have_count(1)
    shown.click("0/band")
    expect(shown.page.locator('[data-chart="train"] path.band')).to_have_count(0)
    assert shown.page.locator('[data-chart="train"] circle.evaluation').count() >= 5
    # the cursor of one chart is that of all
    shown.page.locator('[data-chart="train"] > svg').hover()
    assert shown.page.locator(".cross").count() > 1
    shown.page.get_by_label("Show a column").select_option("wall_t")
    expect(shown.page.locator('[data-chart="column wall_t"] path.curve').first).to_be_visible()


def test_a_new_row_is_shown_within_two_seconds(served: Served, look: Look) -> None:
    shown = look(served, "run/live")
    chart = shown.page.locator('[data-chart="train"] path[data-curve="0/0"]')
    expect(chart).to_be_visible()
    expect(shown.page.locator(".live")).to_have_class("live on")
    points = shown.curves("train")["0/0"]
    for number in range(3):
        append_row(served.data_dir / "live/info/demo_t0_s0_session_df_train.csv", 10_500 + number * 500, 100)
        # a line to each point but the first
        path = re.compile(rf"^M[^L]*(L[^L]*){{{points + number}}}$")
        expect(chart).to_have_attribute("d", path, timeout=LIVE_MS)


def test_the_doctor_speaks_under_the_curve_it_means(served: Served, look: Look) -> None:
    page = look(served, "run/flat").page
    finding = page.locator('.small-chart:has([data-chart="entropy"]) .symptom')
    expect(finding).to_be_hidden()
    page.locator(".findings").get_by_role("button", name="entropy collapsed early").click()
    expect(finding).to_contain_text("raise agent.algorithm.entropy_coef_spec")


def test_tabs_show_log_spec_and_files(served: Served, look: Look) -> None:
    log = served.data_dir / "one" / "log" / "demo_t0_s0.log"
    log.parent.mkdir(exist_ok=True)
    log.write_text("first line\n<b>second</b> line\n")
    page = look(served, "run/one").page
    expect(page.get_by_label("Log", exact=True)).to_contain_text("<b>second</b> line")
    page.get_by_role("tab", name="Spec").click()
    expect(page.locator(".tab-body")).to_contain_text("gamma: 0.99")
    page.get_by_role("tab", name="Time").click()
    expect(page.locator(".tab-body")).to_contain_text("update")
    page.get_by_role("tab", name="Files").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="info/demo_t0_s0_session_df_train.csv").click()
    assert download.value.suggested_filename == "demo_t0_s0_session_df_train.csv"
    assert (
        Path(download.value.path()).read_bytes()
        == (served.data_dir / "one/info/demo_t0_s0_session_df_train.csv").read_bytes()
    )


# --- several runs


def test_runs_are_compared(served: Served, look: Look) -> None:
    shown = look(served)
    page = shown.page
    for name in ("one", "two"):
        page.get_by_label(f"Choose {name}", exact=True).check()
    page.keyboard.press("c")
    expect(page.get_by_role("heading", name="2 runs side by side")).to_be_visible()
    expect(page.locator('[data-chart="train"] path.curve')).to_have_count(2)
    assert set(shown.curves("train")) == {"0/mean", "1/mean"}
    shown.click("1/all")
    assert len(shown.curves("train")) == 6
    assert "probability of improvement 0.00" in shown.text()
    assert "agent.algorithm.name" in shown.text()


def test_an_experiment_is_a_matrix(served: Served, look: Look) -> None:
    shown = look(served, "experiment/grid")
    expect(shown.page.locator(".matrix-cell path[data-curve='0/mean']")).to_have_count(4)
    assert "Over all envs" in shown.text()


def test_a_search_shows_trials_rungs_and_what_mattered(served: Served, look: Look) -> None:
    shown = look(served, "search/seek")
    page = shown.page
    expect(page.locator('[data-chart="parallel"] path.trial')).to_have_count(7)
    expect(page.locator('[data-chart="parallel"] rect.scale')).to_have_count(24)
    expect(page.locator('[data-chart="trials"] path.curve')).to_have_count(8)
    ends = page.locator('[data-chart^="score against"] text').evaluate_all(
        "all => all.map(one => one.ownerSVGElement.getBoundingClientRect().right - one.getBoundingClientRect().right)"
    )
    assert min(ends) >= 0
    text = shown.text()
    assert "Best score 180 trial 6" in text
    assert "6 ★ done 180.0" in text
    assert "200 8 3 5 70" in text
    assert "ValueError: <b>lost</b>" in text
    assert "best: {of: all}" in text
    assert "agent.net.optim_spec.lr" in shown.text(".bars")


@pytest.mark.parametrize("place", ["", "search/seek", "run/one", "compare/one/two", "experiment/grid"])
def test_pages_fit_a_phone(served: Served, look: Look, place: str) -> None:
    page = look(served, place, width=400).page
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


def test_a_long_name_keeps_its_end(tmp_path: Path, look: Look) -> None:
    names = [f"ppo_cartpole_with_a_long_name_2026_11_19_{time}" for time in ("234903", "235001")]
    for name in names:
        write_run(tmp_path / name, {0: make_table(20)}, spec=make_shipped_spec())
    with serve(tmp_path) as served:
        page = look(served, width=400).page
        links = page.locator(".c-run a")
        expect(links).to_have_count(2)
        assert sorted(link.text_content() or "" for link in links.all()) == names
        for link in links.all():
            # in sight: the time, which tells the runs apart
            assert link.evaluate(
                "link => link.querySelector('.end').getBoundingClientRect().right"
                " <= link.closest('.cell').getBoundingClientRect().right"
            )
        page.close()


def test_an_unknown_page_says_so(served: Served, browser) -> None:
    page = browser.new_page()
    page.goto(f"{served.origin}/#/run/nothing")
    expect(page.locator("#main")).to_contain_text("there is no run 'nothing'")
    page.close()


def test_a_run_that_appears_and_goes_is_followed(served: Served, look: Look) -> None:
    page = look(served).page
    expect(page.locator("[data-run]")).to_have_count(10)
    write_run(served.data_dir / "newcomer", {0: make_table()}, spec=make_shipped_spec())
    expect(page.locator('[data-run="newcomer"] .pill')).to_have_text("done")


def test_an_event_that_overtakes_the_list_of_runs_is_kept(served: Served, look: Look) -> None:
    """The page asks for all runs when its stream opens; the answer may be older than what the stream has told."""
    page = look(served, "run/one").page
    held: list[tuple[Route, APIResponse]] = []
    page.route("**/api/runs", lambda route: held.append((route, route.fetch())))
    page.evaluate("location.hash = '#/'")
    # the page asks when it opens, and again when its stream does
    answer(page, held)
    page.locator("[data-run='one']").wait_for()
    wait_for(page, held)
    write_run(served.data_dir / "overtaker", {0: make_table()}, spec=make_shipped_spec())
    newcomer = page.locator("[data-run='overtaker'] .pill")
    expect(newcomer).to_have_text("done")
    answer(page, held)
    page.wait_for_timeout(500)
    expect(newcomer).to_have_text("done")


def wait_for(page: Page, held: list[tuple[Route, APIResponse]]) -> None:
    """Wait for a request that is held back."""
    for _ in range(600):
        if held:
            return
        page.wait_for_timeout(50)
    pytest.fail("the page has not asked for the runs")


def answer(page: Page, held: list[tuple[Route, APIResponse]]) -> None:
    """Answer a request that is held back, with what the server said when it was made."""
    wait_for(page, held)
    route, response = held.pop(0)
    route.fulfill(response=response)


def test_a_run_between_two_sessions_is_running(tmp_path: Path) -> None:
    """No process holds a lock while the next session imports torch."""
    spec = make_shipped_spec(max_frame=20_000)
    run = write_run(tmp_path / "run", {0: make_table(40)}, spec=spec, has_end=False)
    place = Place("run", run.path, "run")
    assert find_status(place, run) == "running"
    table = run.path / "info" / "demo_t0_s0_session_df_train.csv"
    os.utime(table, (0, time.time() - 600))
    assert find_status(place, run) == "stopped"
    half = write_run(tmp_path / "half", {0: make_table(20)}, spec=spec, has_end=False)
    assert find_status(Place("half", half.path, "run"), half) == "stopped"


@pytest.mark.parametrize(("num_session", "seconds"), [(1, 10.0), (2, 10.0), (4, 30.0)])
def test_the_time_left_counts_sessions_that_wait(tmp_path: Path, num_session: int, seconds: float) -> None:
    """Two train at once, and are half-way."""
    spec = make_shipped_spec(max_frame=20_000) | {"meta": {"max_session": num_session}}
    fps = np.full(20, 1000.0)
    tables = {session: make_table(20, fps=fps) for session in range(min(num_session, 2))}
    run = write_run(tmp_path / "run", tables, spec=spec, has_end=False)
    assert calc_seconds_left(run) is None
    lock = RunFolder(run.path, run.name).lock_file(0, 0)
    with lock_file(lock, 0):
        assert calc_seconds_left(run) == pytest.approx(seconds)
