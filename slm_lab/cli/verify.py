"""`slm-lab verify DIR`: replay a part of a run and compare it bit for bit."""

import sys
from typing import Annotated

import typer

from slm_lab.audit.verify import Settings, Verification
from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import ImportsOption, RunsDirOption
from slm_lab.lib.log import setup_console
from slm_lab.results.folder import DATA_DIR
from slm_lab.spec.reader import printable

app = typer.Typer(add_completion=False)


@app.command(
    help="Replay a part of a run from one of its checkpoints, and compare weights and tables bit for bit.\n\n"
    "DIR is a run folder, its name inside the data folder, a file in it, a pattern that matches one run, or latest. "
    "The run stays unchanged. By default this replays the part between the last two checkpoints. Exit code 0: all is "
    "the same; 1: something differs, and the output says what and where."
)
def verify(
    where: Annotated[str, typer.Argument(metavar="DIR")] = "latest",
    segment: Annotated[
        int | None, typer.Option(metavar="FRAMES", help="Replay the first frames of the run.", min=1)
    ] = None,
    from_start: Annotated[bool, typer.Option("--from-start", help="Replay the whole run.")] = False,
    session: Annotated[int | None, typer.Option(help="Only this session.", min=0)] = None,
    trial: Annotated[int | None, typer.Option(help="This trial of a search; by default the best.", min=0)] = None,
    threads: Annotated[int | None, typer.Option(help="Number of torch threads to replay with.", min=1)] = None,
    compiled: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Replay with compiled or plain updates.")
    ] = None,
    imports: ImportsOption = None,
    data_dir: RunsDirOption = DATA_DIR,
) -> None:
    """Entry of the command."""
    setup_console("WARNING")
    settings = Settings(session, trial, segment, from_start, threads, compiled, tuple(imports or ()))
    out = sys.stdout
    with user_errors():
        verification = Verification(where, data_dir, settings)
        is_same = True
        for verdict in verification.run():
            first, *rest = verdict.describe()
            out.write(f"{_show(first)}\n")
            out.writelines(f"  {_show(line)}\n" for line in rest)
            out.flush()
            is_same &= verdict.is_same
    facts = verification.facts
    if facts:
        same = "Identical, although this machine differs from the one that trained it"
        out.write(f"{same if is_same else 'What differs from the machine that trained it'}:\n")
        out.writelines(f"  {_show(str(fact))}\n" for fact in facts)
    elif not is_same:
        out.write("As far as recorded, this machine is like the one that trained the run\n")
    if verification.unknown:
        names = ", ".join(verification.unknown)
        out.write(f"Not recorded with the run, so not compared: {names}\n")
    sys.exit(0 if is_same else 1)


def _show(line: str) -> str:
    """A line made safe for a terminal: it quotes files of a run, which may come from anyone."""
    return printable(line, limit=2000)
