"""A whole trial through the lab's own interface, on all cores: a process that does no more."""

import json
import sys
import tempfile
import time
from pathlib import Path

import slm_lab
from bench.rows import ROW_BY_NAME, build_spec


def main() -> None:
    """Run the sessions of a trial; the time is from the call to its result."""
    job = json.loads(Path(sys.argv[1]).read_text())
    overrides = {"meta.max_session": job["sessions"], "env.max_frame": job["frames"]}
    spec = build_spec(ROW_BY_NAME["ppo_cartpole"], overrides=overrides)
    with tempfile.TemporaryDirectory() as data:
        start = time.perf_counter()
        result = slm_lab.run(spec, data)
        seconds = time.perf_counter() - start
    if result.exit_code:
        raise RuntimeError(f"sessions failed: {result.failures}")
    frames = sum(session.frame for session in result.results)
    Path(sys.argv[2]).write_text(json.dumps({"frames": frames, "seconds": seconds}))


if __name__ == "__main__":
    main()
