"""How to run, as the command line and Python say it: made once, handed on whole."""

from dataclasses import dataclass
from pathlib import Path

from slm_lab.lib.log import LogFormat
from slm_lab.results.folder import DATA_DIR


@dataclass(frozen=True)
class Options:
    """How to run, beside what: none of it changes a result."""

    data_dir: Path = DATA_DIR
    log_level: str = "INFO"
    render: bool = False
    # modules of the user's own, which every process imports
    imports: tuple[str, ...] = ()
    # file for the episodes that enjoy plays
    video: Path | None = None
    # of the console; log files are for people
    log_format: LogFormat = "text"
    # sessions run on this Ray cluster; "local": on one of their own
    ray_address: str | None = None
    # a search keeps the weights of its best trials, -1: of all
    keep: int = 3


DEFAULTS = Options()
