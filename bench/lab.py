"""The lab's own session with its log, table and checkpoints, as `slm-lab run` has it."""

import gc
import tempfile
from pathlib import Path

from bench.job import Job, Measured, answer_with
from bench.meter import Meter
from bench.rows import ROW_BY_NAME, build_spec
from slm_lab.experiment.control import Session
from slm_lab.experiment.progress import ProgressView
from slm_lab.lib.io import create_run_folder
from slm_lab.lib.log import log_to, setup_console
from slm_lab.results.folder import RunFolder


def measure(job: Job) -> Measured:
    """Train until enough was measured."""
    spec = build_spec(ROW_BY_NAME[job.row], job.quick, job.overrides, job.contender)
    meter = Meter(job)

    def should_stop() -> bool:
        # asked before each step, so right after the round of the step before
        return meter.end_round(session.frame, session.agent.algorithm.opt_step, session.watch.phases)

    setup_console("INFO")
    with tempfile.TemporaryDirectory() as data:
        folder = RunFolder(create_run_folder(Path(data), spec.name), spec.name)
        with log_to(folder.log_file(0), "INFO"), ProgressView(1, spec.env.max_frame) as view:
            session = Session(spec, folder, 0, 0, view.update, should_stop)
            gc.freeze()
            session.run()
    num_param = sum(optimizer.flat.data.numel() for optimizer in session.agent.algorithm.optimizers.values())
    return meter.measured(num_param)


if __name__ == "__main__":
    answer_with(measure)
