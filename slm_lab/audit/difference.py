"""Differences between two runs that should be the same: tables cell by cell, states bit by bit."""

import csv
import io
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from slm_lab.experiment.checkpoint.replay_files import load_rows, parse_chunks
from slm_lab.experiment.checkpoint.state import load_state
from slm_lab.experiment.tracker import CORE_COLUMNS
from slm_lab.lib.errors import CheckpointError, UnreadableError
from slm_lab.lib.io import read_text
from slm_lab.results.folder import RunFolder, replay_file

# what depends on the clock on the wall
CLOCK_COLUMNS = ("fps", "wall_t")
CLOCK_KEYS = ("wall_t", "phases")
# where rows of a replay lie depends on when checkpoints were written; what they hold does not
FILE_KEYS = ("rows",)
EVAL_KEYS = ("eval_tracker", "eval_steps", "is_eval_due")
MODELS = ("last", "best")
# the tables of a session, and what their rows are called
TABLES = {"train": "row", "eval": "row of evaluations"}
# after every frame
NEVER = 2**62
_CLOCK_INDICES = [CORE_COLUMNS.index(name) for name in CLOCK_COLUMNS]
_MISSING = "nothing"


@dataclass(frozen=True)
class Difference:
    """The first place where two values differ, and how many elements and bits differ."""

    name: str
    there: str
    here: str
    extent: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.there} there, {self.here} here" + (f" ({self.extent})" if self.extent else "")


