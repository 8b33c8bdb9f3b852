"""`slm-lab run [SPEC_FILE] [SPEC_NAME] [MODE]`, `slm-lab resume` and `slm-lab enjoy`."""

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer
from loguru import logger

from slm_lab.cli.options import (
    AtOption,
    ContinueOption,
    DataDirOption,
    DeviceOption,
    EpisodesOption,
    ImportsOption,
    KeepOption,
    LogFormatOption,
    LogLevelOption,
    ProfileOption,
    RayAddressOption,
    RenderOption,
    SchedulesOption,
    SeedOption,
    SessionOption,
    SetOption,
    UploadOption,
    ValidateOption,
    VideoOption,
    list_changes,
    write_command,
)
from slm_lab.cli.upload import check_upload, upload_run
from slm_lab.experiment.launch import resume as resume_run
from slm_lab.experiment.launch import start, start_or_continue, summarize, summarize_training
from slm_lab.experiment.options import DEFAULTS, Options
from slm_lab.experiment.play import enjoy as play
from slm_lab.experiment.trial import TrialResult
from slm_lab.lib.errors import LabError, nearest
from slm_lab.lib.log import setup_console
from slm_lab.lib.runtime import import_modules
from slm_lab.lib.unit import format_seconds
from slm_lab.results.conclude import Conclusion
from slm_lab.results.doctor import can_judge
from slm_lab.results.folder import DATA_DIR, open_run_folder
from slm_lab.spec.grid import is_experiment_file
from slm_lab.spec.loading import SUFFIXES, find_bare_file, load_spec, locate, parse_override
from slm_lab.spec.schema import Spec

DEMO = "ppo_cartpole"
MODES = ("dev", "train", "train@DIR", "train@latest", "enjoy@DIR", "search", "search@DIR")
FolderArgument = Annotated[str, typer.Argument(metavar="[DIR]", help="A run folder; by default the latest.")]

app = typer.Typer(add_completion=False)


def split_arguments(arguments: list[str]) -> tuple[str, str | None, str]:
    """File or bare name, spec name, and mode, with defaults for missing ones."""
    words = list(arguments)
    mode = words.pop() if words and _is_mode(words[-1]) else "dev"
    if words and _is_mode(words[0]):
        raise LabError(f"the mode comes last: {write_command('run', *words[1:], words[0])}")
    if len(words) > 2 or (
        # a bare name needs no second one, so the second word was meant as the mode
        len(words) == 2 and Path(words[0]).suffix not in SUFFIXES and find_bare_file(*words) is None
    ):
        raise LabError(f"unknown mode '{words[-1]}'{nearest(words[-1], MODES)} (known: {', '.join(MODES)})")
    return words[0] if words else DEMO, words[1] if len(words) == 2 else None, mode


def _is_mode(text: str) -> bool:
    return text in ("dev", "train", "search") or text.startswith(("train@", "enjoy@", "search@"))


