"""Callbacks: the user's code that watches a session and may end it."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from loguru import logger

from slm_lab.agent.agent import Agent
from slm_lab.experiment.checkpoint.state import encode_state
from slm_lab.lib.data import State
from slm_lab.lib.errors import LabError
from slm_lab.spec.reader import printable
from slm_lab.spec.schema import Spec

Row = Mapping[str, float]


class CallbackError(LabError):
    """A callback that failed, or changed what only training may; the session is saved as it was before the call."""


@dataclass(frozen=True)
class Moment:
    """Where a session is. The agent may be asked to act, and nothing else: see `Callback.changes_agent`."""

    spec: Spec
    session: int
    frame: int
    agent: Agent


class Callback:
    """Override the methods you need; return True to end the session.

    Its methods are called between two steps. `state_dict` returns the attributes that a checkpoint must keep, and
    `load_state_dict` restores them; each session starts with the callback as you passed it.
    """

    # whether it may change weights, optimisers or random numbers; a run with such a callback does not repeat without it
    changes_agent = False

    def on_start(self, moment: Moment) -> None:
        """A session begins or resumes, before its first step."""

    def on_step(self, moment: Moment) -> bool | None:
        """All envs have done a step. The only call that is frequent: at least 50 us each."""

    def on_row(self, moment: Moment, row: Row) -> bool | None:
        """A row was added to the training table."""

    def on_eval(self, moment: Moment, row: Row) -> bool | None:
        """The deterministic policy was evaluated."""

    def on_checkpoint(self, moment: Moment, path: Path) -> bool | None:
        """A checkpoint was written."""

    def state_dict(self) -> State:
        """What to keep for a resumed session: numbers, text, arrays and tensors."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Take back what `state_dict` gave."""


class Hooks:
    """The callbacks of a session, and the events they receive at the end of a step."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = callbacks
        self.events: list[tuple[str, Any]] = []
        self.has_step = any(type(callback).on_step is not Callback.on_step for callback in callbacks)
        # max_frame of the run when a callback ended the session: if that grows, the session continues
        self.ended_at: int | None = None

    @property
    def is_due(self) -> bool:
        """Whether any callback is to be called."""
        return self.has_step or bool(self.events)

    def start(self, moment: Moment) -> None:
        """Call `on_start` of every callback."""
        for callback in self.callbacks:
            self._call(callback, "on_start", moment)

    def tell(self, moment: Moment, is_step: bool = True) -> bool:
        """Pass the events since the last call to the callbacks; True if one of them ends the session."""
        events, self.events = self.events, []
        answers = []
        if is_step and self.has_step:
            answers += [self._call(callback, "on_step", moment) for callback in self.callbacks]
        for name, content in events:
            answers += [self._call(callback, name, moment, content) for callback in self.callbacks]
        if any(answer is True for answer in answers):
            self.ended_at = moment.spec.env.max_frame
            return True
        return False

    def _call(self, callback: Callback, name: str, moment: Moment, *content: Any) -> bool | None:
        methods: dict[str, Callable[..., bool | None]] = {
            "on_start": callback.on_start,
            "on_step": callback.on_step,
            "on_row": callback.on_row,
            "on_eval": callback.on_eval,
            "on_checkpoint": callback.on_checkpoint,
        }
        where = f"callback {type(callback).__name__}.{name} at frame {moment.frame:,}"
        # dropout layers draw from the global generator, which a callback may use too
        generator_state = torch.get_rng_state()
        before = None if callback.changes_agent else _copy_training(moment.agent)
        try:
            answer: bool | None = methods[name](moment, *content)
        except Exception as error:
            if before is not None:
                _restore_training(moment.agent, before)
            raise CallbackError(f"{where} failed: {type(error).__name__}: {error}") from error
        finally:
            torch.set_rng_state(generator_state)
        if before is not None and not all(map(torch.equal, before, _copy_training(moment.agent))):
            # the session is saved as it was before the call
            _restore_training(moment.agent, before)
            raise CallbackError(
                f"{where} changed the agent, so the run could not be repeated; set changes_agent = True in its class "
                "if that is what it is for"
            )
        return answer

    def state_dict(self) -> State:
        """The states of the callbacks by name."""
        states = {name: callback.state_dict() for name, callback in self._named()}
        return {"states": states, "ended_at": self.ended_at}

    def _named(self) -> Iterator[tuple[str, Callback]]:
        """Callbacks with the names of their classes; a second one of a class gets a number."""
        counts: Counter[str] = Counter()
        for callback in self.callbacks:
            name = type(callback).__name__
            counts[name] += 1
            yield name if counts[name] == 1 else f"{name}#{counts[name]}", callback

    def load_state_dict(self, state: State) -> None:
        """Restore the callbacks; new ones keep their initial state, missing ones cause a warning."""
        missing = state["states"].keys() - {name for name, _ in self._named()}
        if missing:
            names = ", ".join(printable(str(name)) for name in sorted(missing))
            logger.warning(f"The run was trained with callbacks that are not here: {names}")
        for name, callback in self._named():
            if (own := state["states"].get(name)) is not None:
                callback.load_state_dict(own)


def copy_callback_state(callback: Callback) -> State:
    """The state with which a callback begins every session; an error if a checkpoint could not hold it."""
    state = callback.state_dict()
    try:
        encode_state(state)
    except TypeError as error:
        raise CallbackError(f"callback {type(callback).__name__}.state_dict: {error}") from None
    return deepcopy(state)


def _copy_training(agent: Agent) -> list[torch.Tensor]:
    """Copies of the weights and generators."""
    flats = [learner.flat.data.clone() for learner in agent.algorithm.learners.values()]
    return [*flats, agent.context.act_generator.get_state(), agent.context.train_generator.get_state()]


def _restore_training(agent: Agent, saved: Sequence[torch.Tensor]) -> None:
    *flats, act, train = saved
    for learner, flat in zip(agent.algorithm.learners.values(), flats, strict=True):
        learner.flat.data.copy_(flat)
    agent.context.act_generator.set_state(act)
    agent.context.train_generator.set_state(train)
