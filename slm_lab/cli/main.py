"""The command `slm-lab`: a table of commands, each loaded only when it is called."""

import sys
import traceback
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import version

from slm_lab.lib.parent import end_with_parent
from slm_lab.lib.secret import redact
from slm_lab.lib.terminal import safe_output

# name: module of this package, one line of help
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("slm_lab.cli.run", "Train, continue or replay a spec."),
    "run-remote": ("slm_lab.cli.run_remote", "Run a spec on a machine in the cloud, through dstack."),
    "list": ("slm_lab.cli.list", "Show the runs there are, with their scores."),
    "plot-list": ("slm_lab.cli.list", "The same, by the name it had."),
    "plot": ("slm_lab.cli.plot", "Draw runs side by side."),
    "compare": ("slm_lab.cli.compare", "Compare two runs: scores, speed, specs."),
    "retro": ("slm_lab.cli.retro", "Make metrics and graphs of a run again."),
    "spec": ("slm_lab.cli.spec", "Check, show, list and describe specs."),
    "report": ("slm_lab.cli.report", "Show a run, or several side by side, as a page that opens offline."),
    "env": ("slm_lab.cli.env", "Check an env of yours, list those that are registered."),
    "push": ("slm_lab.cli.push", "Send a run to the Hugging Face hub or a shared folder."),
    "pull": ("slm_lab.cli.pull", "Fetch runs from there, verified."),
    "graduate": ("slm_lab.cli.graduate", "Copy finished runs and the docs to the public repo."),
    "verify": ("slm_lab.cli.verify", "Replay a part of a run and compare it bit for bit."),
    "chaos": ("slm_lab.cli.chaos", "Kill a run at random moments and show that it ends the same."),
    "bench": ("slm_lab.cli.bench", "Run the benchmark, and write its page."),
    "replay-fault": ("slm_lab.cli.replay_fault", "Do again what stopped a session: a number that was not finite."),
    "doctor": ("slm_lab.cli.doctor", "Say what stands out in a run, and which key to try."),
}


# modes of `run` that look like commands when `run` is left out
MODES = ("dev", "train", "search")
# options of `run` that take no value
FLAGS = ("--render", "--profile", "--continue", "--upload-hf", "--help")
# what the torch-free install leaves out
ML_PACKAGES = ("torch", "gymnasium", "ale_py", "tensorboard", "optuna")


def _help() -> str:
    lines = "\n".join(f"  {name:<12} {text}" for name, (_, text) in COMMANDS.items())
    return (
        "Usage: slm-lab COMMAND [ARGS]...\n\n"
        "  Deep reinforcement learning, defined by spec files.\n\n"
        f"Commands:\n{lines}\n\n"
        "Options:\n  --version    Show the version.\n  --help       Show this message.\n\n"
        "Start with:\n"
        "  slm-lab run                      train the demo: PPO on CartPole\n"
        "  slm-lab run ppo_cartpole train   train a shipped spec, 4 sessions\n"
        "  slm-lab spec list                see what is shipped\n"
        "  slm-lab COMMAND --help           options of a command\n"
    )


def is_search(arguments: list[str]) -> bool:
    """Whether the mode of a run is a search, which has options of its own."""
    positional, is_value = [], False
    for word in arguments:
        if word.startswith("-"):
            is_value = "=" not in word and word not in FLAGS
        elif is_value:
            is_value = False
        else:
            positional.append(word)
    return any(word == "search" or word.startswith("search@") for word in (*positional[:1], *positional[-1:]))


def route(arguments: list[str]) -> tuple[str, list[str]]:
    """The command meant and its arguments; older forms without `run` still work."""
    first = arguments[0]
    if first in COMMANDS:
        return first, arguments[1:]
    return "run", arguments


def find_meant_command(word: str) -> str | None:
    """The command that a first word is a slip of; None where it is a mode, a file or a spec, or near to no command."""
    near = get_close_matches(word, COMMANDS, n=1)
    if not near or word in MODES or word.endswith((".json", ".yaml", ".yml")):
        return None
    # loaded only here, where the word is in doubt
    return None if import_module("slm_lab.spec.loading").is_shipped(word) else near[0]


def main() -> None:
    """Entry point of the console script."""
    end_with_parent()
    with safe_output():
        try:
            _call()
        except Exception:
            # a bug; printed here, since outside of it nothing is escaped
            sys.stderr.write(redact(traceback.format_exc()))
            sys.exit(1)


def _call() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        sys.stdout.write(_help())
        return
    if arguments[0] == "--version":
        sys.stdout.write(f"slm-lab {version('slm-lab')}\n")
        return
    name, rest = route(arguments)
    if name == "run" and arguments[0] != "run" and (meant := find_meant_command(arguments[0])) is not None:
        sys.stderr.write(f"Error: no command '{arguments[0]}'; did you mean 'slm-lab {meant}'?\n")
        sys.exit(2)
    module = "slm_lab.cli.search" if name == "run" and is_search(rest) else COMMANDS[name][0]
    try:
        import_module(module).app(args=rest, prog_name=f"slm-lab {name}")
    except ModuleNotFoundError as error:
        if error.name not in ML_PACKAGES:
            raise
        sys.stderr.write(f"Error: this command needs {error.name}; run `uv sync`, or `pip install slm-lab[ml]`\n")
        sys.exit(2)
    except KeyboardInterrupt:
        # before training began, so there is nothing to save
        sys.exit(130)
