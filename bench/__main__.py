"""`uv run --project bench python -m bench`: measure, then write the page."""

import argparse
import os

from bench.measure import PEERS, QUICK_RESULTS, RESULTS, check_versions, measure_row
from bench.page import read_results, write_page
from bench.rows import ROW_BY_NAME, ROWS
from bench.scaling import SCALINGS, measure_scaling
from bench.startup import measure_startup
from bench.summary import format_row

SECONDS, QUICK_SECONDS = 20.0, 2.0
REPEAT, QUICK_REPEAT = 5, 1


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="bench", description="Measure the lab beside its peers on the same work.")
    rows = [*ROW_BY_NAME, "startup"]
    parser.add_argument("--row", action="append", choices=rows, help="only this row; may be repeated")
    parser.add_argument("--peer", action="append", choices=list(PEERS), help="only this peer; may be repeated")
    parser.add_argument("--no-peer", action="store_true", help="the lab and the limit alone")
    parser.add_argument("--repeat", type=int, help=f"repetitions (default {REPEAT})")
    parser.add_argument("--seconds", type=float, help=f"time of each measurement (default {SECONDS:.0f})")
    parser.add_argument("--core", type=int, help="the core to measure on (default the last one)")
    parser.add_argument("--quick", action="store_true", help="a smoke test: short, some batches smaller, kept apart")
    parser.add_argument("--scaling", nargs="*", choices=list(SCALINGS), help="only how speed grows")
    parser.add_argument("--page", action="store_true", help="only write docs/SPEED.md from the results there are")
    return parser


def main() -> None:
    """Measure what was asked for; without options, every row and the start-up."""
    args = build_parser().parse_args()
    folder = QUICK_RESULTS if args.quick else RESULTS
    if args.page:
        write_page(folder, args.quick)
        return
    check_versions()
    core = max(os.sched_getaffinity(0)) if args.core is None else args.core
    repeat = args.repeat or (QUICK_REPEAT if args.quick else REPEAT)
    seconds = args.seconds or (QUICK_SECONDS if args.quick else SECONDS)
    if args.scaling is not None:
        for name in args.scaling or SCALINGS:
            measure_scaling(name, repeat, seconds, args.quick, core)
        return
    names = args.row or [*ROW_BY_NAME, "startup"]
    peers = [] if args.no_peer else args.peer
    for row in ROWS:
        if row.name in names:
            print(f"\n{row.title}", flush=True)
            for contender, index, measured in measure_row(row, peers, repeat, seconds, args.quick, core):
                print(f"  {index + 1}/{repeat} {contender:<10} {measured.fps:>10,.0f} fps", flush=True)
            print(format_row(read_results(folder)[row.name]), flush=True)
    if "startup" in names:
        measure_startup(repeat, args.quick, core)


if __name__ == "__main__":
    main()
