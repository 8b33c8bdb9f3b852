"""`slm-lab export DIR -o agent.slm`: a trained agent as one file that needs neither its run nor its env."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import DataDirOption, ImportsOption
from slm_lab.deploy.export import export_agent
from slm_lab.lib.data import Document
from slm_lab.lib.log import setup_console
from slm_lab.lib.runtime import import_modules
from slm_lab.lib.unit import format_size
from slm_lab.results.folder import DATA_DIR
from slm_lab.spec.reader import printable

app = typer.Typer(add_completion=False)


@app.command(help="Write a trained agent as one file: agent.slm, agent.onnx, or agent.pt2 of torch.export.")
def export(
    where: Annotated[
        str, typer.Argument(metavar="DIR", help="A run folder or its name, a model file, or an .slm file.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file: *.slm, *.onnx or *.pt2.")],
    session: Annotated[int | None, typer.Option(help="Session of the run; by default the best.", min=0)] = None,
    at: Annotated[
        int | None, typer.Option("--at", metavar="FRAME", help="Take the model kept nearest to this frame.", min=0)
    ] = None,
    form: Annotated[
        Literal["slm", "onnx", "torch"] | None,
        typer.Option("--format", help="The format; by default from the ending of the file."),
    ] = None,
    imports: ImportsOption = None,
    data_dir: DataDirOption = DATA_DIR,
) -> None:
    """Entry of the command."""
    setup_console("INFO")
    with user_errors():
        import_modules(imports or ())
        done = export_agent(where, output, data_dir, session, at, form)
        for line in done.checks:
            sys.stdout.write(f"Checked  {line}\n")
        sys.stdout.write(f"Agent    {done.path} ({format_size(done.path.stat().st_size)})\n")
        sys.stdout.write(f"SHA-256  {done.sha256}\n{_show_score(done.contract)}")
        if done.path.suffix == ".slm":
            sys.stdout.write(f'Load     slm_lab.load_agent("{done.path}")\n')


def _show_score(contract: Document) -> str:
    score = contract.get("score")
    if score is None:
        return ""
    low, high = score["low"], score["high"]
    interval = "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"
    # the file holds the agent of one session
    own = score["session"]
    session = "" if score["num_session"] == 1 or own is None else f", this session {own:.2f}"
    return f"Score    {score['mean']:.2f}{interval}{session} ({printable(score['meaning'], 200)})\n"
