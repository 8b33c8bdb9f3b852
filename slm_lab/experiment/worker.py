"""One session in a process of its own: `python -m slm_lab.experiment.worker`, started by the executor."""

import json
import os
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slm_lab.experiment.control import Progress, Session
from slm_lab.experiment.executor import SessionTask
from slm_lab.experiment.run import prepare
from slm_lab.experiment.signals import StopSignal, end_hangs
from slm_lab.lib.errors import DivergenceError, EnvHangError, LabError, StorageError, WorkerDeathError, WorkerError
from slm_lab.lib.log import log_to, setup_console
from slm_lab.lib.runtime import import_modules, share_niceness
from slm_lab.lib.secret import redact
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import load_spec


def main(task: SessionTask, descriptor: int, parent: int) -> int:
    """Run one session, telling the parent what happens through a pipe."""
    with os.fdopen(descriptor, "w", buffering=1) as pipe, StopSignal(is_patient=True) as stop:

        def tell(kind: str, content: Any) -> None:
            with suppress(BrokenPipeError):
                pipe.write(json.dumps([kind, content]) + "\n")

        def should_stop() -> bool:
            # without its parent a session saves and ends rather than train unseen
            return stop() or os.getppid() != parent

        def on_progress(progress: Progress) -> None:
            tell("progress", asdict(progress))

        def on_hang(error: EnvHangError, is_stopping: bool) -> None:
            tell("killed" if is_stopping else "error", redact(str(error)))

        setup_console(task.console_level, task.log_format)
        share_niceness()
        folder = RunFolder(Path(task.folder).absolute(), task.name)
        try:
            import_modules(task.imports)
            if task.is_probe:
                tell("notes", prepare(load_spec(folder.spec_file, task.name).spec)[1])
            spec = load_spec(folder.trial_spec_file(task.trial), task.name).spec
            with (
                log_to(folder.log_file(task.trial, task.session), task.log_level),
                end_hangs(stop, should_stop, on_hang),
            ):
                result = Session(
                    spec, folder, task.trial, task.session, on_progress, should_stop, imports=task.imports
                ).run()
        except EnvHangError as error:
            tell("killed" if should_stop() else "error", redact(str(error)))
            return 1
        except SystemExit as error:
            tell("error", f"the env or the agent ended the process, with exit code {error.code or 0}")
            return 1
        except WorkerDeathError as error:
            tell("killed", redact(str(error)))
            return 1
        except DivergenceError as error:
            tell("diverged", redact(str(error)))
            return 1
        except (StorageError, WorkerError) as error:
            tell("error", redact(str(error)))
            return 1
        except LabError as error:
            tell("user_error", redact(str(error)))
            return 2
        except Exception:
            tell("error", redact(traceback.format_exc()))
            return 1
        tell("result", asdict(result))
        return stop.exit_code


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    arguments["imports"] = tuple(arguments["imports"])
    sys.exit(main(SessionTask(**arguments), int(sys.argv[2]), int(sys.argv[3])))
