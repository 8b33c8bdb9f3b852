"""`slm-lab run [SPEC_FILE] [SPEC_NAME] [MODE]`: train, continue or replay."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from loguru import logger

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import (
    ContinueOption,
    DataDirOption,
    DeviceOption,
    ImportsOption,
    LogFormatOption,
    LogLevelOption,
    RayAddressOption,
    SeedOption,
    SetOption,
    UploadOption,
    list_changes,
)
from slm_lab.cli.upload import check_upload, upload_run
from slm_lab.experiment.launch import resume, start, start_or_continue, summarize, summarize_training
from slm_lab.experiment.options import Options
from slm_lab.experiment.play import enjoy
from slm_lab.experiment.trial import TrialResult
from slm_lab.lib.errors import LabError, nearest
from slm_lab.lib.log import setup_console
from slm_lab.lib.runtime import import_modules
from slm_lab.lib.unit import format_seconds
from slm_lab.results.doctor import MIN_ROWS, count_rows, diagnose
from slm_lab.results.folder import DATA_DIR
from slm_lab.spec.loading import SUFFIXES, find_bare_file, load_spec, locate, parse_override
from slm_lab.spec.schema import Spec

DEMO = "ppo_cartpole"
MODES = ("dev", "train", "train@DIR", "train@latest", "enjoy@DIR", "search", "search@DIR")

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def split_arguments(arguments: list[str]) -> tuple[str, str | None, str]:
    """File or bare name, spec name, and mode; what is left out takes its default."""
    rest = list(arguments)
    mode = rest.pop() if rest and _is_mode(rest[-1]) else "dev"
    if len(rest) > 2:
        raise LabError(f"unknown mode '{rest[-1]}'{nearest(rest[-1], MODES)} (known: {', '.join(MODES)})")
    if not rest:
        return DEMO, None, mode
    if len(rest) == 2 and Path(rest[0]).suffix not in SUFFIXES and find_bare_file(*rest) is None:
        # a bare name needs no second one, so the second word was meant as the mode
        raise LabError(f"unknown mode '{rest[1]}'{nearest(rest[1], MODES)} (known: {', '.join(MODES)})")
    return rest[0], rest[1] if len(rest) == 2 else None, mode


def _is_mode(text: str) -> bool:
    return text in ("dev", "train") or text.startswith(("train@", "enjoy@"))


@app.command(
    help="Train, continue or replay a spec.\n\n"
    "SPEC_FILE is a file or the bare name of a shipped spec; without it the demo is trained. MODE is dev (one "
    "session, TensorBoard), train (all sessions), train@DIR or train@latest (continue exactly), or enjoy@DIR (play); "
    "search and search@DIR have options of their own: slm-lab run search --help."
)
def run(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[SPEC_FILE] [SPEC_NAME] [MODE]")] = None,
    set_: SetOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    render: Annotated[bool, typer.Option("--render", help="Show the first env in a window.")] = False,
    episodes: Annotated[int, typer.Option(help="Episodes to play in enjoy mode.", min=1)] = 10,
    video: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the episodes of enjoy mode as FILE.mp4 or FILE.gif.")
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Show the time split by phase for each session.")] = False,
    imports: ImportsOption = None,
    log_level: LogLevelOption = "INFO",
    log_format: LogFormatOption = "text",
    data_dir: DataDirOption = DATA_DIR,
    continue_: ContinueOption = False,
    ray_address: RayAddressOption = None,
    upload_hf: UploadOption = False,
) -> None:
    """Entry of the command."""
    setup_console(log_level, log_format)
    options = Options(data_dir, log_level, render, tuple(imports or ()), video, log_format, ray_address)
    with user_errors():
        if ray_address is not None and render:
            raise LabError("--render shows sessions of this process, --ray-address runs them elsewhere; leave one out")
        source, name, mode = split_arguments(arguments or [])
        changes = list_changes(set_, seed, device)
        if video is not None and not mode.startswith("enjoy@"):
            raise LabError(f"--video goes with enjoy@DIR, not with {mode}; while training, set meta.video_frequency")
        if continue_ and "@" in mode:
            raise LabError(f"--continue finds the run by its spec, {mode} names it; leave one out")
        if mode.startswith("enjoy@"):
            # UPLOAD_HF may stand in the environment for all runs, and playing makes none
            _enjoy(mode.removeprefix("enjoy@"), options, episodes)
            return
        if upload_hf:
            check_upload()
        if mode.startswith("train@"):
            if changes:
                raise LabError("a continued run keeps its saved spec; -s, --seed and --device do not go with train@")
            expected = locate(source, name)[1] if len(arguments or []) > 1 else None
            result = resume(mode.removeprefix("train@"), options, expected)
        else:
            import_modules(options.imports)
            begin = start_or_continue if continue_ else start
            result = begin(_load(source, name, changes, mode), options)
    _conclude(result, options, profile)
    sys.exit((upload_run(result.folder) if upload_hf and result.metrics else 0) or result.exit_code)


def _load(source: str, name: str | None, changes: list[str], mode: str) -> Spec:
    loaded = load_spec(source, name, dict(parse_override(text) for text in changes))
    for note in loaded.notes:
        logger.info(f"Spec note: {note}")
    spec = loaded.spec
    if mode == "dev":
        changed = {"max_session": 1, "max_trial": 1}
        if "tensorboard" not in spec.meta.model_fields_set:
            changed["tensorboard"] = True
        spec = spec.replace(meta=changed)
    return spec


def _enjoy(where: str, options: Options, episodes: int) -> None:
    def on_episode(index: int, value: float) -> None:
        logger.info(f"Episode {index + 1}/{episodes}: total_reward {value:.2f}")

    returns = enjoy(where, options, episodes, on_episode)
    sys.stdout.write(f"mean total_reward {sum(returns) / len(returns):.2f} over {len(returns)} episodes\n")
    if options.video is not None:
        sys.stdout.write(f"Video    {options.video}\n")


def _conclude(result: TrialResult, options: Options, profile: bool) -> None:
    """The score, the files and the next commands; the exit code tells whether all is well."""
    out = sys.stdout
    needed = "".join(f" --import {name}" for name in options.imports)
    if result.stop_code:
        out.write(f"\nStopped and saved. Continue with:\n  slm-lab run train@{result.folder}{needed}\n")
        sys.exit(result.stop_code)
    if result.run is not None:
        out.write(f"\nScore    {summarize(result.run)}\n")
        out.writelines(f"         {note}\n" for note in result.run.score_notes)
        if (training := summarize_training(result.run)) is not None:
            out.write(f"Training {training}\n")
    out.write(f"Files    {result.folder}\n")
    out.write(f"Curve    {result.curve}\n")
    if result.report is not None:
        out.write(f"Report   {result.report}\n")
    out.write(_time_split(result, profile))
    out.write(_diagnosis(result))
    out.write(f"Replay   slm-lab run enjoy@{result.folder}{needed}\n")
    if result.failures:
        out.write(
            f"Failed   sessions {sorted(result.failures)}; continue them with slm-lab run train@{result.folder}{needed}"
            "\n"
        )


def _diagnosis(result: TrialResult) -> str:
    """What stands out in the tables, warnings if there are any; nothing where there are no tables."""
    if result.run is None:
        return ""
    findings = diagnose(result.run)
    if findings:
        titles = "; ".join(finding.title for finding in findings if finding.level == findings[0].level)
        return f"Doctor   {titles}: see slm-lab doctor {result.folder}\n"
    return "Doctor   no warnings\n" if count_rows(result.run) >= MIN_ROWS else ""


def _time_split(result: TrialResult, per_session: bool) -> str:
    """How the time was spent, largest share first: over all sessions, or for each."""
    parts = {f"session {session.session}": session.phases for session in result.results}
    if not per_session:
        names = dict.fromkeys(name for phases in parts.values() for name in phases)
        parts = {"": {name: sum(phases.get(name, 0.0) for phases in parts.values()) for name in names}}
    lines = []
    for label, phases in parts.items():
        total = sum(phases.values())
        if not total:
            continue
        shares = ", ".join(
            f"{name} {value / total:.1%}" for name, value in sorted(phases.items(), key=lambda item: -item[1])
        )
        lines.append(f"Time     {f'{label}: ' if label else ''}{format_seconds(total)}: {shares}\n")
    return "".join(lines)