@app.command(
    help="Train a spec; with a mode also search, resume or play.\n\n"
    "SPEC_FILE is a spec file, an experiment file, or the name of a shipped spec; without it, this trains the demo. "
    "MODE is dev (one session, TensorBoard), train (all sessions), search (find better values), train@DIR or "
    "search@DIR (resume exactly; DIR may be latest), or enjoy@DIR (play)."
)
def run(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[SPEC_FILE] [SPEC_NAME] [MODE]")] = None,
    set_: SetOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    continue_: ContinueOption = False,
    render: RenderOption = False,
    profile: ProfileOption = False,
    keep: KeepOption = None,
    validate: ValidateOption = 0,
    schedules: SchedulesOption = None,
    episodes: EpisodesOption = None,
    video: VideoOption = None,
    at: AtOption = None,
    imports: ImportsOption = None,
    log_level: LogLevelOption = "INFO",
    log_format: LogFormatOption = "text",
    data_dir: DataDirOption = DATA_DIR,
    ray_address: RayAddressOption = None,
    upload_hf: UploadOption = False,
) -> None:
    """Train, search, resume or play, depending on the mode."""
    setup_console(log_level, log_format)
    source, name, mode = split_arguments(arguments or [])
    verb, at_sign, where = mode.partition("@")
    if at_sign and not where:
        # such as train@$DIR with a variable that is not set
        raise LabError(f"{mode} names no run; give {mode}DIR or {mode}latest")
    changes = list_changes(set_, seed, device)
    options = Options(
        data_dir,
        log_level,
        render,
        tuple(imports or ()),
        video,
        log_format,
        ray_address,
        DEFAULTS.keep if keep is None else keep,
    )
    if ray_address is not None and render:
        raise LabError("--render needs sessions in this process, --ray-address runs them elsewhere; use only one")
    if video is not None and verb != "enjoy":
        raise LabError(
            f"--video works with enjoy@DIR, not with {mode}; to record while training, set meta.video_frequency"
        )
    if (keep is not None or validate) and verb != "search":
        raise LabError(f"--keep and --validate work with search, not with {mode}")
    if (render or profile) and verb == "search":
        raise LabError("--render and --profile work with train, not with search")
    if (profile or ray_address is not None) and verb == "enjoy":
        raise LabError(f"--profile and --ray-address work with train, not with {mode}")
    if continue_ and where:
        raise LabError(f"--continue finds the run by its spec, {mode} names it; use only one")
    if changes and where and verb == "search":
        raise LabError("a resumed search keeps its saved spec; -s, --seed and --device do not work with search@")
    if changes and verb == "enjoy":
        raise LabError("a trained agent plays with its saved spec; -s, --seed and --device do not work with enjoy@")
    if schedules is not None and not (verb == "train" and where and changes):
        raise LabError("--schedules is for a run that grows: slm-lab resume DIR -s env.max_frame=N --schedules keep")
    if at is not None and verb != "enjoy":
        raise LabError(f"--at works with enjoy@DIR, not with {mode}")
    if episodes is not None and verb != "enjoy":
        raise LabError(
            f"--episodes works with enjoy@DIR, not with {mode}; set the length of a training by env.max_frame"
        )
    if verb == "enjoy":
        # UPLOAD_HF may be set for all runs, and playing makes none
        _enjoy(where, options, episodes, at)
        return
    if upload_hf:
        check_upload()
    # with a named run, the spec only confirms which one is meant
    expected = locate(source, name)[1] if where and len(arguments or []) > 1 else None
    import_modules(options.imports)
    if verb == "search":
        # loaded only here: importing the sampler takes a second
        searches = import_module("slm_lab.experiment.search_run")
        if where:
            found = searches.resume_search(where, options, expected)
        else:
            search = searches.start_or_continue_search if continue_ else searches.start_search
            found = search(_load(source, name, changes, mode), options)
        conclude = import_module("slm_lab.cli.search").conclude
        sys.exit(conclude(found, options, validate, continue_, upload_hf))
    if not where and is_experiment_file(source):
        if name is not None or (arguments and arguments[-1] == "dev"):
            command = write_command("run", source, "train")
            raise LabError(f"{source} is an experiment, which is run as a whole: {command}")
        if render or profile:
            raise LabError(f"--render and --profile work with a spec, and {source} is an experiment; leave them out")
        # loaded only here: importing the statistics takes a second
        grids, show = (import_module(f"slm_lab.{place}") for place in ("experiment.grid_run", "cli.experiment"))
        given = dict(parse_override(text) for text in changes)
        grid = grids.run_experiment(Path(source), options, given)
        code = show.conclude(grid, source, options.imports)
        uploads = [upload_run(one.path) for one in grid.runs.values()] if upload_hf and not grid.stop_code else []
        sys.exit(max(uploads, default=0) or code)
    if where:
        result = resume_run(where, options, expected, dict(parse_override(text) for text in changes), schedules)
    else:
        begin = start_or_continue if continue_ else start
        result = begin(_load(source, name, changes, mode), options)
    _conclude(result, options, profile)
    sys.exit((upload_run(result.folder) if upload_hf and result.metrics else 0) or result.exit_code)


