"""`slm-lab push DIR`: upload a run to share it."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import DataDirOption, ImportsOption, LogLevelOption
from slm_lab.lib.errors import ShareError
from slm_lab.lib.log import setup_console
from slm_lab.results.folder import DATA_DIR, find_run_path
from slm_lab.share.opening import open_store
from slm_lab.share.push import push_run
from slm_lab.share.settings import HUB_PREFIX, read_settings

app = typer.Typer(add_completion=False)


@app.command(
    help="Upload a run to HF_REPO: spec, tables, graphs, models, videos, report and a card.\n\n"
    "HF_REPO is USER/NAME of a dataset repo on the Hugging Face hub, created if missing, or a folder; HF_TOKEN is a "
    "token with write access. Set both in the environment or in .env. Run an interrupted push again to resume it.\n\n"
    "--model makes a model repo instead, for slm_lab.load_agent('hub:OWNER/NAME')."
)
def push(
    where: Annotated[
        list[str], typer.Argument(metavar="DIR...", help="Run folders, their names, patterns, or latest.")
    ],
    to: Annotated[str | None, typer.Option("--to", metavar="REPO", help="A place other than HF_REPO.")] = None,
    with_checkpoints: Annotated[
        bool, typer.Option("--with-checkpoints", help="Also upload checkpoints and replay files, which may be large.")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            "--model", metavar="OWNER/NAME", help="Make a model repo for the agent: card, exported file, replay, run."
        ),
    ] = None,
    imports: ImportsOption = None,
    private: Annotated[bool, typer.Option("--private", help="Make the repo private if this push creates it.")] = False,
    data_dir: DataDirOption = DATA_DIR,
    log_level: LogLevelOption = "INFO",
) -> None:
    """Entry of the command."""
    setup_console(log_level)
    with user_errors():
        paths = [find_run_path(place, data_dir) for place in where]
        if model is not None:
            sys.stdout.write(f"Shared   {_push_model(paths, model, to, private, imports or [], with_checkpoints)}\n")
            return
        store = open_store(read_settings(to), is_private=private)
        for path in paths:
            sys.stdout.write(f"Shared   {push_run(path, store, with_checkpoints)}\n")


def _push_model(
    paths: list[Path], model: str, to: str | None, is_private: bool, imports: list[str], with_checkpoints: bool
) -> str:
    if to is not None or len(paths) != 1:
        raise ShareError("--model: a model repo holds the agent of one run; give one DIR, and no --to")
    store = open_store(read_settings(f"{HUB_PREFIX}{model.removeprefix(HUB_PREFIX)}"), is_private=is_private)
    # loaded only here: it needs torch
    url: str = import_module("slm_lab.share.model_push").push_model(paths[0], store, imports, with_checkpoints)
    return url
