"""When the lab has made its first env step: a process that does no more."""

import json
import sys
import tempfile
import time
from pathlib import Path

import slm_lab
from slm_lab.experiment.control import Session
from slm_lab.results.folder import RunFolder


def main() -> None:
    """Load a spec, start its session, stop after one step."""
    spec = slm_lab.load("ppo_cartpole")
    asked: list[float] = []

    def should_stop() -> bool:
        # asked before each step
        asked.append(time.time())
        return len(asked) > 1

    with tempfile.TemporaryDirectory() as data:
        Session(spec, RunFolder(Path(data), spec.name), 0, 0, lambda progress: None, should_stop).run()
    Path(sys.argv[2]).write_text(json.dumps({"at": asked[1]}))


if __name__ == "__main__":
    main()
