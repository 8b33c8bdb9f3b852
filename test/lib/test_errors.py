"""The hint that names the nearest choice, and the kinds of errors."""

import pytest

from slm_lab.lib.errors import (
    CheckpointError,
    DivergenceError,
    EnvError,
    LabError,
    RunFolderError,
    SpecError,
    WorkerError,
    nearest,
)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gama", "; did you mean 'gamma'?"),
        ("GAMMA", "; did you mean 'gamma'?"),
        ("ppo", "; did you mean 'PPO'?"),
        ("gamma", "; did you mean 'gamma'?"),
        ("zzz", ""),
        ("", ""),
    ],
)
def test_the_nearest_choice_is_named_if_one_is_near(name: str, hint: str) -> None:
    assert nearest(name, ["gamma", "lam", "PPO"]) == hint
    assert nearest(name, iter(["gamma", "lam", "PPO"])) == hint


def test_without_choices_there_is_no_hint() -> None:
    assert nearest("gamma", []) == ""


def test_only_mistakes_of_the_user_are_shown_without_a_traceback() -> None:
    assert all(issubclass(kind, LabError) for kind in (SpecError, EnvError, RunFolderError, CheckpointError))
    assert not any(issubclass(kind, LabError) for kind in (DivergenceError, WorkerError))
