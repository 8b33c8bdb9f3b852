"""Measure how long a gradient step of a spec takes on this machine, plain and compiled."""

import hashlib
import json
import time
from importlib import metadata

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

# steps to warm up, steps to time, and seconds after which fewer timed steps are enough
NUM_WARM_UP, NUM_TIMED = 3, 40
ENOUGH_SECONDS = 1.0
# rows that a replay holds before the first step
NUM_ROW = 64
# largest capacity of replays: the full size could fill a GPU beside the replay of the session
MAX_SIZE = 20_000
# give up if a spec has not trained after this many env steps
MAX_ROW = 100_000


class _EnoughError(Exception):
    """Enough gradient steps were timed."""


class _Timer:
    """Records the start of each gradient step; ends the training when there are enough."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        # seconds and the algorithm's count of steps, at each start
        self.marks: list[tuple[float, int]] = []
        # spent on filling memories, which is not part of a step
        self.other_seconds = 0.0
        agent.context.guard.on_step = self

    def __call__(self) -> None:
        if self.agent.device.type == "cuda":
            torch.cuda.synchronize(self.agent.device)
        # compiling is not part of a step either
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
    """Seconds of a gradient step with its batch; None if no step can be timed, or if compiling fails.

    No env is used: the agent learns from copies of one made-up step.
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
        # made-up data may diverge; it says nothing about the run
        return None
    except RuntimeError as error:
        # the run needs room for one agent only
        if not is_too_large(error):
            raise
        return None
    return None


def _shrink(spec: Spec) -> Spec:
    """The spec with small replays, since few rows are needed."""
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
    """The cache of measured times of a spec's gradient steps on this machine."""

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
        self.path = cache_folder() / "step_time" / f"{digest}.json"

    def get(self, name: str) -> float | None:
        """Seconds of a kind of step; None if it was not measured."""
        try:
            value = json.loads(self.path.read_text())[name]
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return float(value) if isinstance(value, float) and value > 0 else None

    def set(self, **seconds: float) -> None:
        """Store measured times; if the cache cannot be written, they are measured again next time."""
        known = {name: self.get(name) for name in ("plain", "compiled")} | seconds
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps({name: value for name, value in known.items() if value is not None}))
        except OSError:
            return
