"""Whether two runs ended in the same bits: tables, states and rows of replays, but for what reads the clock."""

import csv
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slm_lab.experiment.checkpoint.state import load_state
from slm_lab.results.folder import RunFolder, replay_file

CLOCK_COLUMNS = ("fps", "wall_t")
CLOCK_KEYS = ("wall_t", "phases")
# where the rows of a replay lie depends on when checkpoints were written; what they are does not
FILE_KEYS = ("rows",)
TABLES = ("tracker", "eval_tracker")


def find_difference(one: Path, two: Path, name: str, session: int = 0) -> str | None:
    """The first place where two runs differ; None where they are the same."""
    folders = RunFolder(one, name), RunFolder(two, name)
    for kind in ("train", "eval"):
        tables = [read_rows(folder.table_file(0, session, kind)) for folder in folders]
        if tables[0] != tables[1]:
            return f"table of {kind}: {len(tables[0])} and {len(tables[1])} rows, which differ"
    states = [load_state(folder.resume_file(0, session)) for folder in folders]
    found = next(walk(states[0], states[1], ""), None)
    if found is not None:
        return found
    for which in states[0]["rows"]:
        replays = [read_replay(folder, session, which, state) for folder, state in zip(folders, states, strict=True)]
        # files begin where they began to be written, so the oldest rows may be there in one run alone
        first = max(start for start, _ in replays)
        rows = [{key: value[first - start :] for key, value in content.items()} for start, content in replays]
        found = next(walk(rows[0], rows[1], f"replay {which}"), None)
        if found is not None:
            return found
    return None


def read_rows(path: Path) -> list[dict[str, str]]:
    """A table without what reads the clock; nothing where there is none."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [{k: v for k, v in row.items() if k not in CLOCK_COLUMNS} for row in csv.DictReader(file)]


def read_replay(folder: RunFolder, session: int, which: str, state: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """The number of the first row that a checkpoint lists, and all rows from there, put together from their files."""
    prefix = folder.replay_prefix(0, session, which)
    chunks = state["rows"][which]
    parts = [load_state(replay_file(prefix, start, end))["rows"] for start, end in chunks]
    if not parts:
        return 0, {}
    return int(chunks[0][0]), {key: torch.cat([torch.as_tensor(part[key]) for part in parts]) for key in parts[0]}


def walk(one: Any, two: Any, where: str) -> Iterator[str]:
    """Every place where two states differ."""
    if type(one) is not type(two):
        yield f"{where}: {type(one).__name__} and {type(two).__name__}"
    elif isinstance(one, dict):
        if one.keys() != two.keys():
            yield f"{where}: other keys"
        for key in one.keys() & two.keys():
            if where or key not in (*CLOCK_KEYS, *FILE_KEYS):
                yield from walk(one[key], two[key], f"{where}.{key}" if where else str(key))
    elif isinstance(one, (list, tuple)):
        if len(one) != len(two):
            yield f"{where}: {len(one)} and {len(two)} items"
        for index, (first, second) in enumerate(zip(one, two, strict=False)):
            yield from walk(first, second, f"{where}[{index}]")
    elif isinstance(one, (torch.Tensor, np.ndarray)):
        first, second = np.asarray(one), np.asarray(two)
        if where in [f"{name}.rows" for name in TABLES] and first.size and second.size:
            # columns 3 and 5 are fps and wall_t
            first, second = np.delete(first, [3, 5], 1), np.delete(second, [3, 5], 1)
        if first.shape != second.shape or first.dtype != second.dtype or first.tobytes() != second.tobytes():
            yield f"{where}: numbers differ"
    elif isinstance(one, float):
        # bits, so that a NaN is equal to itself and -0.0 is not 0.0
        if struct.pack("d", one) != struct.pack("d", two):
            yield f"{where}: {one} and {two}"
    elif one != two:
        yield f"{where}: {one!r} and {two!r}"
