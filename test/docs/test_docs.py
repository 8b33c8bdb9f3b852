"""What the docs say is true: commands, links, keys, metrics, specs, and the code that readers copy."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from pydantic_core import PydanticUndefined

from slm_lab.agent.agent import NORM_COLUMNS
from slm_lab.agent.registry import ALGORITHMS
from slm_lab.cli import run as run_command
from slm_lab.cli.main import COMMANDS, app
from slm_lab.experiment.tracker import CORE_COLUMNS
from slm_lab.lib.errors import LabError
from slm_lab.results.metrics import METRICS
from slm_lab.spec.candidate import check_search
from slm_lab.spec.document import describe_default
from slm_lab.spec.grid import load_specs, read_experiment
from slm_lab.spec.loading import dump_spec, load_spec, parse_override, parse_spec, spec_files, spec_names
from slm_lab.spec.reader import read_document
from slm_lab.spec.schema import ALGORITHM_SPECS

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
WRITING = ROOT / "docs" / "WRITING_SPECS.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
ALGORITHM_PAGES = {
    "Random": "random.md",
    "Reinforce": "reinforce.md",
    "ActorCritic": "actor_critic.md",
    "PPO": "ppo.md",
    "SARSA": "sarsa.md",
    "VanillaDQN": "dqn.md",
    "DQN": "dqn.md",
    "DoubleDQN": "dqn.md",
    "SoftActorCritic": "sac.md",
    "CrossQ": "crossq.md",
    "TD3": "td3.md",
    "DDPG": "td3.md",
    "PQN": "pqn.md",
    "SIL": "sil.md",
    "PPOSIL": "sil.md",
    "BC": "offline.md",
    "IQL": "offline.md",
    "TD3BC": "offline.md",
}
ROOMS = (
    "lib",
    "spec",
    "results",
    "env",
    "agent",
    "experiment",
    "deploy",
    "audit",
    "share",
    "remote",
    "benchmark",
    "ui",
    "cli",
)
COMMAND: Any = typer.main.get_command(app)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def fences(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return [body for kind, body in FENCE.findall(page.read_text()) if kind == language]


def command_lines(page: Path) -> Iterator[list[str]]:
    """Every `slm-lab ...` line of a page's shell blocks, as words after `slm-lab`."""
    for block in fences(page, "bash"):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if "slm-lab" in words:
                yield words[words.index("slm-lab") + 1 :]


COMMAND_LINES = [
    pytest.param(words, id=f"{page.name}: {' '.join(words)}") for page in PAGES for words in command_lines(page)
]


def own_page(name: str) -> Path:
    """The page of an algorithm."""
    return ROOT / "docs" / "algorithm" / ALGORITHM_PAGES[name]


