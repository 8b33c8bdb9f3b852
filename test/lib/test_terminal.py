"""What is printed controls no terminal, and needs none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from loguru import logger

from slm_lab.lib.log import console_to, log_to, setup_console
from slm_lab.lib.terminal import escape, safe_output

# a colour, a window title, marks that turn text around, a return, C1 codes and line separators
HOSTILE = "x\x1b[31m\x1b]0;t\x07\u202ey\r\x9b2J\x85\u2028\u061cz\x00\udcff"
SHOWN = "x\\x1b[31m\\x1b]0;t\\x07\\u202ey\\r\\x9b2J\\x85\\u2028\\u061cz\\x00\\udcff"


def test_what_a_terminal_would_obey_is_spelled_out() -> None:
    assert escape(HOSTILE) == SHOWN
    assert escape("Größe ▁▂▃ 日本\n\tnext") == "Größe ▁▂▃ 日本\n\tnext"


def test_all_that_is_printed_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with safe_output():
        print(HOSTILE)
        sys.stderr.writelines([HOSTILE, "\n"])
    assert sys.stdout is before
    assert capsys.readouterr() == (f"{SHOWN}\n", f"{SHOWN}\n")


def test_log_lines_are_escaped_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    setup_console("INFO")
    taken: list[str] = []
    with log_to(tmp_path / "a.log", "INFO"):
        logger.info(HOSTILE)
        with console_to(taken.append):
            logger.info(HOSTILE)
    for text in (capsys.readouterr().err, taken[0], (tmp_path / "a.log").read_text()):
        assert text.splitlines()[0].endswith(f"| INFO | {SHOWN}")


def call(code: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    """Run code within the safe output of a process of its own."""
    script = f"import sys, os\nfrom slm_lab.lib.terminal import safe_output\nwith safe_output():\n    {code}\n"
    return subprocess.run([sys.executable, "-c", script], **options)  # type: ignore[call-overload]


def test_rich_keeps_its_colours() -> None:
    code = "from rich.console import Console; Console(force_terminal=True).print('[red]a[/red]'); print('\\x1b[31mb')"
    assert call(code, capture_output=True, check=True).stdout == b"\x1b[31ma\x1b[0m\n\\x1b[31mb\n"


def test_no_encoding_is_too_narrow() -> None:
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = call("print('ü▁'); print('ü▁', file=sys.stderr)", capture_output=True, env=environ, check=True)
    assert done.stdout == done.stderr == b"\\xfc\\u2581\n"


def test_closed_streams_stop_nothing_and_end_up_in_no_file(tmp_path: Path) -> None:
    code = (
        f"file = open({str(tmp_path / 'a')!r}, 'w'); print('lost', flush=True); os.system('echo lost; echo lost >&2')"
    )
    # a shell is what closes them
    script = f"import os\nfrom slm_lab.lib.terminal import safe_output\nwith safe_output():\n    {code}\n"
    done = subprocess.run(["sh", "-c", '"$0" -c "$1" <&- >&- 2>&-', sys.executable, script], timeout=60)
    assert done.returncode == 0
    assert (tmp_path / "a").read_text() == ""


def test_a_reader_that_has_gone_stops_nothing(tmp_path: Path) -> None:
    code = f"[print('x' * 1000) for _ in range(1000)]; open({str(tmp_path / 'a')!r}, 'w').write('to the end')"
    reading, writing = os.pipe()
    os.close(reading)
    done = call(code, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "a").read_text() == "to the end"
