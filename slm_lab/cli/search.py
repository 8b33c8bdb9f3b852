"""`slm-lab run [SPEC_FILE] [SPEC_NAME] search`: find better values, and prove them."""

import sys
from typing import Annotated

import typer
from loguru import logger

from slm_lab.cli.failure import user_errors
from slm_lab.cli.main import is_search
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
from slm_lab.cli.run import DEMO
from slm_lab.cli.upload import check_upload, upload_run
from slm_lab.experiment.launch import summarize
from slm_lab.experiment.options import Options
from slm_lab.experiment.search_result import SearchResult
from slm_lab.experiment.search_run import resume_search, start_or_continue_search, start_search, validate
from slm_lab.experiment.search_view import show_values
from slm_lab.lib.errors import LabError
from slm_lab.lib.log import setup_console
from slm_lab.lib.runtime import import_modules
from slm_lab.results.folder import DATA_DIR
from slm_lab.spec.loading import load_spec, locate, parse_override

app = typer.Typer(add_completion=False, rich_markup_mode=None)
NUM_SHOWN = 5


@app.command(
    help="Search a spec: train it with other values, stop weak trials early, keep the best.\n\n"
    "MODE is search, or search@DIR or search@latest to go on with one. What is searched is in the spec's `search` "
    "section, how many trials in meta.max_trial, early stopping in meta.search_scheduler."
)
def run(
    arguments: Annotated[list[str], typer.Argument(metavar="[SPEC_FILE] [SPEC_NAME] search")],
    set_: SetOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    keep: Annotated[int, typer.Option(help="Keep the weights of the N best trials; -1: of all.", min=-1)] = 3,
    validate_: Annotated[
        int, typer.Option("--validate", metavar="N", help="Then train the winner with N fresh seeds.", min=0)
    ] = 0,
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
    options = Options(
        data_dir, log_level, imports=tuple(imports or ()), log_format=log_format, ray_address=ray_address, keep=keep
    )
    with user_errors():
        *names, mode = arguments
        if mode != "search" and not mode.startswith("search@"):
            # false sorts before true
            ordered = sorted(arguments, key=lambda word: is_search([word]))
            raise LabError(f"the mode comes last: slm-lab run {' '.join(ordered)}")
        if len(names) > 2:
            raise LabError(f"a search takes a file and the name of a spec in it, got {' '.join(names)}")
        changes = list_changes(set_, seed, device)
        if continue_ and mode != "search":
            raise LabError(f"--continue finds the search by its spec, {mode} names it; leave one out")
        if upload_hf:
            check_upload()
        if mode.startswith("search@"):
            if changes:
                raise LabError(
                    "a continued search keeps its saved spec; -s, --seed and --device do not go with search@"
                )
            expected = locate(names[0], names[1] if len(names) > 1 else None)[1] if names else None
            result = resume_search(mode.removeprefix("search@"), options, expected)
        else:
            import_modules(options.imports)
            source, name = (names[0] if names else DEMO), (names[1] if len(names) > 1 else None)
            loaded = load_spec(source, name, dict(parse_override(text) for text in changes))
            for note in loaded.notes:
                logger.info(f"Spec note: {note}")
            begin = start_or_continue_search if continue_ else start_search
            result = begin(loaded.spec, options)
        _conclude(result)
        code = result.exit_code
        if upload_hf and not code:
            code = upload_run(result.folder)
        if validate_ and not result.exit_code:
            code = _validate(result, validate_, options, continue_, upload_hf) or code
    sys.exit(code)


def _conclude(result: SearchResult) -> None:
    """The ranking, the files and the next commands."""
    out = sys.stdout
    early, failed = result.count("stopped"), result.count("failed")
    done = result.count("done")
    out.write(f"\nTrials   {len(result.rows)}: {done} done, {early} stopped early, {failed} failed\n")
    for row in [row for row in result.rows if row.state == "done"][:NUM_SHOWN]:
        out.write(f"         trial {row.trial}: {row.score:.2f}  {show_values(row.values)}\n")
    for row in [row for row in result.rows if row.state == "failed"][:NUM_SHOWN]:
        out.write(f"         trial {row.trial} failed: {row.reason}\n")
    if result.importance:
        told = ", ".join(f"{path.rpartition('.')[2]} {share:.0%}" for path, share in result.importance.items())
        out.write(f"Explains {told} of the ranking\n")
    out.write(f"Files    {result.folder}\n")
    for graph in result.graphs[:1]:
        out.write(f"Graph    {graph}\n")
    if result.report is not None:
        out.write(f"Report   {result.report}\n")
    if result.stop_code:
        out.write(f"\nStopped and saved. Continue with:\n  slm-lab run search@{result.folder}\n")
    elif result.best_spec is not None:
        out.write(f"Best     {result.best_spec}\n")
        out.write(f"Prove it slm-lab run {result.best_spec} train --seed {result.seed + 1}\n")
    else:
        out.write("Best     none: no trial is done\n")


def _validate(result: SearchResult, num_session: int, options: Options, is_continued: bool, upload_hf: bool) -> int:
    """Train the winner with fresh seeds and set its score beside that of the search; the exit code."""
    trained = validate(result, num_session, options, is_continued)
    if trained.exit_code or result.best is None or trained.run is None:
        sys.stdout.write(f"\nNot proved yet. Continue with:\n  slm-lab run train@{trained.folder}\n")
        return trained.exit_code
    sys.stdout.write(
        f"\nSearch   {result.best.score:.2f} (trial {result.best.trial}, whose seeds it was chosen by)\n"
        f"Proved   {summarize(trained.run)}\nFiles    {trained.folder}\n"
    )
    return upload_run(trained.folder) if upload_hf else 0
