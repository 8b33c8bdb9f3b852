"""A spec that trains in a second, and sessions without processes, for every test that needs a real run."""

from typing import Any

from slm_lab.experiment.control import Session
from slm_lab.experiment.executor import Event, Key, SessionTask
from slm_lab.experiment.messages import Progress, SessionEnd, explain_end
from slm_lab.results.folder import RunFolder
from slm_lab.spec.loading import load_spec, parse_spec
from slm_lab.spec.schema import Spec

Section = dict[str, Any]
REPLAY: Section = {"name": "Replay", "batch_size": 16, "max_size": 2000}
# algorithm and memory
AGENTS: dict[str, tuple[Section, Section]] = {
    "PPO": ({"time_horizon": 32, "minibatch_size": 32, "training_epoch": 1}, {"name": "OnPolicyBatchReplay"}),
    "Reinforce": ({"training_frequency": 1}, {"name": "OnPolicyReplay"}),
    "DQN": ({"training_start_step": 100, "training_frequency": 16, "training_iter": 1}, REPLAY),
    "SoftActorCritic": ({"training_start_step": 100, "training_iter": 1}, REPLAY),
}


def make_tiny_spec(
    algorithm: str = "PPO",
    *,
    name: str = "tiny",
    net: Section | None = None,
    memory: Section | None = None,
    env: Section | None = None,
    meta: Section | None = None,
    search: Section | None = None,
    **keys: Any,
) -> Spec:
    """CartPole, 4 envs, 600 frames, one session; `keys` are of the algorithm, the rest is laid over its section."""
    algorithm_keys, own_memory = AGENTS[algorithm]
    raw = {
        "name": name,
        "agent": {
            "algorithm": {"name": algorithm, **algorithm_keys, **keys},
            "memory": {**own_memory, **(memory or {})},
            "net": net if net and "type" in net else {"type": "MLPNet", "hid_layers": [16], **(net or {})},
        },
        "env": {"name": "CartPole-v1", "num_envs": 4, "max_frame": 600, **(env or {})},
        "meta": {
            "max_session": 1,
            "log_frequency": 200,
            "rigorous_eval": 0,
            "final_eval": 0,
            "compile": False,
            "device": "cpu",
            **(meta or {}),
        },
        "search": search or {},
    }
    return parse_spec(raw)[0]


class InlineExecutor:
    """Runs sessions one after the other in the test's own process: starting one for each takes seconds."""

    num_slot = 1

    def __init__(self) -> None:
        self.waiting: list[SessionTask] = []

    def submit(self, task: SessionTask) -> None:
        self.waiting.append(task)

    def poll(self, timeout: float) -> list[Event]:
        task = self.waiting.pop(0)
        folder = RunFolder(task.folder, task.name)
        rows: list[Progress] = []
        try:
            spec = load_spec(folder.trial_spec_file(task.trial), task.name).spec
            end = SessionEnd(
                task.session, Session(spec, folder, task.trial, task.session, rows.append, options=task.options).run()
            )
        except Exception as error:
            end = explain_end(task.session, error, False)
        return [*(Event(task.key, progress=row) for row in rows), Event(task.key, end=end)]

    def stop(self, key: Key) -> None:
        """It has ended already."""

    def close(self) -> None:
        pass
