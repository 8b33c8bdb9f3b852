"""SLM-Lab: modular, spec-driven deep reinforcement learning in PyTorch."""

from importlib import import_module
from typing import Any

__all__ = ["Callback", "build", "load", "load_agent", "read", "record", "resume", "run", "run_experiment", "search"]


def __getattr__(name: str) -> Any:
    # `import slm_lab` stays light: torch is loaded when the first of these is used
    if name in __all__:
        # reading needs no torch at all
        return vars(import_module("slm_lab.results.reading" if name == "read" else "slm_lab.api"))[name]
    raise AttributeError(f"module 'slm_lab' has no attribute '{name}'")