@dataclass
class Comparison:
    """What was compared, and the differences."""

    num_row: int = 0
    num_tensor: int = 0
    rows: list[Difference] = field(default_factory=list)
    values: list[Difference] = field(default_factory=list)
    # what could not be compared
    notes: list[str] = field(default_factory=list)

    @property
    def is_same(self) -> bool:
        """Whether everything compared is equal."""
        return not self.rows and not self.values

    def compare_tables(self, there: Path, here: Path, label: str = "row", first: int = 0, last: int = NEVER) -> None:
        """Compare the rows of two session tables up to a frame; those after `first` are counted."""
        old, new = (read_rows(path, last) for path in (there, here))
        columns = [name for name in old.columns if name in new.columns and name not in CLOCK_COLUMNS]
        for name in sorted(set(old.columns) ^ set(new.columns)):
            self.notes.append(f"column {name} of {there.name} is known on one side only")
        for frame in sorted({*old.rows, *new.rows}):
            self.num_row += frame > first
            one, two = old.rows.get(frame), new.rows.get(frame)
            if one is None or two is None:
                texts = [_MISSING if row is None else "a row" for row in (one, two)]
                self.rows.append(Difference(f"{label} at frame {frame:,}", *texts))
                continue
            for column in columns:
                if one[column] != two[column]:
                    name = f"{label} at frame {frame:,}, column {column}"
                    self.rows.append(Difference(name, one[column] or "empty", two[column] or "empty"))
                    break

    def compare_states(self, there: object, here: object, name: str = "", skip: Collection[str] = ()) -> None:
        """Compare nested states bit by bit, optionally without some top-level keys."""
        if isinstance(there, dict) and isinstance(here, dict):
            for key in dict.fromkeys([*there, *here]):
                full = f"{name}.{key}" if name else str(key)
                if key in skip:
                    continue
                if key not in there or key not in here:
                    texts = [_describe(side[key]) if key in side else _MISSING for side in (there, here)]
                    self.values.append(Difference(full, *texts))
                    continue
                one, two = there[key], here[key]
                if full in ("tracker.rows", "eval_tracker.rows"):
                    one, two = (np.delete(rows, _CLOCK_INDICES, 1) for rows in (one, two))
                self.compare_states(one, two, full)
        elif isinstance(there, (list, tuple)) and isinstance(here, (list, tuple)) and len(there) == len(here):
            for index, (one, two) in enumerate(zip(there, here, strict=True)):
                self.compare_states(one, two, f"{name}[{index}]")
        elif isinstance(there, (Tensor, np.ndarray)) and type(there) is type(here):
            self.num_tensor += 1
            self._add(compare_tensors(name, torch.as_tensor(there), torch.as_tensor(here)))
        # a NaN is equal to none, and -0.0 to 0.0
        elif type(there) is not type(here) or repr(there) != repr(here):
            self.values.append(Difference(name, _describe(there), _describe(here)))

    def compare_sessions(self, there: RunFolder, here: RunFolder, key: tuple[int, int]) -> None:
        """Compare what two sessions at the same frame have saved beside their tables: states, replays, models."""
        states = load_state(there.resume_file(*key)), load_state(here.resume_file(*key))
        skip = {*CLOCK_KEYS, *FILE_KEYS}
        if states[0].get("is_eval_due"):
            skip |= {*EVAL_KEYS}
            self.notes.append("a stop has cut the last evaluation short, so evaluations are not compared")
        self.compare_states(*states, skip=skip)
        self.compare_replays(there, here, states, key)
        for which in MODELS:
            files = [folder.model_file(*key, which) for folder in (there, here)]
            if files[0].exists():
                self.compare_states(load_state(files[0]), load_state(files[1]), f"model {which}")
            else:
                self.notes.append(f"{files[0].name} is not there, so it is not compared")

    def compare_replays(self, there: RunFolder, here: RunFolder, states: tuple[Any, Any], key: tuple[int, int]) -> None:
        """Compare the rows of the replays that two checkpoints list, regardless of how files divide them."""
        for which in dict.fromkeys([*states[0]["rows"], *states[1]["rows"]]):
            walks = [
                _Rows(folder, key, which, state["rows"].get(which, []))
                for folder, state in zip((there, here), states, strict=True)
            ]
            ends = [walk.end for walk in walks]
            if ends[0] != ends[1]:
                self.values.append(Difference(f"replay {which}, rows", *(f"up to {end:,}" for end in ends)))
            for start, end in _overlaps(*(walk.chunks for walk in walks)):
                parts = [walk.read(start, end) for walk in walks]
                for field_name in dict.fromkeys([*parts[0], *parts[1]]):
                    name = f"replay {which} rows {start:,} to {end:,}, {field_name}"
                    if not all(field_name in part for part in parts):
                        texts = [_describe(part[field_name]) if field_name in part else _MISSING for part in parts]
                        self.values.append(Difference(name, *texts))
                        continue
                    self.num_tensor += start == max(walk.start for walk in walks)
                    self._add(compare_tensors(name, parts[0][field_name], parts[1][field_name]))

    def _add(self, difference: Difference | None) -> None:
        if difference is not None:
            self.values.append(difference)

    def add(self, other: "Comparison", label: str) -> None:
        """Add another comparison, with a prefix for its names."""
        self.num_row += other.num_row
        self.num_tensor += other.num_tensor
        self.rows += [replace(one, name=label + one.name) for one in other.rows]
        self.values += [replace(one, name=label + one.name) for one in other.values]
        self.notes += other.notes

    def describe(self) -> list[str]:
        """The first differing row and the first differing value, with how many more there are."""
        lines = []
        if self.rows:
            lines.append(f"{self.rows[0]}; {_count(len(self.rows), 'row')}")
        if self.values:
            lines.append(f"{self.values[0]}; {_count(len(self.values), 'value')}")
        return lines


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s differ' if number > 1 else ' differs'}"


def compare_tensors(name: str, there: Tensor, here: Tensor) -> Difference | None:
    """The first element with different bits; None if all are equal."""
    if there.shape != here.shape or there.dtype != here.dtype:
        return Difference(name, _describe(there), _describe(here))
    size = there.element_size()
    one, two = (
        value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().reshape(-1, size)
        if value.numel()
        else np.zeros((0, size), np.uint8)
        for value in (there, here)
    )
    where = np.flatnonzero((one != two).any(1))
    if not len(where):
        return None
    num_bit = int(np.unpackbits(one[where] ^ two[where]).sum())
    index = tuple(int(i) for i in np.unravel_index(where[0], there.shape)) if there.ndim else ()
    extent = f"{len(where):,} of {len(one):,} element(s), {num_bit:,} bit(s)"
    return Difference(f"{name}{list(index) if index else ''}", _show(there[index]), _show(here[index]), extent)


