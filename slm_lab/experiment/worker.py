"""The process of one session: `python -m slm_lab.experiment.worker`, started by the executor."""

import gc
import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import TextIO

from slm_lab.experiment.control import Session
from slm_lab.experiment.executor import SessionTask
from slm_lab.experiment.launch import prepare
from slm_lab.experiment.messages import Progress, SessionEnd, SessionResult, explain_end
from slm_lab.experiment.signals import StopSignal, end_hangs
from slm_lab.lib.errors import EnvHangError
from slm_lab.lib.log import log_to, setup_console
from slm_lab.lib.runtime import import_modules, share_niceness
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import load_spec


class Worker:
    """Runs one session, and reports to the parent process as lines of JSON through a pipe."""

    def __init__(self, task: SessionTask, pipe: TextIO, parent: int, stop: StopSignal) -> None:
        self.task = task
        self.pipe = pipe
        self.parent = parent
        self.stop = stop

    def main(self) -> int:
        """Run the session and report its end; returns the exit code of the process."""
        setup_console(self.task.console_level, self.task.options.log_format)
        share_niceness()
        try:
            end = SessionEnd(self.task.session, self._run())
        except (Exception, SystemExit) as error:
            end = explain_end(self.task.session, error, self._should_stop())
        self._report("end", asdict(end))
        return self.stop.exit_code if end.result is not None else 1

    def _run(self) -> SessionResult:
        task = self.task
        import_modules(task.options.imports)
        folder = RunFolder(task.folder.absolute(), task.name)
        if task.is_probe:
            self._report("notes", prepare(load_spec(folder.spec_file, task.name).spec)[1])
        spec = load_spec(folder.trial_spec_file(task.trial), task.name).spec
        log = folder.log_file(task.trial, task.session)
        with log_to(log, task.options.log_level), end_hangs(self.stop, self._should_stop, self._on_hang):
            session = Session(
                spec, folder, task.trial, task.session, self._on_progress, self._should_stop, task.options
            )
            # these objects live to the end: unfrozen, every garbage collection would visit all of torch's
            gc.freeze()
            return session.run()

    def _should_stop(self) -> bool:
        # without its parent nobody watches the session, so it saves and ends
        return self.stop() or os.getppid() != self.parent

    def _on_progress(self, progress: Progress) -> None:
        self._report("progress", asdict(progress))

    def _on_hang(self, error: EnvHangError, is_stopping: bool) -> None:
        self._report("end", asdict(explain_end(self.task.session, error, is_stopping)))

    def _report(self, kind: str, content: object) -> None:
        with suppress(BrokenPipeError):
            self.pipe.write(json.dumps([kind, content]) + "\n")


def main(task: SessionTask, descriptor: int, parent: int) -> int:
    """Run one session; `descriptor` is the end of the pipe to write to, `parent` the id of the parent process."""
    # closing the pipe writes what a parent that was killed has not read
    with (
        suppress(BrokenPipeError),
        os.fdopen(descriptor, "w", buffering=1) as pipe,
        StopSignal(is_patient=True) as stop,
    ):
        return Worker(task, pipe, parent, stop).main()
    return 1


if __name__ == "__main__":
    sys.exit(main(SessionTask.from_json(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
