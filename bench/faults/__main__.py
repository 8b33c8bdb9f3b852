"""`uv run python -m bench.faults`: plant every fault, count what followed, write the page."""

import argparse
import sys
import time

import torch

from bench.faults.page import write_page
from bench.faults.row import QUICK_RESULTS, RESULTS, count_passed, read_result, run_row
from bench.faults.rows import ROW_BY_NAME, ROWS


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(prog="bench.faults", description="Plant faults in real runs, and count.")
    parser.add_argument("--row", action="append", choices=list(ROW_BY_NAME), help="only this row; may be repeated")
    parser.add_argument("--quick", action="store_true", help="a few of each, with separate results: a smoke test")
    parser.add_argument("--again", action="store_true", help="also rows that are complete")
    parser.add_argument("--list", action="store_true", help="show the rows and their progress")
    parser.add_argument("--page", action="store_true", help="only write docs/RELIABILITY.md from the existing results")
    return parser


def main() -> int:
    """Run what was asked for; 1 if anything did not end as promised."""
    args = build_parser().parse_args()
    # a fork of a process with threads loses them
    torch.set_num_threads(1)
    folder = QUICK_RESULTS if args.quick else RESULTS
    rows = [ROW_BY_NAME[name] for name in args.row] if args.row else ROWS
    if args.list:
        for row in rows:
            result = read_result(row, folder)
            passed, planted = count_passed(result) if result else (0, 0)
            state = "whole" if result and result.get("is_whole") else "begun" if result else "not run"
            print(
                f"{row.name:<20} {passed:>5} passed of {planted:>5} planted, {row.count(args.quick):>5} asked: {state}"
            )
        return 0
    num_failed = 0
    if not args.page:
        for row in rows:
            result = read_result(row, folder)
            if result and result.get("is_whole") and not args.again and not args.row:
                print(f"{row.name}: whole already (--again runs it again)", flush=True)
                continue
            began = time.monotonic()
            passed, planted = count_passed(run_row(row, folder, args.quick, lambda line: print(line, flush=True)))
            print(f"{row.name}: {passed} of {planted} as promised, {time.monotonic() - began:.0f} s", flush=True)
            num_failed += planted - passed
    if not args.quick:
        print(f"wrote {write_page()}")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
