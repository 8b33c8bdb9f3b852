"""`slm-lab replay-fault BUNDLE`: repeat a failed step, and show its numbers."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from slm_lab.audit.replay_fault import Row, advise, bundle_errors, read_bundle, replay_fault, show, tabulate
from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import ImportsOption
from slm_lab.lib.data import State
from slm_lab.lib.runtime import import_modules

app = typer.Typer(add_completion=False)

# how many tensors of the nets to show, those with the largest numbers
MAX_ROWS = 12


@app.command(
    help="Repeat the step that stopped a session because a number was not finite, from its bundle.\n\n"
    "BUNDLE is a file in the folder fault/ of a run. Exit code 0: it fails in the same way again; 1: it does not."
)
def replay(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE")],
    trust: Annotated[bool, typer.Option("--trust", help="Replay a bundle from someone else.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Do not compile, even if the run did.")] = False,
    imports: ImportsOption = None,
) -> None:
    """Entry of the command."""
    out = sys.stdout
    with user_errors():
        import_modules(imports or [])
        content = read_bundle(bundle, trust)
        with bundle_errors(bundle):
            lines = _describe(content)
        replayed = replay_fault(content, bundle, plain)
    out.writelines(lines)
    for note in replayed.notes:
        out.write(f"Note: {show(note)}\n")
    out.write(f"\n{'reproduced' if replayed.is_reproduced else 'not reproduced'}: {show(replayed.message)}\n")
    if not replayed.is_reproduced:
        sys.exit(1)


def _describe(content: State) -> list[str]:
    """The numbers in a bundle, and what to try."""
    lines = [f"It was: {show(content['message'])}\n"]
    if content.get("left_out"):
        left_out = ", ".join(map(str, content["left_out"]))
        lines.append(f"Left out to keep it small: {show(left_out)}\n")
    batch, weights = tabulate(content)
    if batch:
        lines.append("\nThe batch:\n" + _format(batch))
    if weights:
        largest = sorted(weights, key=_size, reverse=True)[:MAX_ROWS]
        lines.append(f"\nThe largest of {len(weights)} tensors of the nets:\n" + _format(largest))
    return [*lines, f"\nTry: {advise(content)}\n"]


def _size(row: Row) -> float:
    """Sort key of the table of weights: bad numbers first, then the largest."""
    return float("inf") if row.num_nan or row.num_inf else max(abs(row.low), abs(row.high))


def _format(rows: list[Row]) -> str:
    width = max(len(row.name) for row in rows)
    head = f"  {'tensor':<{width}}  {'shape':<16} {'min':>11} {'max':>11} {'mean':>11} {'nan':>7} {'inf':>7}\n"
    return head + "".join(
        f"  {row.name:<{width}}  {row.shape!s:<16} {row.low:>11.4g} {row.high:>11.4g} {row.mean:>11.4g} "
        f"{row.num_nan:>7} {row.num_inf:>7}\n"
        for row in rows
    )
