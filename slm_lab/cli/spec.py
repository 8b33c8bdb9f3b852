"""`slm-lab spec`: check, show, list and describe specs; works without torch."""

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from slm_lab.cli.failure import user_errors
from slm_lab.cli.options import ImportsOption, SetOption
from slm_lab.lib.data import Document
from slm_lab.lib.errors import SpecError
from slm_lab.lib.io import dump_yaml
from slm_lab.lib.runtime import import_modules
from slm_lab.spec.document import spec_file_schema, spec_reference
from slm_lab.spec.grid import is_experiment_file, list_runs, read_experiment
from slm_lab.spec.loading import (
    SHIPPED,
    Loaded,
    dump_spec,
    find_file,
    load_spec,
    locate,
    parse_override,
    spec_files,
    spec_names,
)
from slm_lab.spec.reader import read_document

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Work with spec files.")

File = Annotated[str, typer.Argument(metavar="FILE", help="A spec file, or the name of a shipped spec.")]
Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="The spec in the file; by default all.")]


@app.command()
def check(file: File, name: Name = None, set_: SetOption = None, imports: ImportsOption = None) -> None:
    """Check specs, or an experiment file, and list every mistake."""
    with user_errors():
        import_modules(imports or [])
        overrides = dict(parse_override(text) for text in set_ or [])
        mistakes: list[str] = []
        shown: set[str] = set()
        for one, load in _list_loads(file, name, overrides):
            try:
                loaded = load()
            except SpecError as error:
                mistakes.append(str(error))
                continue
            for note in loaded.notes:
                if note not in shown:
                    sys.stderr.write(f"note: {note}\n")
                shown.add(note)
            sys.stdout.write(f"{one}: valid\n")
        if mistakes:
            raise SpecError("\n".join(mistakes))


def _list_loads(file: str, name: str | None, overrides: Document) -> Iterator[tuple[str, Callable[[], Loaded]]]:
    """The specs to check by name, each with the call that loads it: one, those of a file, or those of an experiment."""
    if name is not None or not file.endswith((".json", ".yaml", ".yml")):
        path, only = locate(file, name)
        yield only, partial(load_spec, path, only, overrides)
    elif is_experiment_file(file):
        path = Path(file)
        for run in list_runs(read_experiment(path), overrides):
            yield run.title, partial(run.load, path)
    else:
        path = find_file(Path(file))
        for one in spec_names(path):
            yield one, partial(load_spec, path, one, overrides)


@app.command()
def show(
    file: File,
    name: Name = None,
    set_: SetOption = None,
    imports: ImportsOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of YAML.")] = False,
) -> None:
    """Print a spec with every default filled in."""
    with user_errors():
        import_modules(imports or [])
        spec = load_spec(file, name, dict(parse_override(text) for text in set_ or [])).spec
    data = dump_spec(spec)
    sys.stdout.write(json.dumps(data, indent=2) + "\n" if as_json else dump_yaml(data))


@app.command("list")
def list_(
    words: Annotated[list[str] | None, typer.Argument(help="List only lines that contain all of these.")] = None,
) -> None:
    """List shipped specs: name, algorithm, env, file."""
    rows = []
    for path in spec_files():
        document = read_document(path)
        for name in spec_names(path):
            agent, env = document[name].get("agent", {}), document[name].get("env", {})
            algorithm = agent.get("algorithm", {}).get("name", "")
            rows.append((name, algorithm, str(env.get("name", "")), str(path.relative_to(SHIPPED.parent.parent))))
    shown = [row for row in rows if all(word.lower() in " ".join(row).lower() for word in words or [])]
    if not shown:
        sys.stderr.write(f"Error: no shipped spec matches: {' '.join(words or [])}\n")
        sys.exit(2)
    widths = [max(len(row[column]) for row in shown) for column in range(3)]
    for row in sorted(shown):
        sys.stdout.write("  ".join(f"{cell:<{width}}" for cell, width in zip(row, [*widths, 0], strict=True)) + "\n")


@app.command()
def schema() -> None:
    """Print the JSON Schema of a spec file, for completion in editors."""
    sys.stdout.write(json.dumps(spec_file_schema(), indent=2) + "\n")


@app.command(hidden=True)
def reference() -> None:
    """Print docs/SPEC.md."""
    sys.stdout.write(spec_reference())
