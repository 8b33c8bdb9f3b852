"""One session in a process of its own: `python -m slm_lab.experiment.worker`, started by the executor."""

import gc
import json
import os
import sys
from contextlib import suppress
from dataclasses import asdict

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


def main(task: SessionTask, descriptor: int, parent: int) -> int:
    """Run one session, telling the parent what happens through a pipe."""
    # closing the pipe writes what a parent that was killed has not read
    with (
        suppress(BrokenPipeError),
        os.fdopen(descriptor, "w", buffering=1) as pipe,
        StopSignal(is_patient=True) as stop,
    ):

        def tell(kind: str, content: object) -> None:
            with suppress(BrokenPipeError):
                pipe.write(json.dumps([kind, content]) + "\n")

        def should_stop() -> bool:
            # without its parent a session saves and ends rather than train unseen
            return stop() or os.getppid() != parent

        def on_progress(progress: Progress) -> None:
            tell("progress", asdict(progress))

        def on_hang(error: EnvHangError, is_stopping: bool) -> None:
            tell("end", asdict(explain_end(task.session, error, is_stopping)))

        def run() -> SessionResult:
            import_modules(task.options.imports)
            folder = RunFolder(task.folder.absolute(), task.name)
            if task.is_probe:
                tell("notes", prepare(load_spec(folder.spec_file, task.name).spec)[1])
            spec = load_spec(folder.trial_spec_file(task.trial), task.name).spec
            log = folder.log_file(task.trial, task.session)
            with log_to(log, task.options.log_level), end_hangs(stop, should_stop, on_hang):
                place = (folder, task.trial, task.session)
                session = Session(spec, *place, on_progress, should_stop, task.options)
                # all of this lives to the end: without it, every collection would look through torch's own objects
                gc.freeze()
                return session.run()

        setup_console(task.console_level, task.options.log_format)
        share_niceness()
        try:
            end = SessionEnd(task.session, run())
        except (Exception, SystemExit) as error:
            end = explain_end(task.session, error, should_stop())
        tell("end", asdict(end))
        return stop.exit_code if end.result is not None else 1
    return 1


if __name__ == "__main__":
    sys.exit(main(SessionTask.from_json(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
