"""Videos of an agent at a moment of its training, recorded in the background from the model kept nearest to it."""

import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from slm_lab.lib.data import Document
from slm_lab.lib.errors import RunFolderError
from slm_lab.lib.parent import child_environment
from slm_lab.lib.secret import redact
from slm_lab.lib.system import lower_priority
from slm_lab.results.folder import RunFolder
from slm_lab.results.run import Run, look_up
from slm_lab.spec.reader import printable
from slm_lab.ui.places import Place
from slm_lab.ui.run_page import link_file

NICENESS = 15
# an env may have endless episodes
MAX_SECONDS = 300.0
MAX_WAITING = 20


@dataclass
class Film:
    """A video, recorded or still to record; `frame` is that of its model, None for the best one."""

    run: str
    session: int
    frame: int | None
    file: Path
    command: list[str]
    state: str = "waiting"
    error: str = ""

    @property
    def key(self) -> str:
        """Identifies the video."""
        return f"{self.run}:{self.file.name}"

    def describe(self) -> Document:
        """The state of the video, for a page."""
        link = link_file(self.run, f"video/{self.file.name}") if self.state == "done" else None
        known = {"key": self.key, "run": self.run, "session": self.session, "frame": self.frame}
        return known | {"state": self.state, "error": self.error, "link": link}


def is_code(run: Run) -> bool:
    """Whether playing a run imports modules that its spec names: code that may be anyone's."""
    wrappers = look_up(run.spec, "env", "wrappers")
    names = [look_up(run.spec, "env", "name"), *(wrappers if isinstance(wrappers, list) else [wrappers])]
    texts = [name if isinstance(name, str) else str(look_up(name, "name")) for name in names if name]
    return any(":" in text for text in texts)


def plan(place: Place, run: Run, session: int | None, frame: int | None) -> Film:
    """The video nearest to a frame of a session; of the best model where none was kept."""
    folder = RunFolder(run.path, run.name)
    sessions = [number for number in run.tables if folder.find_model(run.trial, number, "best").exists()]
    if session is None:
        scores = {number: run.session_scores.get(number, float("-inf")) for number in sessions}
        session = max(scores, key=lambda number: scores[number], default=None)
    if session is None or session not in run.tables:
        raise RunFolderError("there is no model to play yet: the run saves one with its first checkpoint")
    prefix = folder.prefix(run.trial, session)
    kept = folder.find_kept_models(run.trial, session)
    # some were recorded while training
    filmed = [known for known in kept if folder.video_file(run.trial, session, known).exists()]
    if frame is not None and kept:
        nearest = min({*kept, *filmed}, key=lambda known: (abs(known - frame), known))
        file, at = folder.video_file(run.trial, session, nearest), ["--at", str(nearest)]
    else:
        nearest, file, at = None, run.path / "video" / f"{prefix}_best.mp4", []
        if not folder.find_model(run.trial, session, "best").exists():
            raise RunFolderError(f"there is no model of session {session} to play yet")
    words = ["enjoy", str(run.path), "--episodes", "1", "--session", str(session), "--video", str(file), *at]
    film = Film(place.id, session, nearest, file, [sys.executable, "-m", "slm_lab.cli", *words])
    if file.exists() and not _is_old(file, nearest, folder.find_model(run.trial, session, "best")):
        film.state = "done"
    return film


def _is_old(file: Path, frame: int | None, best: Path) -> bool:
    """Whether a video of the best model is older than the model."""
    return frame is None and file.stat().st_mtime < best.stat().st_mtime


@dataclass
class Films:
    """Records one video at a time, at low priority."""

    publish: Callable[[Document], None]
    _waiting: deque[Film] = field(default_factory=deque)
    _known: dict[str, Film] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_busy: bool = False

    def record(self, film: Film) -> Film:
        """Record a video unless it exists or is queued; returns its state."""
        with self._lock:
            known = self._known.get(film.key)
            if known is not None and known.state in ("waiting", "recording"):
                return known
            if film.state == "done":
                return film
            if len(self._waiting) >= MAX_WAITING:
                raise RunFolderError(f"{MAX_WAITING} videos are waiting to be recorded; try again later")
            self._known[film.key] = film
            self._waiting.append(film)
            if not self._is_busy:
                self._is_busy = True
                threading.Thread(target=self._work, name="films", daemon=True).start()
        return film

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._is_busy = False
                    return
                film = self._waiting.popleft()
            film.state = "recording"
            self._tell(film)
            film.error = _run(film.command)
            film.state = "failed" if film.error else "done"
            self._tell(film)

    def _tell(self, film: Film) -> None:
        self.publish({"type": "video", "video": film.describe()})


def _run(command: list[str]) -> str:
    """Run a command at low priority; why it failed, or nothing."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # it ends with the server
            env=child_environment(),
        )
    except OSError as error:
        return f"no process could be started ({error.strerror})"
    lower_priority(process.pid, NICENESS)
    try:
        output, _ = process.communicate(timeout=MAX_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"the episode took longer than {MAX_SECONDS:.0f} seconds"
    if process.returncode == 0:
        return ""
    lines = output.decode(errors="replace").strip().splitlines() or ["it ended without a message"]
    reason = next((line for line in lines if line.startswith("Error: ")), lines[-1])
    return printable(redact(reason.removeprefix("Error: ")), 500)
