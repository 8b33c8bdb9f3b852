"""How long a gradient step of a spec takes on this machine, plain and compiled: a few of them are timed."""

import hashlib
import json
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
import torch

from slm_lab.agent.agent import Agent
from slm_lab.agent.compile.engine import CLOCK
from slm_lab.env.make import EnvFacts
from slm_lab.env.vec_env import Step
from slm_lab.lib.device import is_too_large
from slm_lab.lib.errors import DivergenceError
from slm_lab.lib.io import cache_folder, write_text
from slm_lab.lib.runtime import processor_name
from slm_lab.spec.algorithm import OffPolicySpec
from slm_lab.spec.memory import ReplaySpec
from slm_lab.spec.schema import Spec

# steps that are timed after those that warm up, and seconds after which fewer are enough
NUM_WARM_UP, NUM_TIMED = 3, 40
ENOUGH_SECONDS = 1.0
# rows that a replay holds before the first step
NUM_ROW = 64
# transitions that it has room for: one of full size would fill a GPU beside that of the session
MAX_SIZE = 20_000
# env steps after which a spec that has not trained is not waited for
MAX_ROW = 100_000


class _EnoughError(Exception):
    """Enough gradient steps were timed."""


@dataclass
class _Timer:
    """Notes when each gradient step begins; ends the training when it has seen enough."""

    agent: Agent

    def __post_init__(self) -> None:
        self.marks: list[tuple[float, int]] = []
        # spent on filling memories, which is no part of a step
        self.other_seconds = 0.0
        self.agent.context.guard.on_step = self

    def __call__(self) -> None:
        if self.agent.device.type == "cuda":
            torch.cuda.synchronize(self.agent.device)
        # the time of compiling is not that of a step
        other = CLOCK.seconds + self.other_seconds
        self.marks.append((time.perf_counter() - other, self.agent.algorithm.opt_step))
        num_timed = len(self.marks) - 1 - NUM_WARM_UP
        if num_timed < 2:
            return
        if num_timed == NUM_TIMED or self.marks[-1][0] - self.marks[NUM_WARM_UP][0] > ENOUGH_SECONDS:
            raise _EnoughError

    @property
    def seconds(self) -> float:
        """Seconds of a gradient step, as the algorithm counts them."""
        (start, first), (end, last) = self.marks[NUM_WARM_UP], self.marks[-1]
        return (end - start) / max(1, last - first)


def time_step(spec: Spec, facts: EnvFacts, device: torch.device, is_compiled: bool) -> float | None:
    """Seconds of a gradient step with its batch; None if none can be timed, or it should be compiled and cannot.

    No env is touched: the agent learns from one made-up step, again and again.
    """
    num_envs, algorithm = spec.env.num_envs, spec.agent.algorithm
    try:
        agent = Agent(_shrink(spec).replace(meta={"compile": is_compiled}), facts, num_envs, (0, 0), device)
        space, nothing = facts.obs_space, np.zeros(num_envs, bool)
        obs = np.random.default_rng(0).random((num_envs, *(space.shape or ()))).astype(space.dtype)
        act = agent.act(obs, agent.init_carry(num_envs), explore=True)
        step = Step(obs, obs, np.zeros(num_envs), nothing, nothing, nothing)
        timer = _Timer(agent)
        frame = 0
        if isinstance(algorithm, OffPolicySpec):
            for _ in range(NUM_ROW):
                agent.observe(obs, act, step)
            frame = algorithm.training_start_step
        for _ in range(MAX_ROW):
            began = time.perf_counter()
            agent.observe(obs, act, step)
            timer.other_seconds += time.perf_counter() - began
            frame += num_envs
            agent.update(frame)
    except _EnoughError:
        is_plain = any(part.graph is None for part in agent.context.guard.steps)
        return None if is_compiled and is_plain else timer.seconds
    except DivergenceError:
        # as may happen on made-up data; whether the run diverges is for the run to say
        return None
    except RuntimeError as error:
        # the run needs room for one agent only
        if not is_too_large(error):
            raise
        return None
    return None


def _shrink(spec: Spec) -> Spec:
    """The spec with small replays: none is filled."""
    size = max(MAX_SIZE, NUM_ROW * spec.env.num_envs)
    memory, algorithm = spec.agent.memory, spec.agent.algorithm
    if isinstance(memory, ReplaySpec):
        spec = spec.replace(agent={"memory": _cut(memory, size)})
    # of self-imitation
    if (past := getattr(algorithm, "sil_memory", None)) is not None:
        spec = spec.replace(agent={"algorithm": algorithm.model_copy(update={"sil_memory": _cut(past, size)})})
    return spec


def _cut(memory: ReplaySpec, size: int) -> ReplaySpec:
    return memory.model_copy(update={"max_size": min(memory.max_size, size)})


class KnownTimes:
    """Times of a spec's gradient steps that were measured on this machine before."""

    def __init__(self, spec: Spec, facts: EnvFacts, device: torch.device) -> None:
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        parts = [
            spec.agent.model_dump(mode="json", serialize_as_any=True),
            [spec.env.num_envs, str(facts.obs_space), str(facts.action_space), facts.frame_stack],
            [spec.env.normalize_obs, spec.env.clip_obs, facts.mask is not None],
            [spec.meta.precision, spec.meta.num_threads, processor_name(), gpu],
            # another version may be faster
            [torch.__version__, metadata.version("slm-lab")],
        ]
        digest = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
        self.path: Path = cache_folder() / "step_time" / f"{digest}.json"

    def get(self, name: str) -> float | None:
        """Seconds of a kind of step, if it was measured."""
        try:
            value = json.loads(self.path.read_text())[name]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return float(value) if isinstance(value, float) and value > 0 else None

    def set(self, **seconds: float) -> None:
        """Keep what was measured; a machine on which nothing can be kept measures again."""
        known = {name: self.get(name) for name in ("plain", "compiled")} | seconds
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps({name: value for name, value in known.items() if value is not None}))
        except OSError:
            return
