"""`slm-lab graduate [PATTERN] --to REPO`: copy finished runs and the docs to the public repo."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import LogLevelOption
from slm_lab.lib.log import setup_console
from slm_lab.lib.unit import format_size
from slm_lab.share.graduate import graduate as copy_all
from slm_lab.share.graduate import plan
from slm_lab.share.opening import open_store
from slm_lab.share.settings import read_settings

app = typer.Typer(add_completion=False)


@app.command(
    help="Copy finished runs from HF_REPO to the public repo, with README.md and docs/ of this folder.\n\n"
    "Runs are copied byte for byte; nothing is deleted or replaced. Links in the docs to a copied run are rewritten to "
    "the public repo."
)
def graduate(
    to: Annotated[str, typer.Option("--to", metavar="REPO", help="The public repo, USER/NAME or a folder.")],
    pattern: Annotated[str, typer.Argument(metavar="[PATTERN]", help="Only runs with this in their name.")] = "",
    source: Annotated[str | None, typer.Option("--from", metavar="REPO", help="A source other than HF_REPO.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be copied.")] = False,
    rewrite: Annotated[bool, typer.Option("--rewrite/--no-rewrite", help="Rewrite links in docs.")] = True,
    log_level: LogLevelOption = "INFO",
) -> None:
    """Entry of the command."""
    setup_console(log_level)
    out = sys.stdout
    with user_errors():
        origin, target = open_store(read_settings(source)), open_store(read_settings(to))
        found = plan(pattern, origin, target)
        for name, reason in found.left_out.items():
            out.write(f"Left out {name}: {reason}\n")
        for name in found.done:
            out.write(f"There    {target.url(f'data/{name}')}\n")
        if dry_run:
            for manifest in found.runs:
                out.write(f"Would copy {manifest.name}: {len(manifest.files)} files, {format_size(manifest.size)}\n")
            out.write(f"Would send README.md and docs/ to {target.root_url}\n")
            return
        for url in copy_all(found, origin, target, Path(), rewrite):
            out.write(f"Copied   {url}\n")
        out.write(f"Public   {target.root_url}\n")