def anchor(heading: str) -> str:
    """A heading as GitHub links to it."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


# --- commands


def test_there_are_commands_to_check() -> None:
    assert len(COMMAND_LINES) > 15


@pytest.mark.parametrize("words", COMMAND_LINES)
def test_commands_in_docs_are_known(words) -> None:
    command, *rest = words
    assert command in COMMANDS
    # parsing alone tells whether the options are known, without running anything
    name, parser, rest = COMMAND.resolve_command(None, words)
    if hasattr(parser, "commands"):
        parser, rest = parser.commands[rest[0]], rest[1:]
    params = _parse(parser, rest)
    if name not in ("run", "search"):
        return
    source, name, mode = run_command.split_arguments([*(params["arguments"] or []), *["search"] * (name == "search")])
    if not source.startswith(("my_", "{", "grid.yaml")) and "@" not in mode:
        path = ROOT / source
        changes = dict(parse_override(text) for text in params["set_"] or [])
        spec = load_spec(path if path.exists() else source, name, changes).spec
        if mode == "search":
            check_search(spec)


def test_the_experiment_in_docs_is_the_example() -> None:
    example = ROOT / "docs" / "examples" / "grid.yaml"
    block = next(text for text in fences(ROOT / "docs" / "EXPERIMENTS.md", "yaml") if "experiment:" in text)
    assert block == f"# grid.yaml\n{example.read_text()}"
    assert len(example.read_text().splitlines()) <= 15
    specs = [loaded.spec for _, loaded in load_specs(read_experiment(example), example, {})]
    assert [(spec.env.name, spec.meta.max_session) for spec in specs] == 3 * [("CartPole-v1", 4), ("Acrobot-v1", 4)]


def _parse(command, words: list[str]) -> dict[str, Any]:
    """What a command line gives by name; an unknown option raises."""
    params = command.make_context("slm-lab", list(words)).params
    assert isinstance(params, dict)
    return params


def test_running_explains_every_mode() -> None:
    text = (ROOT / "docs" / "RUNNING.md").read_text()
    assert all(f"`{mode}`" in text for mode in run_command.MODES)


def test_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 130


# --- links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_resolve(page) -> None:
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if "://" in link:
            continue
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            broken.append(link)
        elif fragment:
            headings = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
            if fragment not in map(anchor, headings):
                broken.append(link)
    assert not broken


# --- metrics and keys


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_metric_is_explained(name) -> None:
    text = (ROOT / "docs" / "METRICS.md").read_text()
    columns = (*CORE_COLUMNS, *ALGORITHMS[name].metric_names)
    missing = [column for column in columns if f"| `{column}` |" not in text]
    assert not missing
    page = own_page(name).read_text()
    assert all(f"`{column}`" in page for column in ALGORITHMS[name].metric_names)


def test_every_column_of_a_normaliser_is_explained() -> None:
    text = (ROOT / "docs" / "METRICS.md").read_text()
    assert all(f"| `{name}` |" in text for name in NORM_COLUMNS)


def test_every_trial_metric_is_explained() -> None:
    score = (ROOT / "docs" / "METRICS.md").read_text().split("## Metrics of a trial")[1]
    missing = [name for name in ("frame", *METRICS, "consistency") if f"| `{name}` |" not in score]
    assert not missing


@pytest.mark.parametrize("name", ALGORITHM_SPECS)
def test_every_key_and_default_is_on_the_page_of_its_algorithm(name) -> None:
    text = own_page(name).read_text()
    documented = set(re.findall(r"^\| `(\w+)` \| (?:`|required)", text, re.M))
    for key, field in ALGORITHM_SPECS[name].model_fields.items():
        assert field.default is not PydanticUndefined or key == "data", key
        assert f"| `{key}` | {describe_default(field)} |" in text, key
    # a page may be shared by several algorithms
    together = [other for other, page in ALGORITHM_PAGES.items() if page == ALGORITHM_PAGES[name]]
    assert documented == {key for other in together for key in ALGORITHM_SPECS[other].model_fields}


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "algorithm").glob("*.md")), ids=lambda page: page.stem)
def test_specs_on_pages_are_valid(page) -> None:
    for block in fences(page, "yaml"):
        for name, spec in yaml.safe_load(block).items():
            parse_spec({"name": name, **spec})


@pytest.mark.parametrize("path", spec_files(), ids=lambda path: path.stem)
def test_every_shipped_spec_is_on_the_page_of_its_algorithm(path) -> None:
    document = read_document(path)
    for name in spec_names(path):
        shown = f"`{name.removesuffix('_arc')}`"
        algorithm = document[name]["agent"]["algorithm"]["name"]
        assert shown in own_page(algorithm).read_text()


def test_spec_on_the_page_is_the_shipped_one() -> None:
    document = next(json.loads(block) for block in fences(WRITING, "json") if "ppo_cartpole" in block)
    shown, _ = parse_spec({"name": "ppo_cartpole", **document["ppo_cartpole"]})
    shipped = load_spec("ppo_cartpole").spec
    assert (shown.agent, shown.env, shown.meta) == (shipped.agent, shipped.env, shipped.meta)


def test_error_on_the_page_is_what_a_user_sees(tmp_path: Path) -> None:
    document = dump_spec(load_spec("ppo_cartpole").spec)
    document["ppo_cartpole"]["agent"]["algorithm"]["gama"] = 0.9
    document["ppo_cartpole"]["env"]["max_frame"] = "abc"
    (tmp_path / "ppo_cartpole.json").write_text(json.dumps(document))
    with pytest.raises(LabError) as caught:
        load_spec(tmp_path / "ppo_cartpole.json")
    shown = next(block for block in fences(WRITING, "text") if block.startswith("Error:"))
    assert shown.strip().splitlines()[1:] == str(caught.value).splitlines()[1:]


# --- architecture


def test_imports_point_one_way() -> None:
    wrong = []
    for index, room in enumerate(ROOMS):
        later = tuple(f"slm_lab.{name}" for name in (*ROOMS[index + 1 :], "api"))
        for path in (ROOT / "slm_lab" / room).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = []
                if isinstance(node, ast.ImportFrom):
                    names = [node.module or ""]
                elif isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                wrong += [f"{path.name}: {name}" for name in names if name.startswith(later)]
    assert not wrong


# --- code that readers copy

# One interpreter for everything, and no graphs: they are most of the cost.
DRIVER = """
import json, runpy, sys
from slm_lab.cli.main import main
from slm_lab.results import conclude

