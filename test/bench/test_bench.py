"""The speed harness, without its peers: ratios, limits, warm-up and the page."""

import json
import tomllib
from pathlib import Path

import pytest

from bench import meter as meter_module
from bench.job import Job
from bench.limit import Conv, calc_layers, calc_products
from bench.measure import find_differences, read_pins
from bench.meter import Meter
from bench.page import MISSING, write_page
from bench.ratio import calc_ratio
from bench.rows import ROW_BY_NAME, ROWS, build_spec
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import build_settings

ROOT = Path(__file__).parents[2]


def test_ratio_is_the_geometric_mean_of_pairs_with_students_interval() -> None:
    # logs of 2/1 and 8/2 are ln 2 and ln 4: mean 1.5 ln 2, standard error ln 2 / 2, t(0.975, 1) = 12.706
    ratio = calc_ratio([2.0, 8.0], [1.0, 2.0])
    assert ratio.mean == pytest.approx(2.8284, rel=1e-4)
    assert (ratio.low, ratio.high) == (pytest.approx(0.03458, rel=1e-3), pytest.approx(231.3, rel=1e-3))


def test_ratio_of_one_repetition_has_no_interval() -> None:
    assert str(calc_ratio([3.0], [2.0])) == "1.50x"
    with pytest.raises(ValueError, match="same repetitions"):
        calc_ratio([1.0, 2.0], [1.0])


def count_flops(row: str) -> tuple[int, float]:
    spec = build_spec(ROW_BY_NAME[row])
    env = build_vec_env(build_settings(spec.env, (0,), 1))
    products, steps_per_frame = calc_products(spec, env.facts)
    env.close()
    return sum(product.flops for product in products), steps_per_frame


def test_products_of_ppo() -> None:
    # multiplications per sample, actor 4-64-64-2 and critic 4-64-64-1; the gradient of the observation is not needed
    actor, critic = 4 * 64 + 64 * 64 + 64 * 2, 4 * 64 + 64 * 64 + 64
    per_sample = 3 * actor - 4 * 64 + 3 * critic - 4 * 64
    assert count_flops("ppo_cartpole") == (2 * 128 * per_sample, 15 / 128)


def test_products_of_sac() -> None:
    actor, critic = 3 * 256 + 256 * 256 + 256 * 2, 4 * 256 + 256 * 256 + 256
    # the actor sees successors, then learns; each critic values successors, learns, and hands the gradient on
    per_sample = 4 * actor - 3 * 256 + 2 * (6 * critic - 4 * 256)
    assert count_flops("sac_pendulum") == (2 * 256 * per_sample, 1.0)


def test_layers_of_the_nature_cnn() -> None:
    layers = calc_layers(build_spec(ROW_BY_NAME["ppo_pong"]).agent.net, (4, 84, 84), 7)
    assert [layer.side_out for layer in layers if isinstance(layer, Conv)] == [20, 9, 7]
    assert [(layer.size_in, layer.size_out) for layer in layers if not isinstance(layer, Conv)] == [
        (64 * 7 * 7, 512),
        (512, 7),
    ]


def test_meter_counts_whole_rounds_after_the_warm_up(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(meter_module.time, "perf_counter", lambda: now[0])
    meter = Meter(Job("ppo_cartpole", "lab", seconds=2.0, quick=True))
    # the first round takes 10 s to compile and the second 1 s; each later one learns 3 times on 100 frames in 1 s
    ends = [10.0, 11.0, 12.0, 13.0, 14.0]
    stops = []
    for index, end in enumerate(ends, 1):
        now[0] = end - 0.5
        # within a round nothing is learned, so nothing is taken note of
        assert not meter.end_round(100 * index - 50, 3 * (index - 1), {"env": 99.0})
        now[0] = end
        stops.append(meter.end_round(100 * index, 3 * index, {"env": 0.25 * index}))
        if stops[-1]:
            break
    assert stops == [False, False, False, True]
    measured = meter.measured(num_param=5)
    assert (measured.frames, measured.seconds, measured.opt_steps) == (200, 2.0, 6)
    assert measured.phases == {"env": 0.5}
    assert measured.warm_seconds == 11.0


def crafted_run(fps: float, steps: int = 120, num_param: int = 7) -> dict[str, object]:
    return {
        "frames": 1000,
        "seconds": 1000 / fps,
        "cpu_seconds": 1000 / fps,
        "opt_steps": steps,
        "num_param": num_param,
        "phases": {"env": 250 / fps, "update": 500 / fps},
        "warm_seconds": 1.0,
        "peak_mb": 100.0,
    }


def test_work_that_is_not_equal_is_found() -> None:
    lab = [crafted_run(100)]
    assert find_differences({"lab": lab, "sb3": lab, "limit": [crafted_run(9, num_param=0)]}) == {}
    found = find_differences({"lab": lab, "sb3": [crafted_run(100, steps=60)], "sbx": [crafted_run(100, num_param=8)]})
    assert found == {
        "sb3": ["0.06 gradient steps per frame, the lab 0.12"],
        "sbx": ["8 trained parameters, the lab 7"],
    }


def test_page_has_the_figures_of_results_and_names_what_is_missing(tmp_path) -> None:
    result = {
        "versions": {"torch": "1.2.3"},
        "machine": {"processor": "Abacus", "cores": 1},
        "torch_build": "1.2.3+cpu",
        "seconds": 4.0,
        "commit": "abcdef0123456789",
        "load": 0.5,
        "measured_at": "2026-01-01 00:00 UTC",
        "differences": {"sb3": ["8 trained parameters, the lab 7"]},
        "runs": {
            "lab": [crafted_run(6000), crafted_run(6000)],
            "sb3": [crafted_run(2000), crafted_run(2000)],
            "limit": [crafted_run(12000), crafted_run(12000)],
        },
    }
    (tmp_path / "ppo_cartpole.json").write_text(json.dumps(result))
    page = write_page(tmp_path, quick=True).read_text()
    assert "| 6,000 | 2,000 | 12,000 | 50% | 50% |" in page
    assert "| ppo_cartpole | 3.00x [3.00, 3.00] |" in page
    assert "50% / 25% / 25%" in page
    assert "8 trained parameters, the lab 7" in page
    assert "ppo_cartpole (2 x 4 s, load 0.5, 2026-01-01 00:00 UTC)" in page
    assert "Abacus, 1 cores; commit abcdef0123; torch 1.2.3" in page
    assert page.count(MISSING) == len(ROWS) - 1
    assert (tmp_path / "plots" / "speed.png").read_bytes()[:4] == b"\x89PNG"


def test_pins_are_those_of_the_lab() -> None:
    constraints = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["uv"]["constraint-dependencies"]
    lab = dict(item.split(";")[0].strip().split("==") for item in constraints)
    shared = {name: version for name, version in read_pins().items() if name in lab}
    assert {"torch", "gymnasium", "numpy", "stable-baselines3"} <= set(shared)
    assert shared == {name: lab[name] for name in shared}