def _show(value: Tensor) -> str:
    # the shortest text that gives the very number of its type
    return str(value.float().numpy() if value.dtype == torch.bfloat16 else value.cpu().numpy())


def _describe(value: object) -> str:
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{value.dtype} of shape {list(value.shape)}".replace("torch.", "")
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."


def compare_runs(there: RunFolder, here: RunFolder, key: tuple[int, int] = (0, 0)) -> Comparison:
    """Compare everything that two runs of one session have saved at the same frame."""
    comparison = Comparison()
    for kind, label in TABLES.items():
        comparison.compare_tables(there.table_file(*key, kind), here.table_file(*key, kind), label)
    comparison.compare_sessions(there, here, key)
    return comparison


def find_difference(there: Path, here: Path, name: str, session: int = 0) -> str | None:
    """The first difference between two runs of a spec, in words; None if every bit is the same."""
    comparison = compare_runs(RunFolder(there, name), RunFolder(here, name), (0, session))
    return "; ".join(comparison.describe()) or None


@dataclass(frozen=True)
class _Table:
    columns: list[str]
    rows: dict[int, dict[str, str]]


def read_rows(path: Path, last: int) -> _Table:
    """The rows of a table up to a frame, as text; empty without a table."""
    if not path.exists():
        return _Table([], {})
    try:
        reader = csv.DictReader(io.StringIO(read_text(path), newline=""))
        rows = {int(row["frame"]): row for row in reader}
    except UnreadableError as error:
        raise CheckpointError(str(error)) from None
    except (KeyError, TypeError, ValueError, csv.Error):
        raise CheckpointError(f"{path}: is not a table of a session; was it changed?") from None
    return _Table(list(reader.fieldnames or []), {frame: row for frame, row in rows.items() if frame <= last})


class _Rows:
    """The rows of a replay on disk, one file in memory at a time."""

    def __init__(self, folder: RunFolder, key: tuple[int, int], which: str, chunks: list[list[int]]) -> None:
        self.prefix = folder.replay_prefix(*key, which)
        self.chunks = parse_chunks(chunks)
        self.start = self.chunks[0][0] if self.chunks else 0
        self.end = self.chunks[-1][1] if self.chunks else 0
        self._held: tuple[int, int] | None = None
        self._rows: dict[str, Tensor] = {}

    def read(self, start: int, end: int) -> dict[str, Tensor]:
        """Rows in one file."""
        chunk = next(one for one in self.chunks if one[0] <= start and end <= one[1])
        if chunk != self._held:
            self._rows = load_rows(replay_file(self.prefix, *chunk))
            self._held = chunk
        first, last = start - chunk[0], end - chunk[0]
        rows = {name: value[first:last] for name, value in self._rows.items() if not name.startswith("aside_")}
        if {"aside_key", "aside_frame"} <= self._rows.keys():
            # frames aside have the number of their row within the file, their env and their count
            key, frame = self._rows["aside_key"], self._rows["aside_frame"]
            if len(frame) != int(key[:, 2].sum()):
                raise ValueError("frames aside are not as many as their rows have")
            is_inside = (key[:, 0] >= first) & (key[:, 0] < last)
            rows["aside_key"] = key[is_inside] - torch.tensor([first, 0, 0])
            rows["aside_frame"] = frame[is_inside.repeat_interleave(key[:, 2])]
        return rows


def _overlaps(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    for first in one:
        for second in two:
            start, end = max(first[0], second[0]), min(first[1], second[1])
            if start < end:
                yield start, end
