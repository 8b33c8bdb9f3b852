"""The runs of a store as a table."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from slm_lab.cli.columns import write_columns
from slm_lab.lib.errors import LabError
from slm_lab.lib.unit import format_size
from slm_lab.share.pull import SharedRun
from slm_lab.share.store import Store

HEADER = ("run", "algorithm", "env", "score", "sessions", "frames", "size", "here")


def show_runs(runs: Sequence[SharedRun], store: Store, pattern: str, data_dir: Path) -> None:
    """Write the runs, and what is wrong with those that cannot be used."""
    if not runs:
        what = f"no run named like '{pattern}'" if pattern else "no run"
        raise LabError(f"there is {what} at {store.root_url}; send one with `slm-lab push DIR`")
    whole = [run for run in runs if run.manifest is not None]
    if whole:
        write_columns([HEADER, *(_row(run, data_dir) for run in whole)], num_name=3)
    for run in runs:
        if run.manifest is None:
            sys.stderr.write(f"Left out: {run.name}: {run.problem}\n")


def _row(run: SharedRun, data_dir: Path) -> tuple[str, ...]:
    assert run.manifest is not None
    summary = run.manifest.summary
    return (
        run.name,
        summary.algorithm,
        summary.env,
        "-" if math.isnan(summary.score) else f"{summary.score:.2f}",
        str(len(summary.values)),
        f"{summary.frame:,}" + ("" if summary.is_complete else " (not complete)"),
        format_size(run.manifest.size),
        "yes" if (data_dir / run.name).is_dir() else "no",
    )
