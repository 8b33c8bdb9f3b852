"""Tags and a note on a run, in a file of their own in its folder."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from slm_lab.lib.io import read_text, write_json

NAME = "notes.json"
MAX_BYTES = 100_000
Tag = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=40, pattern=r"^[^\x00-\x1f,]+$")]


class Notes(BaseModel):
    """What a person has written on a run."""

    model_config = ConfigDict(extra="ignore")

    tags: list[Tag] = Field(default_factory=list, max_length=20)
    note: str = Field("", max_length=20_000)


def read_notes(folder: Path) -> Notes:
    """The notes on a run; empty where there are none, or they cannot be read."""
    path = folder / NAME
    if path.is_symlink():
        return Notes()
    try:
        return Notes.model_validate_json(read_text(path, MAX_BYTES))
    except (OSError, ValidationError, UnicodeDecodeError):
        return Notes()


def write_notes(folder: Path, notes: Notes) -> None:
    """Write the notes on a run, without repeated tags."""
    write_json(folder / NAME, {"tags": list(dict.fromkeys(notes.tags)), "note": notes.note})
