"""The runs of a data folder, read as they change."""

import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterator
from pathlib import Path

from slm_lab.lib.array import Array
from slm_lab.lib.data import Document
from slm_lab.lib.errors import LabError, RunFolderError
from slm_lab.results.folder import describe_failure, is_running
from slm_lab.results.follow import FollowedTable
from slm_lab.results.run import NoResultsError, Run, read_run
from slm_lab.results.table import read_session_table
from slm_lab.spec.reader import printable
from slm_lab.ui.places import Place, find_places, is_experiment_running, refuse_links, sign
from slm_lab.ui.summary import is_next_awaited, sketch, summarize

# tables that are followed at once: those of some runs that pages show
MAX_FOLLOWED = 200
# seconds after its last write in which a run may still be training
HOT_SECONDS = 120.0
# least seconds between two reads of a run, however fast it trains
REST_SECONDS = 0.9


class Tables:
    """Tables that are read again and again, the least recently used forgotten."""

    def __init__(self) -> None:
        self._known: OrderedDict[Path, FollowedTable] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, path: Path) -> dict[str, Array]:
        """The table of a session; raises LabError if it cannot be read."""
        with self._lock:
            table = self._known.setdefault(path, FollowedTable(path))
            self._known.move_to_end(path)
            while len(self._known) > MAX_FOLLOWED:
                self._known.popitem(last=False)
            return read_session_table(path, lambda _: table.read())

    def find_stride(self, run: Run) -> int:
        """Of how many rows one is kept, in the longest table of a run."""
        with self._lock:
            return max((t.stride for path, t in self._known.items() if path.is_relative_to(run.path)), default=1)


class Library:
    """All places by id, and a summary of each; safe to use from several threads."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir.resolve()
        self.tables = Tables()
        self.places: dict[str, Place] = {}
        self._rows: dict[str, Document] = {}
        self._signatures: dict[str, tuple[int, ...]] = {}
        # when a run may be read again
        self._rests: dict[str, float] = {}
        # places that `find` saw were gone, for the next scan to tell
        self._gone: list[str] = []
        self._lock = threading.Lock()

    # --- places

    def find(self, id_: str) -> Place:
        """A place by its id; only what a scan of the data folder has found is known."""
        if id_ not in self.places:
            _, gone = self.scan()
            with self._lock:
                self._gone += gone
        if id_ not in self.places:
            raise RunFolderError(f"there is no run '{printable(id_, 100)}' in the data folder")
        return self.places[id_]

    def find_children(self, id_: str) -> list[Place]:
        """The runs of an experiment."""
        return [place for place in self.places.values() if place.parent == id_]

    def scan(self) -> tuple[list[Document], list[str]]:
        """Look for new and deleted places; their rows, as far as they are known, and the ids that are gone."""
        found = find_places(self.data_dir)
        with self._lock:
            new = [place for id_, place in found.items() if self.places.get(id_) != place]
            gone = self._gone + [id_ for id_ in self.places if id_ not in found]
            self._gone = []
            self.places = found
            for id_ in gone:
                self._rows.pop(id_, None)
                self._signatures.pop(id_, None)
            rows = []
            for place in new:
                self._rows[place.id] = sketch(place)
                rows.append(self._rows[place.id])
        return rows, gone

    # --- rows

    def get_rows(self) -> list[Document]:
        """The rows of all places, as far as they are known."""
        with self._lock:
            return [row for id_, row in self._rows.items() if id_ in self.places]

    def refresh(self, ids: Collection[str] | None = None) -> Iterator[Document]:
        """Read again what has changed, of some places or of all, the newest first; yields the new rows."""
        with self._lock:
            ordered = sorted(self._rows.values(), key=lambda row: -row["age"])
            todo = [self.places[row["id"]] for row in ordered if row["id"] in self.places]
        for place in todo:
            if place.kind != "experiment" and (ids is None or place.id in ids) and (row := self._refresh(place)):
                yield row
        for place in todo:
            if place.kind == "experiment" and (row := self._refresh_experiment(place)):
                yield row

    def _refresh_experiment(self, place: Place) -> Document | None:
        """The row of an experiment, from those of its runs; None if nothing has changed."""
        is_active = is_experiment_running(place.path)
        with self._lock:
            if place.id not in self.places:
                # a scan for a page has found that it is gone
                return None
            runs = [self._rows[child.id] for child in self.places.values() if child.parent == place.id]
            old = self._rows[place.id]
            if any(run["status"] == "loading" for run in runs):
                return None
            shares = [run.get("progress") or 0.0 for run in runs]
            is_done = all(run["status"] == "done" for run in runs)
            new = old | {
                "status": "running" if is_active else "done" if is_done else "stopped",
                "age": max(run["age"] for run in runs),
                "progress": round(sum(shares) / len(shares), 4),
                "frame": sum(run.get("frame", 0) * run.get("sessions", 0) for run in runs),
            }
            self._rows[place.id] = new
        return new if new != old else None

    def _refresh(self, place: Place) -> Document | None:
        if time.monotonic() < self._rests.get(place.id, 0.0):
            return None
        signature = sign(place)
        with self._lock:
            known, row = self._signatures.get(place.id), self._rows.get(place.id, {})
        if signature == known and row.get("status") == self._find_status(place, row):
            return None
        try:
            new = summarize(place, self._read_once if known is None else self.tables.read)
        except NoResultsError:
            new = sketch(place) | {"status": "running" if is_running(place.path) else "empty"}
        except (LabError, OSError) as error:
            new = sketch(place) | {"status": "unreadable", "problem": describe_failure(error)}
        new["status"] = self._find_status(place, new)
        self._rests[place.id] = time.monotonic() + REST_SECONDS
        with self._lock:
            # a scan of another thread may have found it gone
            if place.id not in self.places:
                return None
            self._signatures[place.id], self._rows[place.id] = signature, new
        return new

    def _find_status(self, place: Place, row: Document) -> str:
        """The status of a run now: a process may end, or its experiment begin, without a change of its files."""
        status = str(row.get("status"))
        if status in ("running", "waiting", "stopped", "empty"):
            parent = self.places.get(place.parent)
            is_awaited = parent is not None and is_experiment_running(parent.path)
            idle = "empty" if row.get("frame") is None else "stopped"
            is_active = is_running(place.path) or is_next_awaited(row)
            return "running" if is_active else "waiting" if is_awaited else idle
        return status

    def _read_once(self, path: Path) -> dict[str, Array]:
        """Read a table without following it: most runs are done."""
        return read_session_table(path, lambda _: FollowedTable(path).read())

    def update_row(self, id_: str, **changes: object) -> Document:
        """Change a row, such as its tags."""
        with self._lock:
            row = {**self._rows.get(id_, {"id": id_}), **changes}
            # a run that is gone by now gets no row
            if id_ in self._rows:
                self._rows[id_] = row
            return row

    def find_hot(self) -> set[str]:
        """Runs that train, or were written to a moment ago."""
        now = time.time()
        with self._lock:
            rows = list(self._rows.values())
        return {row["id"] for row in rows if row["status"] == "running" or now - row["age"] < HOT_SECONDS}

    # --- runs

    def load(self, id_: str, trial: int | None = None) -> Run:
        """A run with its tables, of which only new rows are read."""
        place = self.find(id_)
        refuse_links(place.path)
        return read_run(place.path, trial, self.tables.read)
