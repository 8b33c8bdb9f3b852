"""Options that several commands share, and commands as they are shown."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from slm_lab.lib.log import LogFormat

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Set a key by its dotted path, or fill ${KEY}. Repeatable."),
]
SeedOption = Annotated[int | None, typer.Option(help="Shorthand for -s meta.seed=N.", min=0)]
DeviceOption = Annotated[str | None, typer.Option(help="Shorthand for -s meta.device=...")]
ImportsOption = Annotated[
    list[str] | None, typer.Option("--import", metavar="MODULE", help="Import your own module first. Repeatable.")
]
LogLevelOption = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR"], typer.Option(help="Lowest level to log.", case_sensitive=False)
]
LogFormatOption = Annotated[LogFormat, typer.Option(help="Console output as text or JSON lines.")]
ContinueOption = Annotated[
    bool, typer.Option("--continue", help="Resume the run of the same spec in the data folder, or start one.")
]
DataDirOption = Annotated[Path, typer.Option(help="Folder for runs.")]
RunsDirOption = Annotated[Path, typer.Option("--data-dir", "--data-folder", "-d", help="Folder with the runs.")]
RayAddressOption = Annotated[
    str | None,
    typer.Option(metavar="ADDRESS", help="Run sessions on the Ray cluster at HOST:PORT, auto, or local."),
]
RenderOption = Annotated[bool, typer.Option("--render", help="Show the first env in a window.")]
ProfileOption = Annotated[bool, typer.Option("--profile", help="Show the time by phase for each session.")]
EpisodesOption = Annotated[
    int | None, typer.Option(metavar="N", help="Number of episodes; 10 by default.", min=1, rich_help_panel="Play")
]
VideoOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the episodes as FILE.mp4 or FILE.gif.", rich_help_panel="Play"),
]
AtOption = Annotated[
    int | None,
    typer.Option(
        "--at", metavar="FRAME", help="Play the model kept nearest to this frame.", min=0, rich_help_panel="Play"
    ),
]
SessionOption = Annotated[
    int | None,
    typer.Option(metavar="N", help="Play this session; by default the best one.", min=0, rich_help_panel="Play"),
]
SchedulesOption = Annotated[
    Literal["keep", "stretch"] | None,
    typer.Option(help="For a longer run: keep the last value of its schedules, or stretch them to the new end."),
]
KeepOption = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Keep the weights of the N best trials; 3 by default, -1 for all.",
        min=-1,
        rich_help_panel="Search",
    ),
]
ValidateOption = Annotated[
    int,
    typer.Option(metavar="N", help="Afterwards, train the winner with N fresh seeds.", min=0, rich_help_panel="Search"),
]
UploadOption = Annotated[
    bool, typer.Option("--upload-hf", envvar="UPLOAD_HF", help="Upload the run to HF_REPO when it ends.")
]


def list_changes(set_: list[str] | None, seed: int | None, device: str | None) -> list[str]:
    """Changes of the spec, in the form of `-s`."""
    changes = [*(set_ or [])]
    changes += [f"meta.seed={seed}"] if seed is not None else []
    changes += [f"meta.device={device}"] if device is not None else []
    return changes


def write_command(*words: str, imports: Sequence[str] = ()) -> str:
    """A command of the lab to copy into a shell; a run that needed modules needs them again."""
    extra = [word for name in imports for word in ("--import", name)]
    return shlex.join(["slm-lab", *words, *extra])
