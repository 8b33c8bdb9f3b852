"""How far a reader walks to follow one frame: functions, files and conversions from an observation to an update.

    uv run python scripts/trace_frame.py          counts
    uv run python scripts/trace_frame.py --calls  every call, indented by depth

A frame is: act, step the env, observe, and train if training is due. A call is one of a function of this package
(comprehensions are not counted); a conversion goes between numpy and torch or to another dtype or device, or copies.
"""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import slm_lab
from slm_lab.agent.agent import Agent
from slm_lab.env.build import build_vec_env
from slm_lab.env.make import build_settings
from slm_lab.spec.loading import load_spec

ROOT = str(Path(slm_lab.__file__).parent)
CONVERSIONS = {
    *("as_tensor", "from_numpy", "tensor", "numpy", "asarray", "array", "tolist", "item"),
    *("cpu", "to", "float", "double", "astype", "copy", "copy_", "clone"),
}
NORMALIZED = {"env.normalize_obs": True, "env.normalize_reward": True, "meta.compile": False}
# spec, changes, frames before the one that is traced
CASES = {
    "PPO frame without training": ("ppo_pendulum", {}, 5),
    "SAC frame with one update": (
        "sac_pendulum",
        {"agent.algorithm.training_start_step": 300, "agent.algorithm.training_iter": 1},
        400,
    ),
}


class Trace:
    """Notes calls and conversions while it is the profiler."""

    def __init__(self) -> None:
        # depth, file, function
        self.calls: list[tuple[int, str, str]] = []
        self.conversions: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        path = frame.f_code.co_filename
        if not path.startswith((ROOT, __file__)):
            return
        if event == "call" and path != __file__ and not frame.f_code.co_name.startswith("<"):
            depth, above = 0, frame.f_back
            while above is not None:
                depth += above.f_code.co_filename.startswith(ROOT)
                above = above.f_back
            self.calls.append((depth, path[len(ROOT) + 1 :], frame.f_code.co_qualname))
        elif event == "c_call" and arg.__name__ in CONVERSIONS:
            self.conversions[f"{Path(path).name} {arg.__name__}"] += 1


def trace(name: str, changes: dict[str, Any], num_before: int) -> Trace:
    """One frame of a spec, after enough others that everything is built."""
    spec = load_spec(name, overrides=NORMALIZED | changes).spec
    env = build_vec_env(build_settings(spec.env, (0, 0, 0)))
    agent = Agent(spec, env.facts, spec.env.num_envs, (0, 0), torch.device("cpu"))
    torch.set_num_threads(1)
    obs, carry, found = env.reset(), agent.init_carry(spec.env.num_envs), Trace()
    for step_index in range(num_before + 1):
        if step_index == num_before:
            sys.setprofile(found)
        act = agent.act(obs, carry, explore=True)
        step = env.step(act.action.numpy(force=True))
        agent.observe(obs, act, step)
        obs, carry = step.obs, act.carry
        metrics = agent.update((step_index + 1) * spec.env.num_envs)
    sys.setprofile(None)
    env.close()
    if (metrics is not None) != name.startswith("sac"):
        raise SystemExit(f"{name}: the traced frame is of another kind")
    return found


def main() -> None:
    """Print the counts, or every call."""
    for title, case in CASES.items():
        found = trace(*case)
        files = {file for _, file, _ in found.calls}
        print(f"{title}: {len(files)} files, {len(found.calls)} calls, {found.conversions.total()} conversions")
        if "--calls" in sys.argv:
            for depth, file, function in found.calls:
                print(f"  {'  ' * depth}{function}  {file}")
            print("  conversions:", ", ".join(f"{name} x{count}" for name, count in found.conversions.items()))


if __name__ == "__main__":
    main()
