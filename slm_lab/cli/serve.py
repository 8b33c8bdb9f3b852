"""`slm-lab serve agent.slm`: a trained agent as an HTTP service."""

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import DataDirOption, ImportsOption
from slm_lab.deploy.loading import load
from slm_lab.lib.errors import LabError
from slm_lab.lib.log import setup_console
from slm_lab.lib.runtime import import_modules
from slm_lab.results.folder import DATA_DIR

app = typer.Typer(add_completion=False)


@app.command(help="Serve a trained agent over HTTP: POST /act, GET /health, /contract and /openapi.json.")
def serve(
    where: Annotated[str, typer.Argument(metavar="AGENT", help="An .slm file, or a run folder or its name.")],
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on.", min=1, max=65535)] = 8000,
    device: Annotated[str, typer.Option(help="Where to compute: cpu, cuda or cuda:N.")] = "cpu",
    max_batch: Annotated[int, typer.Option(help="Most observations to compute at once.", min=1)] = 1024,
    max_body: Annotated[int, typer.Option(metavar="BYTES", help="Largest request body.", min=1)] = 1_000_000,
    max_wait: Annotated[int, typer.Option(help="Most requests that may wait; more are refused.", min=1)] = 2048,
    max_session: Annotated[int, typer.Option(help="Most sessions to keep, for recurrent agents.", min=1)] = 10_000,
    session_seconds: Annotated[float, typer.Option(help="Seconds after which an unused session ends.", min=0)] = 600.0,
    rate: Annotated[float, typer.Option(help="Most requests per second of one client; 0: no limit.", min=0)] = 0.0,
    drain_seconds: Annotated[float, typer.Option(help="Seconds to answer open requests when stopped.", min=0)] = 30.0,
    imports: ImportsOption = None,
    data_dir: DataDirOption = DATA_DIR,
) -> None:
    """Entry of the command."""
    with user_errors():
        setup_console("INFO")
        import_modules(imports or ())
        try:
            server = import_module("slm_lab.deploy.server")
        except ModuleNotFoundError as error:
            if error.name not in ("fastapi", "uvicorn"):
                raise
            raise LabError(
                f"serve needs the package '{error.name}', which is not installed; install it with: "
                "pip install '.[serve]'"
            ) from None
        limits = server.Limits(max_body, max_batch, max_wait, max_session, session_seconds, rate, drain_seconds)
        server.serve(load(where, Path(data_dir), device=device), host, port, limits)
