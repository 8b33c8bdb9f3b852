"""Every algorithm and kind of net on a GPU that is not there: the same numbers, and no wait that is not known."""

from pathlib import Path

import pytest

from test.agent.algorithm.test_offline import write_steps
from test.gpu.cases import CASES, ROUNDED
from test.gpu.graphs import pretend_graphs
from test.gpu.measure import HOST, Measured, build, measure, train
from test.gpu.pretend import pretend_gpu

NUM_UPDATE = 3
# Waits of the host for the device per env step and per update: a good loop has 1 or 2 and about 1.
WAITS: dict[str, tuple[int, int]] = {
    "reinforce": (1, 2),
    "reinforce_episodes": (1, 2),
    "a2c_gae": (1, 3),
    "a2c_nstep_shared": (1, 3),
    "a2c_full_episodes": (1, 3),
    "ppo": (1, 18),
    "ppo_continuous": (1, 10),
    "sarsa": (1, 2),
    "vanilla_dqn": (1, 3),
    "dqn": (1, 2),
    "double_dqn_dueling_per": (1, 9),
    "sac": (1, 4),
    "sac_discrete": (1, 9),
    "crossq": (1, 4),
    "td3": (1, 4),
    "ddpg": (1, 11),
    "tqc": (1, 5),
    "qr_dqn": (1, 2),
    "iqn": (1, 2),
    "rainbow": (1, 5),
    "her_dqn": (1, 6),
    "her_sac": (1, 25),
    "ppo_sde": (1, 6),
    "a2c_sde": (1, 3),
    "sac_sde": (1, 9),
    "xqc": (1, 7),
    "pqn": (1, 8),
    "sil": (1, 16),
    "ppo_sil": (1, 9),
    "ppo_multi": (1, 6),
    "ppo_conv": (1, 6),
    # bonuses are scaled on the host
    "ppo_rnd": (3, 8),
    "ppo_gru": (1, 22),
    "ppo_dict": (1, 6),
    "a2c_lstm": (1, 7),
    "dqn_arc": (1, 2),
    "dqn_radam": (1, 2),
    "dqn_dueling_conv": (1, 2),
    "dqn_masked": (1, 2),
    "dqn_gru": (1, 8),
    "sac_conv": (1, 9),
    "dqn_stack": (1, 3),
}


# the same with compiled updates
COMPILED_WAITS: dict[str, tuple[int, int]] = {
    "ppo": (1, 3),
    "dqn": (1, 2),
    "double_dqn_dueling_per": (1, 6),
    "sac": (1, 2),
    "crossq": (1, 2),
    "sil": (1, 12),
    "td3": (1, 2),
    "tqc": (1, 2),
    "iqn": (1, 2),
    "rainbow": (1, 4),
    "pqn": (1, 3),
    "ppo_conv": (1, 3),
    "ppo_rnd": (3, 4),
}


@pytest.mark.parametrize("name", CASES)
def test_same_numbers_and_known_waits(name: str) -> None:
    host = train(*build(name, HOST), NUM_UPDATE)
    with pretend_gpu():
        measured = measure(name, NUM_UPDATE)
    # shown with -rP, or where the test fails
    print(measured.describe())
    close = {"rel": 1e-3, "abs": 1e-4} if any(part in name for part in ROUNDED) else {"rel": 0, "abs": 0}
    if name == "xqc":
        # rounding errors move weights in front of batch norm, which have no true gradient
        close = {"rel": 1e-2, "abs": 1e-2}
    for one, two in zip(host, measured.rows, strict=True):
        assert two == pytest.approx(one, nan_ok=True, **close)
    check_waits(WAITS, name, measured)


@pytest.mark.parametrize("name", COMPILED_WAITS)
def test_compiled_under_the_rules_of_cuda_graphs(name: str) -> None:
    host = train(*build(name, HOST), NUM_UPDATE)
    with pretend_gpu(), pretend_graphs() as graphs:
        measured = measure(name, NUM_UPDATE, is_compiled=True)
    print(measured.describe())
    steps = measured.agent.context.guard.steps
    assert all(step.graph is not None for step in steps), "a gradient step fell back to plain calls"
    # acting has one too
    assert len(graphs) > len(steps)
    for one, two in zip(host, measured.rows, strict=True):
        # what breaks the rules is NaN; in CrossQ rounding errors move weights without a true gradient
        assert two == pytest.approx(one, rel=1e-2, abs=1e-2)
    check_waits(COMPILED_WAITS, name, measured)


@pytest.mark.parametrize(("name", "num_wait"), [("BC", 2), ("IQL", 2), ("TD3BC", 3)])
def test_recorded_steps_are_learned_from(
    name: str, num_wait: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    algorithm = {"name": name, "data": str(write_steps(tmp_path / "steps.safetensors"))}
    memory = {"name": "Replay", "batch_size": 64}
    monkeypatch.setitem(CASES, name, {"env": "Pendulum-v1", "algorithm": algorithm, "memory": memory})
    host = train(*build(name, HOST), NUM_UPDATE)
    with pretend_gpu():
        measured = measure(name, NUM_UPDATE)
    assert measured.rows == host
    check_waits({name: (1, num_wait)}, name, measured)


def check_waits(table: dict[str, tuple[int, int]], name: str, measured: Measured) -> None:
    """The table says what is: it may be lowered, and must not rise."""
    now, known = (measured.step.num_wait, measured.update.num_wait), table.get(name, (0, 0))
    is_more = now[0] > known[0] or now[1] > known[1]
    assert not is_more, f"{name} waits more: {now} per step and per update, not {known}"
    assert now == known, f'{name} waits less: write "{name}": {now} to the table, so that it stays so'


def test_every_case_has_its_waits() -> None:
    assert list(WAITS) == list(CASES)
