"""Videos of a moment, and runs that the page starts, stops and resumes: with real processes."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from slm_lab.experiment.launch import start
from slm_lab.experiment.options import Options
from slm_lab.lib.errors import RunFolderError
from slm_lab.lib.io import dump_yaml
from slm_lab.results.run import read_run
from slm_lab.spec.loading import dump_spec
from slm_lab.ui.drafts import check, list_shipped, read_shipped
from slm_lab.ui.films import is_code, plan
from slm_lab.ui.places import Place
from test.results.sample import make_table, write_run
from test.tiny import make_tiny_spec
from test.ui.conftest import Look, Served, serve

# a process that trains imports torch first, and the machine may be busy
PATIENCE_MS = 120_000


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("data"), has_control=True) as served:
        yield served


def click_curve(page: Page, session: int, share: float) -> None:
    """Click at a share of the width of the large chart, at the height of a session's curve."""
    # the figure stays, its picture is replaced by new rows
    chart = page.locator('[data-chart="train"]')
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    page.locator(f'[data-chart="train"] [data-curve="0/{session}"]').first.wait_for()
    page.mouse.click(box["x"] + box["width"] * share, box["y"] + box["height"] * 0.5)


# --- videos


@pytest.mark.slow
def test_a_click_on_a_curve_shows_the_agent_of_that_moment(served: Served, look: Look) -> None:
    spec = make_tiny_spec(name="filmed", env={"max_frame": 1200}, meta={"keep_checkpoints": 400})
    folder = start(spec, Options(served.data_dir, log_level="ERROR")).folder
    shown = look(served, f"run/{folder.name}")
    expect(shown.page.locator(".player")).to_contain_text("3 models were kept")
    click_curve(shown.page, 0, 0.6)
    expect(shown.page.locator(".player video")).to_be_visible(timeout=PATIENCE_MS)
    expect(shown.page.locator(".player p")).to_have_text("session 0, frame 800")
    video = folder / "video" / "filmed_t0_s0_f800.mp4"
    assert video.exists()
    shown.page.wait_for_timeout(500)
    # the browser can play it
    assert shown.page.locator(".player video").evaluate("video => video.error") is None
    written = video.stat().st_mtime_ns
    click_curve(shown.page, 0, 0.61)
    expect(shown.page.locator(".player video")).to_be_visible()
    assert video.stat().st_mtime_ns == written
    shown.page.get_by_role("button", name="Replay the best agent").click()
    expect(shown.page.locator(".player p")).to_have_text("session 0, its best model", timeout=PATIENCE_MS)


def test_the_model_kept_nearest_is_filmed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", {0: make_table(), 1: make_table(seed=1)})
    place = Place("run", run.path, "run")
    with pytest.raises(RunFolderError, match="no model to play yet"):
        plan(place, run, None, 1000)
    for session in (0, 1):
        (run.path / "model" / f"demo_t0_s{session}_ckpt-best_net_model.safetensors").touch()
    film = plan(place, run, 1, 1000)
    assert (film.session, film.frame, film.file.name) == (1, None, "demo_t0_s1_best.mp4")
    for frame in (1000, 5000, 9000):
        (run.path / "model" / f"demo_t0_s1_ckpt-{frame}_net_model.safetensors").touch()
    film = plan(place, run, 1, 6800)
    assert (film.frame, film.file.name, film.state) == (5000, "demo_t0_s1_f5000.mp4", "waiting")
    assert film.command[-6:] == ["--session", "1", "--video", str(film.file), "--at", "5000"]
    film.file.parent.mkdir()
    film.file.touch()
    assert plan(place, run, 1, 6800).state == "done"
    assert not is_code(run)


# --- specs


def test_a_draft_is_checked_with_the_messages_of_the_schema() -> None:
    assert {"name": "ppo_cartpole", "algorithm": "PPO", "env": "CartPole-v1"} in list_shipped()
    text = read_shipped("ppo_cartpole")
    assert check(text)["is_valid"]
    (_, problem) = check(text.replace("gamma:", "gama:"))["problems"]
    assert problem == "agent.algorithm.gama: unknown key; did you mean 'gamma'?"
    for bad in ("", "a: [", "- 1", "\ud800", "[" * 200):
        found = check(bad)
        assert not found["is_valid"]
        assert found["problems"]
        assert "/tmp" not in str(found)


def test_the_editor_checks_as_one_types(served: Served, look: Look) -> None:
    page = look(served, "act").page
    page.get_by_label("Shipped spec").fill("ppo_cartpole")
    expect(page.locator(".verdict")).to_contain_text("ppo_cartpole is valid: CartPole-v1, 200,000 frames, 4 sessions")
    editor = page.get_by_label("Spec", exact=True)
    editor.fill(editor.input_value().replace("gamma:", "gama:"))
    expect(page.locator(".verdict")).to_contain_text("did you mean 'gamma'?")
    expect(page.get_by_role("button", name="Train")).to_be_disabled()


def test_without_the_token_the_page_only_looks(served: Served, look: Look, browser) -> None:
    page = browser.new_page()
    page.goto(f"{served.origin}/#/act")
    expect(page.locator("#main")).to_contain_text("slm-lab ui --control")
    expect(page.get_by_role("link", name="Start a run")).to_have_count(0)
    page.close()


# --- processes


@pytest.mark.slow
def test_a_run_is_started_stopped_and_resumed(served: Served, look: Look) -> None:
    spec = make_tiny_spec(name="acted", env={"max_frame": 400_000}, meta={"log_frequency": 500})
    page = look(served, "act").page
    page.get_by_label("Spec", exact=True).fill(dump_yaml(dump_spec(spec)))
    expect(page.locator(".verdict")).to_contain_text("acted is valid")
    page.get_by_role("button", name="Train").click()
    page.get_by_role("link", name="open").click(timeout=PATIENCE_MS)
    # the first rows come after a while
    expect(page.locator("#main")).to_contain_text("acted_", timeout=PATIENCE_MS)
    folder = next(served.data_dir.glob("acted_*"))
    table = folder / "info" / "acted_t0_s0_session_df_train.csv"
    for _ in range(240):
        if table.exists() and table.read_text().count("\n") > 3:
            break
        page.wait_for_timeout(500)
    page.goto(f"{served.origin}/#/")
    page.goto(f"{served.origin}/#/run/{folder.name}")
    expect(page.locator(".title .pill")).to_have_text("running", timeout=PATIENCE_MS)
    page.get_by_role("button", name="Stop").click(timeout=PATIENCE_MS)
    expect(page.locator(".title .pill")).to_have_text("stopped", timeout=PATIENCE_MS)
    reached = read_run(folder).frame
    assert reached < 400_000
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".title .pill")).to_have_text("running", timeout=PATIENCE_MS)
    page.get_by_role("button", name="Stop").click(timeout=PATIENCE_MS)
    expect(page.locator(".title .pill")).to_have_text("stopped", timeout=PATIENCE_MS)
    page.goto(f"{served.origin}/#/act")
    expect(page.locator(".job .pill")).to_have_text(["stopped", "stopped"], timeout=PATIENCE_MS)
    assert re.search(r"resume .*acted_", page.locator(".job").first.inner_text())
