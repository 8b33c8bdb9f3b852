"""The run card: a README.md with the results of a shared run and the commands to reproduce it."""

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from slm_lab.lib.data import Document
from slm_lab.lib.io import dump_yaml
from slm_lab.lib.secret import redact
from slm_lab.results.run import Run, look_up
from slm_lab.share.manifest import Summary
from slm_lab.share.run_files import is_checkpoint, is_model

_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|!~$&])")
_CURVES = ("trial_graph_mean_returns_ma_vs_frames.png", "trial_graph_mean_returns_vs_frames.png")


def write_card(run: Run, summary: Summary, paths: Sequence[str]) -> str:
    """The card as Markdown. It names no repo, so it stays correct when the run is copied."""
    folder = run.path.resolve().name
    parts = [
        _front_matter(run),
        f"# {to_plain(run.label)} on {to_plain(run.env_name)}",
        describe_score(run, summary),
        _pictures(paths, run),
        describe_sessions(run),
        _commands(run, folder, paths, summary),
        describe_origin(run),
        _files(paths),
    ]
    return redact("\n\n".join(part for part in parts if part) + "\n")


def list_tags(run: Run) -> list[str]:
    """Tags as the hub spells them."""
    words = ["reinforcement-learning", "deep-reinforcement-learning", "slm-lab", run.label, run.env_name]
    tags = [tag for word in words if (tag := re.sub(r"[^a-z0-9.+-]+", "-", word.lower()).strip("-"))]
    return list(dict.fromkeys(tags))


def _front_matter(run: Run) -> str:
    data = {"pretty_name": f"{run.label} on {run.env_name}", "tags": list_tags(run)}
    return f"---\n{dump_yaml(data)}---"


def describe_score(run: Run, summary: Summary) -> str:
    """The score with its interval and what it means, as a paragraph."""
    spread = run.spread
    if spread is None:
        return "No score: no episode has ended."
    text = f"**Score {spread.mean:.2f}**"
    if not math.isnan(spread.low):
        text += f", 95 % interval [{spread.low:.2f}, {spread.high:.2f}], interquartile mean {spread.iqm:.2f}"
    count = len(spread.values)
    text += f", {count} session{'s' if count > 1 else ''} of {run.frame:,} frames ({run.score_meaning})."
    text += "".join(f" {note[0].upper()}{note[1:]}." for note in run.score_notes)
    if summary.kind == "search":
        text += f" This is trial {run.trial}, the best of a search, and the score by which it was chosen."
    if not summary.is_complete:
        text += " The run is not complete: some of its sessions have not ended, or failed."
    if (baseline := run.random_return) is not None:
        text += f" Random play has {baseline:.2f}."
    return text


def _pictures(paths: Sequence[str], run: Run) -> str:
    lines = []
    if (curve := find_curve(run, paths)) is not None:
        lines.append(f"![Learning curve: mean and spread of the sessions]({quote(curve)})")
    if (video := find_video(paths)) is not None:
        lines.append(f"[Video of an episode]({quote(video)})")
    return "\n\n".join(lines)


def find_curve(run: Run, paths: Sequence[str]) -> str | None:
    """The learning curve of the trial."""
    curves = (f"graph/{run.name}_t{run.trial}_{name}" for name in _CURVES)
    return next((curve for curve in curves if curve in paths), None)


def find_video(paths: Sequence[str], suffix: str = "") -> str | None:
    """The latest video, which shows the longest trained agent."""
    videos = [path for path in paths if path.startswith("video/") and path.endswith(suffix)]
    return max(videos, key=lambda path: [int(number) for number in re.findall(r"\d+", path)], default=None)


def describe_sessions(run: Run) -> str:
    """The score of every session, as a table."""
    rows = ["| session | score | total_reward_ma (mean of the last 100 checkpoints) |", "|--:|--:|--:|"]
    averages = run.session_ma
    for session, score in run.session_scores.items():
        rows.append(f"| {session} | {_number(score)} | {_number(averages[session])} |")
    note = f"\n\nFailed sessions: {', '.join(map(str, run.failed))}." if run.failed else ""
    return "\n".join(rows) + note


def _commands(run: Run, folder: str, paths: Sequence[str], summary: Summary) -> str:
    imports = run.provenance.get("imports")
    extra = [word for module in imports for word in ("--import", str(module))] if isinstance(imports, list) else []
    place = f"data/{folder}"
    spec = find_spec(run, paths)
    lines = [(f"slm-lab pull {shlex.quote(folder)}", "fetch it; HF_REPO is the repo that this page is in")]
    if spec is not None:
        words = ["slm-lab", "run", f"{place}/{spec}", run.name, "train", *extra]
        lines.append((shlex.join(words), "train it again"))
    if any(map(is_model, paths)):
        lines.append((shlex.join(["slm-lab", "run", f"enjoy@{place}", *extra]), "play with the best agent"))
    if any(map(is_checkpoint, paths)):
        mode = "search" if summary.kind == "search" else "train"
        lines.append((shlex.join(["slm-lab", "run", f"{mode}@{place}", *extra]), "resume it"))
    lines.append((shlex.join(["slm-lab", "report", place]), "all curves and metrics as a page"))
    body = "\n".join(f"{command}   # {remark}" for command, remark in lines)
    link = f"\n\nThe spec, with all its defaults: [{to_plain(spec)}]({quote(spec)})." if spec is not None else ""
    return f"## Have it again\n\n```bash\n{body}\n```{link}"


def find_spec(run: Run, paths: Sequence[str]) -> str | None:
    """The spec of the trial, which reproduces the run."""
    for stem in (f"{run.name}_t{run.trial}", run.name):
        for suffix in (".yaml", ".json"):
            if (path := f"{stem}_spec{suffix}") in paths:
                return path
    return None


def describe_origin(run: Run) -> str:
    """Seed, command, commit, versions and machine, as a table."""
    facts: Document = {"seed": look_up(run.spec, "meta", "seed")}
    if isinstance(command := run.provenance.get("command"), list):
        facts["command"] = shlex.join(["slm-lab", *map(str, command[1:])])
    facts["commit"] = run.provenance.get("git_sha")
    for name in ("versions", "machine"):
        if isinstance(given := run.provenance.get(name), Mapping):
            facts[name] = ", ".join(f"{key} {value}" for key, value in given.items())
    rows = [f"| {name} | {to_plain(value)} |" for name, value in facts.items() if value is not None]
    return "\n".join(["## Where it comes from", "", "| | |", "|---|---|", *rows]) if rows else ""


def _files(paths: Sequence[str]) -> str:
    more = "" if any(map(is_checkpoint, paths)) else " Files to resume the run from are not part of it."
    return f"`manifest.json` has the SHA-256 of every file; `slm-lab pull` checks them.{more}"


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def to_plain(value: object) -> str:
    """Text with Markdown escaped: names come from specs of others."""
    return _MARKUP.sub(r"\\\1", " ".join(str(value).split()))
