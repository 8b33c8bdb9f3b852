"""Options of a run, from the command line or Python."""

from dataclasses import dataclass
from pathlib import Path

from slm_lab.lib.log import LogFormat
from slm_lab.results.folder import DATA_DIR


@dataclass(frozen=True)
class Options:
    """How to run a spec; no option affects results."""

    data_dir: Path = DATA_DIR
    log_level: str = "INFO"
    render: bool = False
    # the user's modules, which every process imports
    imports: tuple[str, ...] = ()
    # file for the video that enjoy writes
    video: Path | None = None
    # of the console; log files are always text
    log_format: LogFormat = "text"
    # Ray cluster for the sessions; "local" starts one on this machine
    ray_address: str | None = None
    # a search keeps the weights of this many of its best trials; -1 keeps all
    keep: int = 3


DEFAULTS = Options()
