"""Symptoms, which the doctor's rules report."""

import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Symptom:
    """Something unusual in a run."""

    # warn: worth a change; info: good to know
    level: Literal["warn", "info"]
    # a few words, for the line at the end of a run
    title: str
    seen: str
    meaning: str
    advice: str

    @property
    def keys(self) -> tuple[str, ...]:
        """The dotted keys of the spec that the advice names."""
        return tuple(dict.fromkeys(re.findall(r"\b(?:agent|env|meta)\.[\w.]*\w", self.advice)))
