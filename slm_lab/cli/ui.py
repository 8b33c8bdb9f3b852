"""`slm-lab ui`: the runs in the browser, live."""

import sys
import webbrowser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import RunsDirOption
from slm_lab.lib.errors import LabError
from slm_lab.lib.port import open_port
from slm_lab.results.folder import DATA_DIR

PACKAGES = ("fastapi", "uvicorn")

app = typer.Typer(add_completion=False)


@app.command(
    help="Show the runs in the browser, live: curves, videos, comparisons, searches and experiments.\n\n"
    "The server listens on this machine only. It reads run folders and changes nothing in them but notes and videos. "
    "With --control, anyone with the printed link can also start, stop and resume runs from the page."
)
def ui(
    data_dir: RunsDirOption = DATA_DIR,
    port: Annotated[int, typer.Option(help="Port of the server; 0 for any free one.", min=0, max=65535)] = 8070,
    open_: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    control: Annotated[bool, typer.Option("--control", help="Let the page start, stop and resume runs.")] = False,
) -> None:
    """Entry of the command."""
    with user_errors():
        missing = [name for name in PACKAGES if find_spec(name) is None]
        if missing:
            names = " and ".join(missing)
            raise LabError(f"slm-lab ui needs {names}: run `uv sync --group ui`, or `pip install '.[ui]'`")
        # with --control the page may start the first run
        if not data_dir.is_dir() and not control:
            raise LabError(f"--data-dir {data_dir}: there is no such folder; `slm-lab run` makes one, or give another")
        # loaded only here: they are optional
        serving = import_module("slm_lab.ui.server")
        opened = open_port(serving.HOST, port)
        server, access = serving.build_server(Path(data_dir), control)
        address = serving.write_link(opened, access)
        sys.stdout.write(f"Lab      {address}\nRuns     {data_dir}\nStop     Ctrl-C\n")
        sys.stdout.flush()
        if open_:
            webbrowser.open(address)
        server.run(sockets=[opened])
