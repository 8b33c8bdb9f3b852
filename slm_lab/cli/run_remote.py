"""`slm-lab run-remote SPEC_FILE SPEC_NAME [train|search]`: run a spec on a cloud machine, with dstack."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import ImportsOption, SetOption
from slm_lab.lib.errors import LabError, nearest
from slm_lab.lib.secret import full_environment, redact
from slm_lab.remote.submit import APPLY, SubmitError, submit_task
from slm_lab.remote.task import MODES, Mode, TaskRequest, check_upload, find_root, render_task
from slm_lab.spec.loading import SUFFIXES, find_bare_file

app = typer.Typer(add_completion=False)


def split_arguments(arguments: list[str]) -> tuple[str, str | None, Mode]:
    """File or bare name, spec name, and mode, by default train."""
    names, mode = list(arguments), MODES[0]
    if len(names) > 1 and names[-1] in MODES:
        mode = MODES[MODES.index(names.pop())]
    is_file = Path(names[0]).suffix in SUFFIXES
    if len(names) > 2 or (len(names) == 2 and not is_file and find_bare_file(*names) is None):
        wrong = names[-1]
        raise LabError(f"unknown mode '{wrong}'{nearest(wrong, MODES)} (remote runs know: {', '.join(MODES)})")
    return names[0], names[1] if len(names) == 2 else None, mode


@app.command(
    name="run-remote",
    help="Run a spec on a cloud machine, with dstack: docs/REMOTE.md.\n\n"
    "This sends the current checkout as it is. SPEC_FILE is a file in it, or the name of a shipped spec. With "
    "--volume, a run that loses its machine resumes from its checkpoint on the next machine.",
)
def run_remote(
    arguments: Annotated[list[str], typer.Argument(metavar="SPEC_FILE [SPEC_NAME] [train|search]")],
    name: Annotated[
        str | None,
        typer.Option("--name", "-n", help="Name of the run at dstack; by default the spec's name, with dashes."),
    ] = None,
    gpu: Annotated[bool, typer.Option("--gpu", help="Use a machine with a GPU.")] = False,
    set_: SetOption = None,
    imports: ImportsOption = None,
    volume: Annotated[str | None, typer.Option(metavar="NAME", help="A network volume for checkpoints.")] = None,
    upload_hf: Annotated[
        bool, typer.Option("--upload-hf/--no-upload-hf", help="Upload the run to HF_REPO when it ends.")
    ] = True,
    spot: Annotated[
        bool | None,
        typer.Option("--spot/--on-demand", help="Only spot machines, or only on-demand ones; by default either."),
    ] = None,
    max_price: Annotated[float | None, typer.Option(metavar="DOLLARS", help="Highest price per hour.")] = None,
    max_duration: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time limit of the run: 30m, 6h, 2d.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, without sending it.")] = False,
) -> None:
    """Entry of the command."""
    with user_errors():
        source, spec_name, mode = split_arguments(arguments)
        request = TaskRequest(
            source,
            spec_name,
            mode,
            changes=tuple(set_ or ()),
            run_name=name,
            gpu=gpu,
            upload=upload_hf,
            volume=volume,
            spot=None if spot is None else "spot" if spot else "on-demand",
            max_price=max_price,
            max_duration=max_duration,
            imports=tuple(imports or ()),
        )
        root = find_root(Path.cwd())
        environ = full_environment()
        if dry_run:
            task = render_task(request, environ, root)
            sys.stdout.write(f"# {shlex.join(['dstack', *APPLY])} < this\n{task.text}")
            try:
                if request.upload:
                    check_upload(environ)
            except LabError as error:
                # submitting the run would fail
                sys.stderr.write(f"Note: {error}\n")
            return
        try:
            task = submit_task(request, environ, root)
        except SubmitError as error:
            sys.stderr.write(redact(f"Error: {error}\n"))
            sys.exit(error.exit_code)
    if volume is None:
        sys.stdout.write("Note     no --volume: a new machine would start the run from scratch (docs/REMOTE.md)\n")
    sys.stdout.write(
        f"Watch    dstack ps\nLog      dstack logs {task.run_name}\nStop     dstack stop {task.run_name}\n"
    )
    if upload_hf:
        sys.stdout.write(f"Results  slm-lab pull {task.spec_name}\n")
