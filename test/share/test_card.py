"""What the card of a run says, also of a run with names that mean harm."""

import json
from pathlib import Path

import yaml

from slm_lab.results.run import read_run
from slm_lab.share.card import write_card
from slm_lab.share.manifest import summarize
from slm_lab.share.run_files import find_files
from test.share.conftest import NAME


def card_of(folder: Path, with_checkpoints: bool = False) -> str:
    """The card of a run."""
    run = read_run(folder)
    return write_card(run, summarize(run), find_files(folder, with_checkpoints)[0])


def test_a_card_has_score_interval_curve_video_spec_and_commands(make_run) -> None:
    card = card_of(make_run())
    # the last of four rows each, and their means
    assert "**Score 40.50**, 2 sessions of 400 frames (exploring policy, last 100 episodes each)." in card
    assert "| 0 | 40.00 | 25.00 |" in card
    assert "| 1 | 41.00 | 26.00 |" in card
    assert "(graph/demo_t0_trial_graph_mean_returns_ma_vs_frames.png)" in card
    assert "(video/demo_t0_s0_f400.mp4)" in card
    assert "(demo_t0_spec.yaml)" in card
    assert f"slm-lab pull {NAME} " in card
    assert f"slm-lab run data/{NAME}/demo_t0_spec.yaml demo train " in card
    assert f"slm-lab run enjoy@data/{NAME} " in card
    assert "train@" not in card
    assert "numpy 2" in card


def test_a_run_with_checkpoints_can_be_continued(make_run) -> None:
    assert f"slm-lab run train@data/{NAME} " in card_of(make_run(), with_checkpoints=True)


def test_the_front_matter_is_yaml_with_tags(make_run) -> None:
    _, head, _ = card_of(make_run()).split("---\n", 2)
    data = yaml.safe_load(head)
    assert {"slm-lab", "ppo", "cartpole-v1", "reinforcement-learning"} <= set(data["tags"])
    assert "license" not in data


def test_names_are_set_as_text(make_run) -> None:
    folder = make_run()
    spec = {
        "demo": {"agent": {"algorithm": {"name": "<script>x</script>"}}, "env": {"name": "[a](javascript:b)|\n# c"}}
    }
    for stem in ("demo", "demo_t0"):
        (folder / f"{stem}_spec.yaml").write_text(json.dumps(spec))
    card = card_of(folder)
    body = card.split("---\n", 2)[2]
    assert "<script>" not in body
    assert r"\[a\](javascript" in body
    assert "\n# c" not in body
