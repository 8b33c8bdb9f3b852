"""Runs of the published SLM-Lab at a store: they have no manifest, so one is built from the store's listing."""

import json
import math
import re
from dataclasses import replace
from typing import Any

from slm_lab.lib.errors import UnreadableError
from slm_lab.results.run import look_up, name_algorithm
from slm_lab.share.manifest import MAX_FILES, MAX_NUMBER, Manifest, Summary, check_files
from slm_lab.share.run_files import belongs, is_page
from slm_lab.share.store import DATA, Store, TooLargeError
from slm_lab.spec.reader import printable

# of a spec or of a file of metrics
MAX_TEXT = 2_000_000
_SPEC = re.compile(r"(?P<name>[^/]+)_spec\.json")
_TABLE = re.compile(r"info/[^/]+_t0_s\d+_session_df_train\.csv")


def describe_published(store: Store, name: str, to_fetch: bool) -> Manifest | None:
    """A manifest for a folder uploaded by the published lab; None for any other folder.

    For a download it has the store's hashes; otherwise the results of the run.
    """
    lead = f"{DATA}/{name}/"
    files = []
    for stored in store.list_files(f"{DATA}/{name}", with_hashes=to_fetch):
        path = stored.path.removeprefix(lead)
        if belongs(path, with_checkpoints=False) and not is_page(path):
            files.append(replace(stored, path=path))
        if len(files) > MAX_FILES:
            break
    check_files(name, files)
    paths = [file.path for file in files]
    specs = sorted((match["name"] for path in paths if (match := _SPEC.fullmatch(path))), key=len)
    # with a spec of this lab it is an upload of this lab's that was cut
    if not specs or any(path.endswith("_spec.yaml") for path in paths):
        return None
    if to_fetch:
        summary = Summary(specs[0], "", "", "train", True, 0, ())
    else:
        summary = _summarize(store, lead, specs[0], sum(_TABLE.fullmatch(path) is not None for path in paths))
    return Manifest(name, "", summary, tuple(files))


def _summarize(store: Store, lead: str, spec_name: str, num_session: int) -> Summary:
    """The results of the run, as far as its files have them."""
    spec = _read(store, f"{lead}{spec_name}_spec.json")
    metrics = _read(store, f"{lead}{spec_name}_t0_trial_metrics_scalar.json")
    score, frame = (look_up(metrics, key) for key in ("total_reward_ma", "frame"))
    is_known = isinstance(score, (int, float)) and math.isfinite(score)
    return Summary(
        printable(spec_name),
        printable(name_algorithm(spec)),
        printable(str(look_up(spec, "env", "name") or "unknown env")),
        "train",
        bool(metrics),
        int(frame) if isinstance(frame, (int, float)) and 0 <= frame <= MAX_NUMBER else 0,
        # their mean is all that is written in one place
        (float(score),) * num_session if is_known else (),
    )


def _read(store: Store, path: str) -> Any:
    """A JSON file; None if it cannot be used, since the run can be downloaded without it."""
    try:
        return json.loads(store.read(path, MAX_TEXT) or b"null")
    except (TooLargeError, UnreadableError, ValueError, RecursionError):
        return None
