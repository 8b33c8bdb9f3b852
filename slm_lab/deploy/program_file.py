"""Agents as programs of torch.export: for torch without the lab, and for ahead-of-time compilers."""

import io
import json
import warnings

import torch

from slm_lab.deploy.graph import Graph
from slm_lab.deploy.parity import Run
from slm_lab.lib.array import Array
from slm_lab.lib.data import Document

# the file of the contract within the archive
CONTRACT = "contract.json"


def encode_program(graph: Graph, contract: Document) -> bytes:
    """A program with its weights and the contract inside."""
    buffer = io.BytesIO()
    torch.export.save(graph.trace(), buffer, extra_files={CONTRACT: json.dumps(contract)})
    return buffer.getvalue()


def open_program(data: bytes) -> Run:
    """A program that was just written, run by torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.export.load(io.BytesIO(data)).module()

    def run(inputs: dict[str, Array]) -> list[Array]:
        with torch.inference_mode():
            return [output.numpy() for output in module(*(torch.from_numpy(value) for value in inputs.values()))]

    return run
