"""One colour per algorithm, in every figure and page.

Each colour has a contrast of at least 3 to its background, white or dark, and people with colour blindness can tell
them apart; tests compute both. Runs of one algorithm share its colour and differ by dashes. The name of an unknown
algorithm hashes to a colour; if that is taken in a figure, the algorithm gets another.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from zlib import crc32

# by name: on white, and on the dark background of pages (Okabe and Ito's colours)
COLORS = {
    "ink": ("#222222", "#E8E8E8"),
    "yellow": ("#9F9308", "#F0E442"),
    "sky": ("#239CB4", "#56B4E9"),
    "blue": ("#0F0FFD", "#0072B2"),
    "orange": ("#573110", "#E69F00"),
    "red": ("#B83D08", "#D55E00"),
    "green": ("#066749", "#009E73"),
    "pink": ("#970387", "#CC79A7"),
    "grey": ("#777777", "#6A6A6A"),
}
# dashes in the notations of matplotlib and SVG
DASHES = (("-", ""), ("--", "7 4"), (":", "2 3"), ("-.", "7 3 2 3"))
# colour and dashes of each algorithm, in the order in which figures list them
_ALGORITHMS = {
    "REINFORCE": ("ink", 0),
    "SARSA": ("yellow", 0),
    "DQN": ("sky", 0),
    "DDQN": ("blue", 2),
    "DQN+PER": ("sky", 2),
    "DDQN+PER": ("blue", 0),
    "QR-DQN": ("sky", 1),
    "IQN": ("sky", 3),
    "C51": ("blue", 1),
    "Rainbow": ("blue", 3),
    "PQN": ("yellow", 2),
    "A2C": ("orange", 0),
    "SIL": ("orange", 1),
    "PPO": ("red", 0),
    "PPO+SIL": ("red", 1),
    "SAC": ("green", 0),
    "TQC": ("green", 1),
    "SimBa-SAC": ("green", 2),
    "CrossQ": ("pink", 0),
    "XQC": ("pink", 1),
    "TD3": ("yellow", 1),
    "DDPG": ("yellow", 3),
    "Random": ("grey", 2),
}
# for unknown algorithms; ink and grey would look like text
_OTHERS = tuple(name for name in COLORS if name not in ("ink", "grey"))


@dataclass(frozen=True)
class Look:
    """How a curve is drawn."""

    name: str
    dash: int = 0

    @property
    def color(self) -> str:
        """The colour on white."""
        return COLORS[self.name][0]

    @property
    def dashes(self) -> tuple[str, str]:
        """The dashes for matplotlib and SVG."""
        return DASHES[self.dash % len(DASHES)]


def find_look(algorithm: str) -> Look:
    """The look of an algorithm, the same in every figure."""
    name, dash = _ALGORITHMS.get(algorithm) or (_OTHERS[crc32(algorithm.encode()) % len(_OTHERS)], 3)
    return Look(name, dash)


def find_looks(algorithms: Sequence[str], among: Iterable[str] = ()) -> list[Look]:
    """The looks of runs in one figure, all different while there are enough dashes.

    `among` are the algorithms in other panels or figures of a set, in which each algorithm should look the same.
    """
    bases: dict[str, Look] = {}
    # known algorithms first, then the others by name, so that the order does not depend on the runs
    for algorithm in sorted({*algorithms, *among}, key=lambda name: (find_place(name), name)):
        look = find_look(algorithm)
        if algorithm not in _ALGORITHMS:
            place, taken = _OTHERS.index(look.name), {other.name for other in bases.values()}
            colors = [*_OTHERS[place:], *_OTHERS[:place]]
            look = Look(next((color for color in colors if color not in taken), look.name), look.dash)
        bases[algorithm] = look
    # further runs of an algorithm get unused dashes
    used = set(bases.values())
    looks = []
    for index, algorithm in enumerate(algorithms):
        look = base = bases[algorithm]
        if algorithm in algorithms[:index]:
            turns = [Look(base.name, (base.dash + turn) % len(DASHES)) for turn in range(1, len(DASHES))]
            count = algorithms[:index].count(algorithm)
            look = next((turn for turn in turns if turn not in used), turns[(count - 1) % len(turns)])
        used.add(look)
        looks.append(look)
    return looks


def find_place(algorithm: str) -> int:
    """The position of an algorithm in legends; unknown ones come last."""
    return list(_ALGORITHMS).index(algorithm) if algorithm in _ALGORITHMS else len(_ALGORITHMS)
