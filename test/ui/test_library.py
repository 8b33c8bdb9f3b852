"""What the server knows of the runs, while they come, go and change."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from slm_lab.lib.data import Document
from slm_lab.lib.errors import RunFolderError
from slm_lab.ui import files, watcher
from slm_lab.ui.files import list_files
from slm_lab.ui.library import Library
from slm_lab.ui.places import Place
from slm_lab.ui.watcher import Watcher
from test.results.sample import make_spec, make_table, write_run


def test_an_experiment_that_is_deleted_meanwhile_ends_nothing(tmp_path: Path) -> None:
    write_run(tmp_path / "grid" / "ppo_cartpole", {0: make_table()}, spec=make_spec())
    write_run(tmp_path / "other", {0: make_table()}, spec=make_spec())
    library = Library(tmp_path)
    library.scan()
    rows = library.refresh()
    next(rows)
    # as the thread of a request does
    shutil.rmtree(tmp_path / "grid")
    library.scan()
    list(rows)
    assert [row["id"] for row in library.get_rows()] == ["other"]


def test_a_run_that_a_request_finds_deleted_is_told_to_all(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_run(tmp_path / name, {0: make_table()}, spec=make_spec())
    library = Library(tmp_path)
    library.scan()
    rows = library.refresh()
    seen = {next(rows)["id"]}
    shutil.rmtree(tmp_path / ({"one", "two"} - seen).pop())
    with pytest.raises(RunFolderError):
        library.find("three")
    # the row of a run that is gone does not come back
    assert not list(rows)
    assert library.scan() == ([], list({"one", "two"} - seen))
    assert library.scan() == ([], [])


def test_a_file_that_goes_while_files_are_listed_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_run(tmp_path / "run", {0: make_table()}, spec=make_spec())
    monkeypatch.setattr(files, "find_files", lambda *_, **__: (["log/gone.log", "demo_spec.yaml"], 0))
    assert [file["path"] for file in list_files(Place("run", run.path, "run"))] == ["demo_spec.yaml"]


def test_a_page_that_missed_events_is_made_to_connect_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "MAX_WAITING", 3)
    follower = Watcher(Library(tmp_path))

    async def run() -> list[Any]:
        stream: AsyncIterator[Any] = follower.stream(frozenset())
        seen = [await anext(stream)]
        for number in range(5):
            follower.publish({"type": "log", "id": str(number)})
        await asyncio.sleep(0)
        seen += [event async for event in stream]
        return seen

    events = asyncio.run(asyncio.wait_for(run(), 20))
    assert events[0] == {"type": "hello"}
    # the stream has ended, so the browser opens another one and asks for everything
    assert len(events) < 6


def test_runs_that_are_slow_to_read_do_not_put_off_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(watcher.time, "monotonic", lambda: now[0])
    library = Library(tmp_path)

    def read_slowly(_ids: object) -> Iterator[Document]:
        now[0] += 2.0
        yield from ()

    looks: list[float] = []

    def scan() -> tuple[list[Document], list[str]]:
        looks.append(now[0])
        return [], []

    monkeypatch.setattr(library, "refresh", read_slowly)
    monkeypatch.setattr(library, "scan", scan)
    follower = Watcher(library)
    for _ in range(4):
        follower._tick(frozenset())
    assert looks == [0.0, 4.0]
