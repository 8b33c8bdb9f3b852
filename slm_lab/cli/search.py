"""`slm-lab search [SPEC_FILE] [SPEC_NAME]`: find better values, and validate them."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from slm_lab.cli.options import (
    ContinueOption,
    DataDirOption,
    DeviceOption,
    ImportsOption,
    KeepOption,
    LogFormatOption,
    LogLevelOption,
    RayAddressOption,
    SeedOption,
    SetOption,
    UploadOption,
    ValidateOption,
    write_command,
)
from slm_lab.cli.run import run
from slm_lab.cli.upload import upload_run
from slm_lab.experiment.launch import summarize
from slm_lab.experiment.options import Options
from slm_lab.experiment.search_result import SearchResult
from slm_lab.experiment.search_run import validate
from slm_lab.experiment.search_view import show_values
from slm_lab.results.folder import DATA_DIR

NUM_SHOWN = 5
app = typer.Typer(add_completion=False)


@app.command(
    help="Search for better values: train a spec with different ones, stop weak trials early, keep the best.\n\n"
    "The `search` section of the spec defines the values, meta.max_trial the number of trials, meta.search_scheduler "
    "early stopping. The same as slm-lab run SPEC_FILE SPEC_NAME search."
)
def search(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[SPEC_FILE] [SPEC_NAME]")] = None,
    set_: SetOption = None,
    seed: SeedOption = None,
    device: DeviceOption = None,
    continue_: ContinueOption = False,
    keep: KeepOption = None,
    validate: ValidateOption = 0,
    imports: ImportsOption = None,
    log_level: LogLevelOption = "INFO",
    log_format: LogFormatOption = "text",
    data_dir: DataDirOption = DATA_DIR,
    ray_address: RayAddressOption = None,
    upload_hf: UploadOption = False,
) -> None:
    """`run ... search`."""
    # every option above is also one of `run`
    run(**locals() | {"arguments": [*(arguments or []), "search"]})


def conclude(result: SearchResult, options: Options, num_validate: int, is_continued: bool, upload_hf: bool) -> int:
    """Print the results of a search, and validate its winner if asked to; returns the exit code."""
    _show(result, options.imports)
    code = result.exit_code
    if upload_hf and not code:
        code = upload_run(result.folder)
    if num_validate and not result.exit_code:
        code = _validate(result, num_validate, options, is_continued, upload_hf) or code
    return code


def _show(result: SearchResult, imports: Sequence[str] = ()) -> None:
    """Print the ranking, the files and the next commands."""
    out = sys.stdout
    early, failed = result.count("stopped"), result.count("failed")
    done = result.count("done")
    out.write(f"\nTrials   {len(result.rows)}: {done} done, {early} stopped early, {failed} failed\n")
    for row in [row for row in result.rows if row.state == "done"][:NUM_SHOWN]:
        out.write(f"         trial {row.trial}: {row.score:.2f}  {show_values(row.values)}\n")
    for row in [row for row in result.rows if row.state == "failed"][:NUM_SHOWN]:
        out.write(f"         trial {row.trial} failed: {row.reason}\n")
    if result.importance:
        shares = ", ".join(f"{path.rpartition('.')[2]} {share:.0%}" for path, share in result.importance.items())
        out.write(f"Explains {shares} of the ranking\n")
    out.write(f"Files    {result.folder}\n")
    for graph in result.graphs[:1]:
        out.write(f"Graph    {graph}\n")
    if result.report is not None:
        out.write(f"Report   {result.report}\n")
    if result.stop_code:
        resume = write_command("run", f"search@{result.folder}", imports=imports)
        out.write(f"\nStopped and saved. Resume with:\n  {resume}\n")
    elif result.best_spec is not None:
        words = ["run", str(result.best_spec), "train", "--seed", str(result.seed + 1)]
        out.write(f"Best     {result.best_spec}\nValidate {write_command(*words, imports=imports)}\n")
    else:
        out.write("Best     none: no trial has finished\n")


def _validate(result: SearchResult, num_session: int, options: Options, is_continued: bool, upload_hf: bool) -> int:
    """Train the winner with fresh seeds and print its score beside that of the search; returns the exit code."""
    trained = validate(result, num_session, options, is_continued)
    if trained.exit_code or result.best is None or trained.run is None:
        resume = write_command("run", f"train@{trained.folder}", imports=options.imports)
        sys.stdout.write(f"\nNot validated yet. Resume with:\n  {resume}\n")
        return trained.exit_code
    sys.stdout.write(
        f"\nSearch   {result.best.score:.2f} (trial {result.best.trial}, on the seeds that selected it)\n"
        f"Validated {summarize(trained.run)}\nFiles    {trained.folder}\n"
    )
    return upload_run(trained.folder) if upload_hf else 0
