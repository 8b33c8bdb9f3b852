"""`slm-lab push DIR`: upload a run to share it."""

import sys
from typing import Annotated

import typer

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import DataDirOption, LogLevelOption
from slm_lab.lib.log import setup_console
from slm_lab.results.folder import DATA_DIR, find_run_path
from slm_lab.share.opening import open_store
from slm_lab.share.push import push_run
from slm_lab.share.settings import read_settings

app = typer.Typer(add_completion=False)


@app.command(
    help="Upload a run to HF_REPO: spec, tables, graphs, models, videos, report and a card.\n\n"
    "HF_REPO is USER/NAME of a dataset repo on the Hugging Face hub, created if missing, or a folder; HF_TOKEN is a "
    "token with write access. Set both in the environment or in .env. Run an interrupted push again to resume it."
)
def push(
    where: Annotated[
        list[str], typer.Argument(metavar="DIR...", help="Run folders, their names, patterns, or latest.")
    ],
    to: Annotated[str | None, typer.Option("--to", metavar="REPO", help="A place other than HF_REPO.")] = None,
    with_checkpoints: Annotated[
        bool, typer.Option("--with-checkpoints", help="Also upload checkpoints and replay files, which may be large.")
    ] = False,
    private: Annotated[bool, typer.Option("--private", help="Make the repo private if this creates it.")] = False,
    data_dir: DataDirOption = DATA_DIR,
    log_level: LogLevelOption = "INFO",
) -> None:
    """Entry of the command."""
    setup_console(log_level)
    with user_errors():
        paths = [find_run_path(place, data_dir) for place in where]
        store = open_store(read_settings(to), is_private=private)
        for path in paths:
            sys.stdout.write(f"Shared   {push_run(path, store, with_checkpoints)}\n")
