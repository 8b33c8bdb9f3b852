"""Every algorithm, net and number of envs, stopped at a quarter, half and three quarters."""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from bench.faults.fork import fork, train, train_to_end, wait
from bench.faults.row import Batch, Row, Verdict
from bench.faults.specs import ALGORITHMS, NETS, NOT_RECURRENT, make_spec
from slm_lab.audit.difference import find_difference
from slm_lab.spec.schema import Spec

SHARES = (0.25, 0.5, 0.75)


def stop_and_go(spec: Spec, folder: Path) -> Iterator[Verdict]:
    """Stop a run at a share of its frames, go on in a new process, and compare."""
    train_to_end(spec, folder / "whole")
    for share in SHARES:
        path = folder / f"stopped_{share}"
        train_to_end(spec, path, int(share * spec.env.max_frame))
        train_to_end(spec, path)
        problem = find_difference(folder / "whole", path, spec.name)
        if problem is None and ": exact" not in path.with_name(f"{path.name}.out").read_text():
            problem = "the log does not say that it resumed exactly"
        yield Verdict(f"stopped at {share:.0%}", problem is None, problem or "")


class Drifting(gym.Env[Any, Any]):
    """Draws from elsewhere than its seed, so it cannot be rebuilt."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: Any) -> Any:
        return self._look(), 1.0, random.SystemRandom().random() < 0.1, False, {}

    def _look(self) -> Any:
        return np.array([random.SystemRandom().uniform(-1, 1) for _ in range(2)], np.float32)


def drift(folder: Path) -> Iterator[Verdict]:
    """A run that cannot be exact says so."""
    gym.register("Drifting-v0", entry_point=lambda **_: Drifting())
    try:
        spec = make_spec("PPO", env={"name": "Drifting-v0"})
        train_to_end(spec, folder / "run", 400)
        output = folder / "second.out"
        code = wait(fork(lambda: train(spec, folder / "run"), output))
    finally:
        del gym.registry["Drifting-v0"]
    text = output.read_text()
    is_told = code == 0 and "resumes at frame 400: statistical only" in text
    yield Verdict("an env that draws from elsewhere", is_told, "" if is_told else text[-300:])


def plan(quick: bool) -> list[Batch]:
    """All combinations that the lab has, or a few, and the one that cannot be exact."""
    batches = [Batch("not exact", 1, drift)]
    for algorithm in ("PPO", "DQN") if quick else ALGORITHMS:
        for net in ("MLP",) if quick else NETS:
            for num_envs in (4,) if quick else (1, 4):
                frames = 400 if quick else 600
                if net == "RNN" and algorithm in NOT_RECURRENT:
                    continue
                spec = make_spec(algorithm, net, {"num_envs": num_envs, "max_frame": frames})
                name = f"{algorithm}, {net}, {num_envs} env(s)"
                batches.append(Batch(name, len(SHARES), partial(stop_and_go, spec)))
    return batches


ROWS = (
    Row(
        "resume_grid",
        "a stop at 25, 50 and 75 %, for each of twelve algorithms x {1, 4} envs x {MLP, CNN, RNN}",
        "all end with the same bits as the undisturbed run and log an exact resume, or say that it is not",
        plan,
        "REINFORCE, A2C, PPO and the DQN family have recurrent nets.",
    ),
)
