"""The runs of a store as a table."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from slm_lab.cli.columns import write_columns
from slm_lab.lib.errors import LabError
from slm_lab.lib.unit import format_size
from slm_lab.share.manifest import Manifest
from slm_lab.share.pull import SharedRun
from slm_lab.share.store import Store

HEADER = ("run", "algorithm", "env", "score", "sessions", "frames", "size", "here")


def show_runs(runs: Sequence[SharedRun], store: Store, pattern: str, data_dir: Path) -> None:
    """Print the runs, and the problems of those that cannot be used."""
    if not runs:
        what = f"no run named like '{pattern}'" if pattern else "no run"
        raise LabError(f"there is {what} at {store.root_url}; upload one with `slm-lab push DIR`")
    rows = [_row(run.manifest, data_dir) for run in runs if run.manifest is not None]
    if rows:
        write_columns([HEADER, *rows], num_name=3)
    for run in runs:
        if run.manifest is None:
            sys.stderr.write(f"Left out: {run.name}: {run.problem}\n")


def _row(manifest: Manifest, data_dir: Path) -> tuple[str, ...]:
    summary = manifest.summary
    return (
        manifest.name,
        summary.algorithm,
        summary.env,
        "-" if math.isnan(summary.score) else f"{summary.score:.2f}",
        str(len(summary.values)),
        f"{summary.frame:,}" + ("" if summary.is_complete else " (not complete)"),
        format_size(manifest.size),
        "yes" if (data_dir / manifest.name).is_dir() else "no",
    )
