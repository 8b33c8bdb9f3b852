"""The command `slm-lab`: one Typer app whose commands are loaded only when they are called."""

import sys
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from slm_lab.cli.failure import report_error
from slm_lab.lib.errors import LabError
from slm_lab.lib.parent import end_with_parent
from slm_lab.lib.terminal import safe_output

TRAIN, LOOK, SHARE, MAINTAIN = "Train", "Look", "Share", "Maintain"


class Entry(NamedTuple):
    """Module, help panel and help text of a command."""

    module: str
    panel: str
    help: str


COMMANDS = {
    "run": Entry("slm_lab.cli.run", TRAIN, "Train a spec; with a mode also search, resume or play."),
    "search": Entry("slm_lab.cli.search", TRAIN, "Search a spec for better values."),
    "resume": Entry("slm_lab.cli.run", TRAIN, "Resume a stopped run or search exactly."),
    "run-remote": Entry("slm_lab.cli.run_remote", TRAIN, "Run a spec on a cloud machine, with dstack."),
    "spec": Entry("slm_lab.cli.spec", TRAIN, "Check, show, list and describe specs."),
    "env": Entry("slm_lab.cli.env", TRAIN, "Check an env, or list the registered ones."),
    "enjoy": Entry("slm_lab.cli.run", LOOK, "Play episodes with a trained agent."),
    "collect": Entry("slm_lab.cli.collect", TRAIN, "Write steps of a trained agent to a file, to learn from offline."),
    "list": Entry("slm_lab.cli.list", LOOK, "List runs with their scores."),
    "plot-list": Entry("slm_lab.cli.list", LOOK, "The old name of list."),
    "plot": Entry("slm_lab.cli.plot", LOOK, "Plot runs side by side."),
    "compare": Entry("slm_lab.cli.compare", LOOK, "Compare runs: scores, intervals, specs."),
    "report": Entry("slm_lab.cli.report", LOOK, "Write a run, or several side by side, as a page that opens offline."),
    "doctor": Entry("slm_lab.cli.doctor", LOOK, "Report what stands out in a run, and which key to try."),
    "ui": Entry("slm_lab.cli.ui", LOOK, "Show the runs in the browser, live."),
    "export": Entry("slm_lab.cli.export", SHARE, "Write a trained agent as one file: agent.slm, ONNX or torch.export."),
    "serve": Entry("slm_lab.cli.serve", SHARE, "Serve a trained agent over HTTP."),
    "push": Entry("slm_lab.cli.push", SHARE, "Upload a run to the Hugging Face hub or a shared folder."),
    "pull": Entry("slm_lab.cli.pull", SHARE, "Download runs from the hub or a shared folder."),
    "graduate": Entry("slm_lab.cli.graduate", SHARE, "Copy finished runs and the docs to the public repo."),
    "verify": Entry("slm_lab.cli.verify", MAINTAIN, "Replay a part of a run and compare it bit for bit."),
    "chaos": Entry("slm_lab.cli.chaos", MAINTAIN, "Kill a run at random times and check that it ends the same."),
    "replay-fault": Entry("slm_lab.cli.replay_fault", MAINTAIN, "Repeat the step that stopped a session."),
    "retro": Entry("slm_lab.cli.retro", MAINTAIN, "Recompute the metrics and graphs of a run."),
    "bench": Entry("slm_lab.cli.bench", MAINTAIN, "Run the benchmark, and write its page."),
}
# modes of `run` that look like commands when `run` is left out
MODES = ("dev", "train")
EXAMPLES = (
    ("slm-lab run", "train the demo: PPO on CartPole"),
    ("slm-lab run ppo_cartpole train", "train a shipped spec, 4 sessions"),
    ("slm-lab spec list", "list the shipped specs"),
    ("slm-lab COMMAND --help", "options of a command"),
)


def route(arguments: list[str]) -> list[str]:
    """Arguments that start with a command; without one they belong to `run`, as in older versions."""
    first = arguments[0] if arguments else "help"
    if first in ("help", "-h", "--help"):
        return ["--help"]
    if first in COMMANDS or first == "--version":
        return arguments
    if (meant := _find_meant_command(first)) is not None:
        raise LabError(f"no command '{first}'; did you mean 'slm-lab {meant}'?")
    return ["run", *arguments]


def _find_meant_command(word: str) -> str | None:
    """The command that was probably meant; None if the word is a mode, a file or a spec, or no command is close."""
    near = get_close_matches(word, COMMANDS, n=1)
    if not near or word in MODES or "@" in word or word.endswith((".json", ".yaml", ".yml")):
        return None
    # loaded only if needed
    return None if import_module("slm_lab.spec.loading").is_shipped(word) else near[0]


class LazyGroup(TyperGroup):
    """Writes help from the table of commands, and loads the module of a command when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS[cmd_name]
        return TyperCommand(cmd_name, help=entry.help, rich_help_panel=entry.panel)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        import_module("typer.rich_utils").rich_format_help(obj=self, ctx=ctx, markup_mode="rich")

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str, Any, list[str]]:
        name, *rest = args
        command: Any = typer.main.get_command(import_module(COMMANDS[name].module).app)
        # a module may have several commands, or be one with commands of its own
        return name, getattr(command, "commands", {}).get(name, command), rest


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    # plain error lines; help still has its panels
    rich_markup_mode=None,
    help="Deep reinforcement learning, defined by spec files.",
    epilog="Start with:\n\n" + "\n\n".join(f"{command:<32} {text}" for command, text in EXAMPLES),
)


def _show_version(is_asked: bool) -> None:
    if is_asked:
        sys.stdout.write(f"slm-lab {version('slm-lab')}\n")
        raise typer.Exit


@app.callback()
def lab(
    is_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options of `slm-lab` itself."""


def main() -> None:
    """Entry point of the console script."""
    end_with_parent()
    with safe_output():
        try:
            app(args=route(sys.argv[1:]), prog_name="slm-lab")
        except (Exception, KeyboardInterrupt) as error:
            # inside safe_output, which escapes what the message quotes
            sys.exit(report_error(error))
