"""Specs to start from, and the check of an edited one; nothing of it is run."""

import tempfile
from pathlib import Path

from slm_lab.lib.data import Document
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import dump_yaml
from slm_lab.results.run import look_up, name_algorithm
from slm_lab.spec.loading import load_spec, locate, read_specs, spec_files, spec_names

MAX_TEXT = 300_000


def list_shipped() -> list[Document]:
    """The shipped specs: name, algorithm and env."""
    found = []
    for file in spec_files():
        specs = read_specs(file)
        for name in spec_names(file):
            env = look_up(specs[name], "env", "name")
            found.append({"name": name, "algorithm": name_algorithm(specs[name]), "env": str(env or "")})
    return sorted(found, key=lambda row: row["name"])


def read_shipped(name: str) -> str:
    """A shipped spec as it is written, as YAML."""
    path, name = locate(name, None)
    return dump_yaml({name: read_specs(path)[name]})


def check(text: str) -> Document:
    """Whether a text is one valid spec; every mistake at once if not."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "spec.yaml"
        try:
            file.write_text(text, encoding="utf-8")
            loaded = load_spec(file)
        except UnicodeEncodeError:
            return {"is_valid": False, "problems": ["the text has a character that is not Unicode"], "notes": []}
        except LabError as error:
            return {"is_valid": False, "problems": _tidy(str(error), str(file)), "notes": []}
    spec = loaded.spec
    facts = {"name": spec.name, "env": spec.env.name, "max_frame": spec.env.max_frame}
    facts |= {"sessions": spec.meta.max_session, "has_search": bool(spec.search)}
    return {"is_valid": True, "problems": [], "notes": list(loaded.notes), **facts}


def _tidy(message: str, file: str) -> list[str]:
    """A message as lines, without the file that the text was written to."""
    lines = [line.strip() for line in message.replace(f" in {file}", "").replace(file, "the text").splitlines()]
    return [line for line in lines if line]
