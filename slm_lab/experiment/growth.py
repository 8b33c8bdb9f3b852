"""Growing runs: more frames or sessions for an existing run, without a change to its past."""

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from slm_lab.lib.data import Document, ReadOnlyDocument
from slm_lab.lib.errors import RunFolderError, SpecError, nearest
from slm_lab.lib.io import write_json
from slm_lab.results.folder import RunFolder, is_running, save_spec
from slm_lab.spec.loading import dump_spec, flatten_spec, load_spec
from slm_lab.spec.reader import read_document
from slm_lab.spec.schema import SINKS, Spec

# schedules that end with the run keep their last value, or are stretched to the end of the longer run
Schedules = Literal["keep", "stretch"]
# keys that may only grow, and keys that do not affect what was trained
GROWING = ("env.max_frame", "meta.max_session")
FREE = (
    "env.num_workers",
    "env.step_timeout",
    "meta.checkpoint_frequency",
    "meta.eval_frequency",
    "meta.final_eval",
    "meta.keep_checkpoints",
    "meta.stop",
    "meta.video_frequency",
    *(f"meta.{key}" for key in SINKS),
)


def grow(folder: RunFolder, saved: Spec, changes: ReadOnlyDocument, schedules: Schedules | None) -> Spec:
    """The spec of a longer run; an error if a change would affect its past."""
    known = flatten_spec(dump_spec(saved)[saved.name])
    for key in changes:
        if not _may_change(key):
            hint = "" if key in known else nearest(key, (*GROWING, *FREE))
            raise SpecError(
                f"-s {key}: a resumed run keeps what it was trained with{hint}; it can grow by "
                f"{' and '.join(GROWING)}. For anything else start a new run; -s agent.init_from={folder.path} starts "
                "it with these weights"
            )
    overrides: Document = dict(changes)
    max_frame = overrides.get("env.max_frame", saved.env.max_frame)
    if max_frame != saved.env.max_frame and saved.meta.eval_frequency is None:
        # by default it depends on the length of the run
        overrides.setdefault("meta.eval_frequency", saved.eval_every)
    ends = list(find_schedule_ends(known, saved.env.max_frame)) if max_frame != saved.env.max_frame else []
    if ends and schedules is None:
        raise SpecError(
            f"-s env.max_frame={max_frame}: {', '.join(ends)} end(s) with the run, at frame {saved.env.max_frame:,}; "
            "choose --schedules keep (their last value stays) or --schedules stretch (they end at the new last "
            "frame)"
        )
    if schedules == "stretch":
        overrides |= dict.fromkeys(ends, max_frame)
    grown = load_spec(folder.spec_file, folder.name, overrides, extend_name=False).spec
    new = flatten_spec(dump_spec(grown)[grown.name])
    for key in GROWING:
        if new[key] < known[key]:
            raise SpecError(f"-s {key}: {folder.path} has {known[key]:,}, and {new[key]:,} is less; it can only grow")
    return grown


def save_growth(folder: RunFolder, saved: Spec, grown: Spec, schedules: Schedules | None) -> None:
    """Write the new spec of a run, and record the old length in its provenance."""
    if is_running(folder.path):
        raise RunFolderError(f"{folder.path} is running; stop it first, then it can grow")
    facts = read_document(folder.provenance_file) if folder.provenance_file.exists() else {}
    before = {"max_frame": saved.env.max_frame, "max_session": saved.meta.max_session, "schedules": schedules}
    write_json(folder.provenance_file, {**facts, "grown_from": [*facts.get("grown_from", []), before]})
    save_spec(folder.spec_file, grown)


def find_schedule_ends(flat: ReadOnlyDocument, max_frame: int) -> Iterator[str]:
    """Keys of schedules that end at the end of the run."""
    for path, value in flat.items():
        place, _, key = path.rpartition(".")
        is_end = key == "end_step" or path.endswith(("lr_scheduler_spec.frame", "entropy_anneal.frames"))
        if is_end and value == max_frame and flat.get(f"{place}.name") != "no_decay":
            yield path


def to_comparable(value: Any) -> Any:
    """A spec without the keys that may differ when a run grows, perhaps with a later version of the lab.

    Schedules may end later. A later version may have new keys, which are null or empty unless they are used.
    """
    if not isinstance(value, Mapping):
        return value
    ends = {"end_step", "frames"} | ({"frame"} if str(value.get("name")).startswith("LinearTo") else set())
    return {key: to_comparable(item) for key, item in value.items() if key not in ends and item not in (None, [], {})}


def _may_change(key: str) -> bool:
    return key in GROWING or any(key == free or key.startswith(f"{free}.") for free in FREE)
