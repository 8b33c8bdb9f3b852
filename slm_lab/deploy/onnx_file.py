"""Agents as ONNX: for any runtime that reads it, without torch and without the lab.

The model has the contract in its metadata, under the key `slm_lab`.
"""

import json
import logging
import warnings
from importlib import import_module
from typing import Any

import torch

from slm_lab.deploy.graph import Graph
from slm_lab.deploy.parity import Run
from slm_lab.experiment.checkpoint.state import KEY
from slm_lab.lib.array import Array
from slm_lab.lib.data import Document
from slm_lab.lib.errors import LabError

# supported by onnxruntime since 1.14, and by onnxruntime-web
OPSET = 18
MAX_BYTES = 2**31 - 1


def encode_onnx(graph: Graph, contract: Document) -> bytes:
    """A model in ONNX, with its weights and the contract inside."""
    _require("onnx", "onnxscript")
    program = graph.trace()
    log = logging.getLogger("torch.onnx")
    level = log.level
    try:
        # it reports its passes; what does not work raises
        log.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exported: Any = torch.onnx.export(
                program,
                input_names=graph.input_names,
                output_names=graph.output_names,
                opset_version=OPSET,
                dynamo=True,
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as error:
        reason = " ".join(str(error).split())[:300]
        raise LabError(f"the net cannot be written as ONNX ({reason}); export it as .slm or .pt2") from error
    finally:
        log.setLevel(level)
    exported.model.metadata_props[KEY] = json.dumps(contract)
    data: bytes = exported.model_proto.SerializeToString()
    if len(data) > MAX_BYTES:
        raise LabError(f"ONNX holds at most 2 GB in one file, this agent has {len(data):,} bytes; export it as .slm")
    return data


def open_onnx(data: bytes, output_names: list[str]) -> Run:
    """A model as onnxruntime runs it, on one core."""
    (runtime,) = _require("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(inputs: dict[str, Array]) -> list[Array]:
        return list(session.run(output_names, inputs))

    return run


def _require(*names: str) -> list[Any]:
    """Modules of optional packages."""
    try:
        return [import_module(name) for name in names]
    except ModuleNotFoundError as error:
        if error.name not in names:
            raise
        raise LabError(
            f"--format onnx needs the package '{error.name}', which is not installed; install it with: "
            "pip install '.[export]'"
        ) from None
