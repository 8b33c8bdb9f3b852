"""`slm-lab collect DIR -o FILE`: steps of a trained agent, for BC and offline learning."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import AtOption, DataDirOption, ImportsOption
from slm_lab.experiment.collect import Format
from slm_lab.experiment.collect import collect as collect_steps
from slm_lab.experiment.options import Options
from slm_lab.lib.log import setup_console
from slm_lab.results.folder import DATA_DIR

app = typer.Typer(add_completion=False)


@app.command(help="Play with a trained agent and write its steps to a file, for BC, IQL and TD3BC to learn from.")
def collect(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="A run folder or its name.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The file, *.safetensors, or a Minari id.")
    ],
    frames: Annotated[int, typer.Option(help="Steps to write.", min=1)] = 50_000,
    deterministic: Annotated[bool, typer.Option("--deterministic", help="Play without exploring.")] = False,
    num_envs: Annotated[int, typer.Option(help="Envs to play in at once.", min=1)] = 8,
    format: Annotated[Format, typer.Option(help="A safetensors file, or a local Minari dataset.")] = "safetensors",
    at: AtOption = None,
    imports: ImportsOption = None,
    data_dir: DataDirOption = DATA_DIR,
) -> None:
    """Entry of the command."""
    setup_console("INFO")
    with user_errors():
        options = Options(data_dir, imports=tuple(imports or ()))
        done = collect_steps(folder, output, options, frames, num_envs, deterministic, at, format=format)
        mean = f", mean return {np.mean(done.returns):.2f}" if done.returns else ""
        sys.stdout.write(f"{done.num_step:,} steps, {len(done.returns)} episodes{mean}\n")
        learn = shlex.join(["-s", f"agent.algorithm.data={done.path}"])
        sys.stdout.write(f"Steps    {done.path}\nLearn    {learn}\n")