conclude.plot_run = lambda _: None
conclude.write_report = lambda _, path, **rest: path.touch()
commands, scripts = json.loads(sys.argv[1]), sys.argv[2:]
for words in commands:
    sys.argv = ["slm-lab", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            sys.exit(f"{words} ended with {end.code}")
for script in scripts:
    runpy.run_path(script)
"""


# yes and no as CHOOSING.md shows them: Discrete; MultiDiscrete and MultiBinary; Box; Dict and Tuple; masks
TAKES = {
    "any": ["yes", "yes", "yes", "yes", "yes"],
    "joint": ["yes", "combined", "", "", "yes"],
    "squashed": ["yes", "combined", "yes", "", "yes"],
    "continuous": ["", "", "yes", "", ""],
}
SOURCES = {"rollout": "its own steps", "replay": "a replay", "data": "a dataset"}


@pytest.mark.parametrize("name", [name for name in ALGORITHM_PAGES if name != "Random"])
def test_table_of_what_algorithms_take(name: str) -> None:
    text = (ROOT / "docs" / "CHOOSING.md").read_text().split("## What each algorithm takes")[1].split("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| [")
    ]
    (row,) = [
        row
        for row in rows
        if f"algorithm/{ALGORITHM_PAGES[name]}" in row[0]
        and (name in re.findall(r"\w+", row[0]) or ALGORITHM_PAGES[name] != "offline.md")
    ]
    config = ALGORITHM_SPECS[name]
    # IQL's config allows any, since its policy is not squashed; its constructor refuses all but Box
    actions = "continuous" if name == "IQL" else config.actions
    assert row[1:6] == TAKES[actions]
    assert row[6] == ("yes" if config.takes_recurrent else "")
    assert row[7].startswith(SOURCES[config.learns_from])


@pytest.mark.timeout(300)
def test_code_in_extending_readme_and_python_runs(tmp_path) -> None:
    pages = [ROOT / "docs" / name for name in ("EXTENDING.md", "DICT_OBSERVATIONS.md")]
    text = "".join(page.read_text() for page in pages)
    # each file is named in the sentence before its block
    named = re.findall(r"`(my_\w+\.(?:py|yaml))`:\n\n```\w+\n(.*?)^```$", text, re.M | re.S)
    assert {name for name, _ in named} == {
        "my_specs.yaml",
        "my_algorithm.py",
        "my_td3.py",
        "my_net.py",
        "my_dict_env.py",
        "my_dict_spec.yaml",
    }
    assert len(named) == sum(len(fences(page, kind)) for page in pages for kind in ("python", "yaml"))
    tutorial = (ROOT / "docs" / "tutorial" / "own_env.md").read_text()
    grid = re.findall(r"`(my_grid\.py)`:\n\n```\w+\n(.*?)^```$", tutorial, re.M | re.S)
    for name, body in [*named, *grid]:
        (tmp_path / name).write_text(body)
    scripts = [*fences(README, "python"), *fences(ROOT / "docs" / "PYTHON.md", "python")]
    assert len(scripts) == 7
    for index, script in enumerate(scripts):
        assert "env__max_frame=4000" in script
        short = script.replace("env__max_frame=4000", "env__max_frame=800")
        (tmp_path / f"{index}.py").write_text(short.replace("max_session=2", "max_session=1"))
    small = ["-s", "env.max_frame=1200", "-s", "meta.log_frequency=200", "--device", "cpu", "--log-level", "WARNING"]
    lines = [words for page in pages for words in command_lines(page)]
    commands = [[*words, *small] if words[0] == "run" else words for words in lines]
    assert len(commands) == 5
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(commands), *(f"{index}.py" for index in range(len(scripts)))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "SLM_LAB_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Score ") == 4
    # the command to replay it has what the run needed
    assert re.search(r"^Replay .*/my_algorithm_cartpole_\S+ --import my_algorithm$", done.stdout, re.M)
    tables = sorted((tmp_path / "data").glob("*/info/*_session_df_train.csv"))
    # a loop of one's own leaves none
    assert len(tables) == 4 + len(scripts) - 1
    # the columns of the algorithm of one's own are in its table, and it has trained
    header, *rows = next(table for table in tables if "my_algorithm" in table.name).read_text().splitlines()
    assert "elite_return" in header.split(",")
    assert int(rows[-1].split(",")[header.split(",").index("opt_step")]) > 0
