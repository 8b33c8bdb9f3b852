"""Exports an agent: as the lab's own portable file, as ONNX, or as a program of torch."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from slm_lab.deploy.agent_file import SUFFIX, write_agent
from slm_lab.deploy.contract import Origin, describe_agent
from slm_lab.deploy.graph import Graph
from slm_lab.deploy.loading import load, load_with_origin
from slm_lab.deploy.onnx_file import encode_onnx, open_onnx
from slm_lab.deploy.parity import check_parity
from slm_lab.deploy.program_file import encode_program, open_program
from slm_lab.deploy.trained import TrainedAgent
from slm_lab.lib.data import Document
from slm_lab.lib.errors import LabError
from slm_lab.lib.io import write_bytes
from slm_lab.results.folder import DATA_DIR

Format = Literal["slm", "onnx", "torch"]
SUFFIXES: dict[Format, str] = {"slm": SUFFIX, "onnx": ".onnx", "torch": ".pt2"}


@dataclass(frozen=True)
class Exported:
    """A file that was written."""

    path: Path
    sha256: str
    contract: Document
    # what was compared with the lab, a line each
    checks: tuple[str, ...] = ()


def export_agent(
    source: str | Path,
    output: str | Path,
    data_dir: str | Path = DATA_DIR,
    session: int | None = None,
    at: int | None = None,
    form: Format | None = None,
) -> Exported:
    """Write the agent of a run, or of an exported file, in a format; by default that of the file's ending."""
    path = Path(output)
    form = _pick_form(path, form)
    trained, origin = open_agent(source, Path(data_dir), session, at)
    contract = trained.contract or describe_agent(trained, origin)
    if form == "slm":
        return Exported(path, write_agent(path, trained, contract), contract)
    # a file that is read elsewhere is computed on the CPU here, and written only if it acts the same
    graph = Graph(trained)
    if form == "onnx":
        data = encode_onnx(graph, contract)
        line = check_parity(graph, open_onnx(data, graph.output_names), "onnxruntime")
    else:
        data = encode_program(graph, contract)
        line = check_parity(graph, open_program(data), "torch.export")
    write_bytes(path, data)
    return Exported(path, hashlib.sha256(data).hexdigest(), contract, (line,))


def open_agent(
    source: str | Path, data_dir: Path, session: int | None, at: int | None
) -> tuple[TrainedAgent, Origin | None]:
    """An agent to export, and where in a run it is from."""
    if str(source).endswith(SUFFIX):
        return load(source, data_dir, session, at), None
    return load_with_origin(source, data_dir, session, at, device="cpu")


def _pick_form(path: Path, given: Format | None) -> Format:
    """The format that is given, or that of the file's ending; a file with the ending of another would be misread."""
    ending = next((form for form in get_args(Format) if path.suffix == SUFFIXES[form]), None)
    if given is not None and ending not in (None, given):
        raise LabError(f"--output {path}: --format {given} has the ending {SUFFIXES[given]}; change one of them")
    if (form := given or ending) is None:
        known = ", ".join(SUFFIXES.values())
        raise LabError(f"--output {path}: its ending is none of {known}; use one of them, or name the --format")
    return form
