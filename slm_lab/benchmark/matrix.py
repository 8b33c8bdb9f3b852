"""The rows of the benchmark: envs and algorithms with their specs, settings and the scores to reach.

The references are the scores that the published SLM-Lab reports for the same settings. Its 292 rows are joined by the
lab's own (phase further), and by rows of the same envs with fewer frames (phase short), which are counted separately.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from slm_lab.lib.errors import LabError, nearest
from slm_lab.spec.loading import find_placeholders, load_spec
from slm_lab.spec.schema import Spec

MATRIX = Path(__file__).parent / "matrix.csv"
SPEC_FOLDER = "slm_lab/spec"
GPU_PHASES = ("atari", "playground")


@dataclass(frozen=True)
class Row:
    """One line of the benchmark: an algorithm in an env."""

    phase: str
    env: str
    algorithm: str
    spec_file: str
    spec_name: str
    max_frame: int
    num_envs: int
    max_session: int
    log_frequency: int
    # None if no target is known
    target: float | None
    # None in the lab's own rows
    reference: float | None
    # another library's score, as text
    peer: str

    @property
    def is_short(self) -> bool:
        """Whether the row has fewer frames than the published one, and so never replaces it."""
        return self.phase == "short"

    @property
    def key(self) -> str:
        """The name of the row."""
        return f"{self.env} {self.algorithm}{self._budget}"

    @property
    def group(self) -> str:
        """The env, with the budget of a short row: rows of a group share a figure."""
        return f"{self.env}{self._budget}"

    @property
    def _budget(self) -> str:
        return f" in {self.max_frame:,} frames" if self.is_short else ""

    @property
    def settings(self) -> str:
        """The settings common to all algorithms of an env, in one line."""
        return (
            f"max_frame {self.max_frame:,} | num_envs {self.num_envs} | max_session {self.max_session} "
            f"| log_frequency {self.log_frequency:,}"
        )

    @property
    def changes(self) -> dict[str, str | int]:
        """Values of the placeholders in the row's spec, and the budget of a short row."""
        values: dict[str, str | int] = {"env": self.env, "max_frame": self.max_frame}
        filled = {key: values[key] for key in find_placeholders(self.spec_file, self.spec_name)}
        if not self.is_short:
            return filled
        budget = {} if "max_frame" in filled else {"env.max_frame": self.max_frame}
        return {**filled, **budget, "meta.log_frequency": self.log_frequency, "meta.max_session": self.max_session}

    @property
    def command(self) -> list[str]:
        """The arguments of `slm-lab` that train the row."""
        set_ = [word for key, value in self.changes.items() for word in ("-s", f"{key}={value}")]
        return ["run", *set_, self.spec_file, self.spec_name, "train"]

    def load_spec(self) -> Spec:
        """The spec with the settings of the row."""
        return load_spec(self.spec_file, self.spec_name, self.changes).spec


def slug(env: str) -> str:
    """The name of an env in file names."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", env)


@cache
def load_matrix() -> tuple[Row, ...]:
    """Every row, phase by phase."""
    with MATRIX.open(encoding="utf-8", newline="") as file:
        return tuple(
            Row(
                phase=line["phase"],
                env=line["env"],
                algorithm=line["algorithm"],
                spec_file=f"{SPEC_FOLDER}/{line['spec_file']}",
                spec_name=line["spec_name"],
                max_frame=int(line["max_frame"]),
                num_envs=int(line["num_envs"]),
                max_session=int(line["max_session"]),
                log_frequency=int(line["log_frequency"]),
                target=float(line["target"]) if line["target"] else None,
                reference=float(line["reference"]) if line["reference"] else None,
                peer=line["peer"],
            )
            for line in csv.DictReader(file, restval="")
        )


def select_rows(filters: Sequence[str]) -> list[Row]:
    """Rows that match one of the filters; a filter is words that must all match.

    A word matches the row's phase, algorithm or spec, or a part of its env's name.
    """
    rows = load_matrix()
    if not filters:
        return list(rows)
    chosen = [row for row in rows if any(all(_fits(row, word) for word in text.split()) for text in filters)]
    if not chosen:
        words = [word for text in filters for word in text.split()]
        known = {name for row in rows for name in (row.phase, row.algorithm, row.env, row.spec_name)}
        lost = next((word for word in words if not any(_fits(row, word) for row in rows)), words[0] if words else "")
        raise LabError(
            f"--filter: no row matches '{' '.join(filters)}'{nearest(lost, known)} "
            f"(phases: {', '.join(dict.fromkeys(row.phase for row in rows))}; also algorithms, envs and spec names)"
        )
    return chosen


def _fits(row: Row, word: str) -> bool:
    word = word.lower()
    return word in (row.phase, row.algorithm.lower(), row.spec_name) or word in row.env.lower()
