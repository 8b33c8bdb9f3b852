"""`slm-lab chaos SPEC_FILE SPEC_NAME --kills 20`: check that kills at random times change no bit of a run."""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from slm_lab.audit.chaos import Chaos
from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import ImportsOption, SetOption
from slm_lab.lib.io import create_run_folder
from slm_lab.lib.log import setup_console
from slm_lab.lib.runtime import import_modules
from slm_lab.spec.loading import load_spec, parse_override

app = typer.Typer(add_completion=False)


@app.command(
    help="Train a spec twice, undisturbed and with SIGKILL at random times, and compare both bit for bit.\n\n"
    "Kills hit the driver, one of its sessions, or all at once; each time train@ resumes the run. Exit code 0: both "
    "end the same; 1: something differs, or a process was left behind."
)
def chaos(
    source: Annotated[str, typer.Argument(metavar="SPEC_FILE")] = "ppo_cartpole",
    name: Annotated[str | None, typer.Argument(metavar="[SPEC_NAME]")] = None,
    kills: Annotated[int, typer.Option(help="Number of kills.", min=1)] = 20,
    set_: SetOption = None,
    seed: Annotated[int, typer.Option(help="Seed of the times and targets of kills.", min=0)] = 0,
    imports: ImportsOption = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Keep both runs here; by default they are deleted if they are the same.")
    ] = None,
) -> None:
    """Entry of the command."""
    setup_console("WARNING")
    out = sys.stdout

    def tell(line: str) -> None:
        out.write(f"{line}\n")
        out.flush()

    modules = tuple(imports or ())
    with user_errors():
        import_modules(modules)
        spec = load_spec(source, name, dict(parse_override(text) for text in set_ or [])).spec
        root = data_dir.resolve() if data_dir is not None else Path(tempfile.gettempdir())
        path = create_run_folder(root, f"chaos_{spec.name}")
        result = Chaos(spec, path, kills, seed, tell, modules).run()
    if len(result.kills) < kills:
        tell(f"The run ended before the other {kills - len(result.kills)} kills")
    lost = sum(kill.num_lost for kill in result.kills)
    total = spec.env.max_frame * spec.meta.max_session
    tell(
        f"{len(result.kills)} kills: {lost:,} of {total:,} frames trained again ({lost / total:.1%}), "
        f"{result.seconds[1]:.1f} s instead of {result.seconds[0]:.1f} s"
    )
    comparison = result.comparison
    counts = f"{comparison.num_row:,} rows and {comparison.num_tensor:,} tensors of {spec.meta.max_session} session(s)"
    if result.num_leftover:
        tell(f"left behind: {result.num_leftover} process(es)")
    if comparison.is_same:
        tell(f"same: {counts}")
    else:
        tell(f"differs ({counts}; there: undisturbed, here: killed)")
        for line in comparison.describe():
            tell(f"  {line}")
    if result.is_same and data_dir is None:
        shutil.rmtree(path, ignore_errors=True)
    else:
        tell(f"Files    {path}")
    sys.exit(0 if result.is_same else 1)
