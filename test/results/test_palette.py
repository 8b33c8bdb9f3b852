"""Colours can be seen on their background and told apart, by the colour-blind too."""

from itertools import combinations

import numpy as np
import pytest

from slm_lab.results.page import PAGE
from slm_lab.results.palette import COLORS, DASHES, find_look, find_looks

# linear RGB as people without one kind of cones see it (Machado et al. 2009, severity 1)
VISION = {
    "normal": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
BACKGROUNDS = ("#FFFFFF", "#161616")


def to_linear(color: str) -> np.ndarray:
    """The light of each channel."""
    values = np.frombuffer(bytes.fromhex(color[1:]), np.uint8) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def calc_contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    dark, light = sorted(float(TO_XYZ[1] @ to_linear(color)) + 0.05 for color in (one, other))
    return light / dark


def to_lab(color: str, vision: np.ndarray) -> np.ndarray:
    """CIELAB, in which distances are about as large as they look."""
    xyz = TO_XYZ @ np.clip(vision @ to_linear(color), 0, 1) / np.array([0.95047, 1, 1.08883])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("index", [0, 1], ids=["white", "dark"])
def test_every_colour_can_be_seen(index) -> None:
    for name, pair in COLORS.items():
        assert calc_contrast(pair[index], BACKGROUNDS[index]) >= 3, name


def test_the_dark_background_is_that_of_the_page() -> None:
    assert f"--page: {BACKGROUNDS[1]};" in (PAGE / "page.css").read_text()


@pytest.mark.parametrize("index", [0, 1], ids=["white", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_colours_can_be_told_apart(index, vision) -> None:
    labs = {name: to_lab(pair[index], VISION[vision]) for name, pair in COLORS.items()}
    for one, other in combinations(labs, 2):
        assert np.linalg.norm(labs[one] - labs[other]) > 12, (one, other)


def test_runs_of_one_algorithm_differ_by_dashes() -> None:
    looks = find_looks(["PPO", "SAC", *["PPO"] * (len(DASHES) - 1)])
    same = [look for look in looks if look.name == looks[0].name]
    assert len({look.dash for look in same}) == len(DASHES)


def test_no_two_algorithms_of_a_figure_look_alike() -> None:
    # the second run of PPO leaves the dashes of PPO+SIL alone
    looks = find_looks(["PPO", "PPO", "PPO+SIL"])
    assert looks[0] == find_look("PPO")
    assert looks[2] == find_look("PPO+SIL")
    assert len(set(looks)) == 3
    clash = next(f"Agent {i}" for i in range(99) if find_look(f"Agent {i}").name == find_look("PPO").name)
    twins = [name for i in range(99) if find_look(name := f"Agent {i}") == find_look(clash)][:2]
    ppo, *others = find_looks(["PPO", *twins])
    assert len({ppo.name, *(look.name for look in others)}) == 3
    # whatever the order of the runs, and in every figure of a set
    assert find_looks(["PPO", *twins[::-1]])[1:] == others[::-1]
    assert find_looks(twins[1:], among=["PPO", *twins]) == others[1:]


def test_an_algorithm_from_elsewhere_keeps_its_colour() -> None:
    assert find_look("MyAgent") == find_look("MyAgent") == find_looks(["PPO", "MyAgent"])[1]
    assert len({find_look(f"Agent {i}").name for i in range(50)}) > 4
