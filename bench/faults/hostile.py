"""Files from anyone: damaged, hostile, and what they may not do."""

import os
import random
import runpy
import shutil
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.faults.fork import fork, train, train_to_end, wait, wait_usage
from bench.faults.hostile_states import CANARY, write_files
from bench.faults.row import ROOT, Batch, Row, Verdict
from bench.faults.specs import NAME, make_spec
from slm_lab.audit.difference import find_difference
from slm_lab.experiment.checkpoint.state import load_latest, load_state
from slm_lab.experiment.checkpoint.torch_file import load_weights
from slm_lab.lib.errors import CheckpointError, LabError, SpecError
from slm_lab.results.folder import RunFolder, replay_file
from slm_lab.spec.loading import load_spec

MAX_MB = 500
# a child begins with what its parent has in memory, which may be more than the limit where other tests ran before
MARGIN_MB = 100


def own_memory() -> int:
    """Kilobytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") // 1024


MAX_SPEC_SECONDS = 0.1
LOAD_SECONDS = 60.0


# --- checkpoints


def load_hostile(folder: Path, names: tuple[str, ...] = ()) -> Iterator[Verdict]:
    """Load each file in a child of its own, in a folder where its canary would appear."""
    place = folder / "here"
    place.mkdir()
    files = write_files(place)
    before = set(folder.rglob("*"))
    for name, path in files.items():
        if names and name not in names:
            continue
        output = folder.parent / f"{folder.name}.out"
        output.unlink(missing_ok=True)

        def load(path: Path = path, place: Path = place) -> None:
            os.chdir(place)
            (load_weights if path.suffix == ".pt" else load_state)(path)

        try:
            code, usage = wait_usage(fork(load, output), LOAD_SECONDS)
        except TimeoutError as error:
            yield Verdict(name, False, str(error))
            continue
        text = output.read_text()
        found = set(folder.rglob("*")) - before
        if found or Path("/tmp", CANARY).exists():
            problem = f"it made {', '.join(path.name for path in found)}"
        elif code != 1 or not text.startswith("CheckpointError: ") or text.count("\n") != 1:
            problem = f"exit code {code}, no clear line: {text[-200:]}"
        elif usage.ru_maxrss > max(MAX_MB * 1024, own_memory() + MARGIN_MB * 1024):
            problem = f"{usage.ru_maxrss / 1024:.0f} MB of memory"
        else:
            problem = ""
        output.unlink()
        yield Verdict(name, not problem, problem)


def plan_states(quick: bool) -> list[Batch]:
    """All files, or a few."""
    if not quick:
        return [Batch("files", 40, load_hostile)]
    few = (
        "state: a flood of lists",
        "state: tensor of ten gigabytes without any",
        "state: pipe that no one writes to",
        "weights: bytes of ten gigabytes",
        "weights: compressed zeros",
    )
    return [Batch("a few files", len(few), partial(load_hostile, names=few))]


# --- damage


def damage(kind: str, num_position: int, folder: Path) -> Iterator[Verdict]:
    """One bit flipped, then the file cut, at positions spread over a file of a run; the one before must be used."""
    spec = make_spec("DQN", meta={"checkpoint_frequency": 300})
    train_to_end(spec, folder / "whole")
    run = RunFolder(folder / "whole", NAME)
    path = find_file(run, kind)
    data = path.read_bytes()
    draw = random.Random(kind)
    positions = sorted(draw.sample(range(len(data)), num_position))
    for index, position in enumerate(positions):
        flipped = bytearray(data)
        flipped[position] ^= 1 << draw.randrange(8)
        for how, content in (("bit flipped", bytes(flipped)), ("cut", data[:position])):
            path.write_bytes(content)
            # to the end for some of them, since a continued run costs more than a look
            is_run = kind != "model" and how == "bit flipped" and index % 10 == 0
            problem = check_damage(run, kind, path)
            if problem is None and is_run:
                problem = continue_damaged(spec, folder, path)
            yield Verdict(f"{kind}, {how} at byte {position} of {len(data)}", problem is None, problem or "")
    path.write_bytes(data)


def find_file(run: RunFolder, kind: str) -> Path:
    """The file of a run that is damaged."""
    if kind == "checkpoint":
        return run.resume_file(0, 0)
    if kind == "model":
        return run.model_file(0, 0, "best")
    chunks = load_state(run.resume_file(0, 0))["rows"]["memory"]
    prefix = run.replay_prefix(0, 0, "memory")
    # the last one, which the checkpoint before does not need
    return replay_file(prefix, *chunks[-1])


def check_damage(run: RunFolder, kind: str, path: Path) -> str | None:
    """Whether a damaged file is seen; for a checkpoint, whether the one before is there to go on from."""
    try:
        load_state(path)
        return "it was read as if it were whole"
    except CheckpointError as error:
        if path.name not in str(error) or "damaged" not in str(error):
            return f"no clear line: {error}"
    if kind != "checkpoint":
        return None
    content = path.read_bytes()
    state, problems = load_latest(path)
    # where it was put aside
    aside = path.with_name(f"{path.name}.damaged")
    aside.unlink(missing_ok=True)
    path.write_bytes(content)
    if state is None or state["frame"] != 600:
        return "the checkpoint before is not used"
    return None if problems else "no error message"


def continue_damaged(spec: Any, folder: Path, path: Path) -> str | None:
    """Continue a copy of a damaged run; it must tell, and end in the bits of the whole one."""
    copy, clean = folder / "copy", folder / "clean"
    if not clean.exists():
        train_to_end(spec, clean)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder / "whole", copy)
    output = folder / "copy.out"
    output.unlink(missing_ok=True)
    code = wait(fork(lambda: train(spec, copy), output))
    if code:
        return f"the continued run ended with {code}: {output.read_text()[-300:]}"
    if "the checkpoint before it is used" not in output.read_text():
        return "the continued run does not tell"
    return find_difference(clean, copy, NAME)


def plan_damage(quick: bool) -> list[Batch]:
    """100 positions, each flipped and cut, or a few."""
    shares = {"checkpoint": 2} if quick else {"checkpoint": 60, "replay": 20, "model": 20}
    return [Batch(kind, 2 * count, partial(damage, kind, count)) for kind, count in shares.items()]


# --- specs


def read_specs(limit: int | None, folder: Path) -> Iterator[Verdict]:
    """Every hostile document of the tests, read here with a clock beside."""
    cases = runpy.run_path(str(ROOT / "test" / "spec" / "test_hostile.py"))["CASES"]
    # the first file of a process also pays for what is loaded once
    load_spec("ppo_cartpole")
    for name, file, document in cases[:: max(1, len(cases) // limit)] if limit else cases:
        place = folder / "here"
        place.mkdir()
        (folder / "canary.yaml").write_text("modules: {}")
        path = place / file
        path.write_bytes(document if isinstance(document, bytes) else document.encode())
        before = set(folder.rglob("*"))
        seconds, problem = time_refusal(path)
        if set(folder.rglob("*")) != before:
            problem = "it made a file"
        elif not problem and seconds > MAX_SPEC_SECONDS:
            problem = f"{seconds * 1000:.0f} ms"
        shutil.rmtree(place)
        yield Verdict(name, not problem, problem)


def time_refusal(path: Path) -> tuple[float, str]:
    """Processor seconds that a refusal takes, the least of three tries, and what is wrong with it."""
    here = Path.cwd()
    best = float("inf")
    os.chdir(path.parent)
    try:
        for _ in range(3):
            began = time.process_time()
            try:
                load_spec(path)
                return 0.0, "it was taken"
            except SpecError as error:
                best = min(best, time.process_time() - began)
                if not all(line.isprintable() for line in str(error).splitlines()):
                    return best, "the message is not printable"
            except LabError:
                return best, "no error of a spec"
    finally:
        os.chdir(here)
    return best, ""


def plan_specs(quick: bool) -> list[Batch]:
    """All documents, or a few."""
    return [Batch("documents", 5 if quick else 60, partial(read_specs, 5 if quick else None))]


ROWS = (
    Row(
        "corruption",
        "a flipped bit, and a truncated file, at each of 100 positions of checkpoints, replay files and models",
        "every one is detected; the previous checkpoint is used; every tenth run is resumed to the same bits",
        plan_damage,
    ),
    Row(
        "hostile_checkpoint",
        "states with a matching hash, and weights from others: pickle payloads, tensors, headers and strings that lie "
        "about their size, pipes and devices",
        f"one clear line each; nothing runs, nothing is written, no process uses more than {MAX_MB} MB",
        plan_states,
    ),
    Row(
        "hostile_spec",
        "spec files with Python tags, code as values, paths that leave the folder, NUL, megabyte keys, nesting, "
        "billion laughs and long series of beginnings of secrets",
        "nothing runs; each is refused within 100 ms of CPU time with a printable line",
        plan_specs,
        "The time is the minimum of three tries, in CPU time, so that other processes do not count.",
    ),
)