@app.command(
    help="Resume a run or a search exactly, from its last checkpoints; a finished one prints its result.\n\n"
    "A run can grow: -s env.max_frame=N trains longer, -s meta.max_session=N adds sessions."
)
def resume(
    folder: FolderArgument = "latest",
    set_: SetOption = None,
    schedules: SchedulesOption = None,
    render: RenderOption = False,
    profile: ProfileOption = False,
    keep: KeepOption = None,
    validate: ValidateOption = 0,
    imports: ImportsOption = None,
    log_level: LogLevelOption = "INFO",
    log_format: LogFormatOption = "text",
    data_dir: DataDirOption = DATA_DIR,
    ray_address: RayAddressOption = None,
    upload_hf: UploadOption = False,
) -> None:
    """`run train@DIR`, or `run search@DIR` for a search."""
    # apart from the folder, every option above is also one of `run`
    options = {name: value for name, value in locals().items() if name != "folder"}
    import_modules(imports or ())
    found = open_run_folder(folder, data_dir)[0]
    verb = "search" if found.study_file.exists() else "train"
    run([f"{verb}@{found.path}"], **options)


@app.command(help="Play episodes with the best agent of a run, without exploration; the run stays unchanged.")
def enjoy(
    folder: FolderArgument = "latest",
    episodes: EpisodesOption = None,
    render: RenderOption = False,
    video: VideoOption = None,
    at: AtOption = None,
    session: SessionOption = None,
    imports: ImportsOption = None,
    log_level: LogLevelOption = "INFO",
    log_format: LogFormatOption = "text",
    data_dir: DataDirOption = DATA_DIR,
) -> None:
    """`run enjoy@DIR`."""
    setup_console(log_level, log_format)
    options = Options(data_dir, log_level, render, tuple(imports or ()), video, log_format)
    _enjoy(folder, options, episodes, at, session)


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


def _enjoy(where: str, options: Options, episodes: int | None, at: int | None, session: int | None = None) -> None:
    num = episodes or 10

    def on_episode(index: int, value: float) -> None:
        logger.info(f"Episode {index + 1}/{num}: total_reward {value:.2f}")

    returns = play(where, options, num, on_episode, at, session)
    sys.stdout.write(f"mean total_reward {sum(returns) / num:.2f} over {num} episode{'s' if num > 1 else ''}\n")
    if options.video is not None:
        sys.stdout.write(f"Video    {options.video}\n")


def _conclude(result: TrialResult, options: Options, profile: bool) -> None:
    """Write the score, the files and the next commands."""
    out = sys.stdout
    resume = write_command("run", f"train@{result.folder}", imports=options.imports)
    if result.stop_code:
        out.write(f"\nStopped and saved. Resume with:\n  {resume}\n")
        sys.exit(result.stop_code)
    if result.run is not None:
        out.write(f"\nScore    {summarize(result.run)}\n")
        out.writelines(f"         {note}\n" for note in result.run.score_notes)
        if (training := summarize_training(result.run)) is not None:
            out.write(f"Training {training}\n")
        if (solved := result.run.solved) is not None:
            out.write(f"Solved   {solved}\n")
    out.write(f"Files    {result.folder}\n")
    if result.curve.exists():
        out.write(f"Curve    {result.curve}\n")
    if result.report is not None:
        out.write(f"Report   {result.report}\n")
    out.write(_time_split(result, profile))
    out.write(_doctor_line(result.conclusion))
    if result.has_model:
        out.write(f"Replay   {write_command('run', f'enjoy@{result.folder}', imports=options.imports)}\n")
    if result.failures:
        out.write(f"Failed   sessions {sorted(result.failures)}; resume them with {resume}\n")


def _doctor_line(conclusion: Conclusion | None) -> str:
    """What stands out in the tables, warnings if there are any; nothing where there are no tables."""
    if conclusion is None:
        return ""
    symptoms = conclusion.symptoms
    if symptoms:
        titles = "; ".join(symptom.title for symptom in symptoms if symptom.level == symptoms[0].level)
        return f"Doctor   {titles}: see {write_command('doctor', str(conclusion.run.path))}\n"
    return "Doctor   no warnings\n" if can_judge(conclusion.run) else ""


def _time_split(result: TrialResult, per_session: bool) -> str:
    """Time by phase, largest first: over all sessions, or for each."""
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
