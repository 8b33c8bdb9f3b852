"""Small valid specs of every algorithm, with keys changed by dotted path."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from slm_lab.lib.errors import SpecError
from slm_lab.spec.loading import parse_spec

MEMORIES = {
    "Replay": ("VanillaDQN", "DQN", "DoubleDQN", "SoftActorCritic", "CrossQ", "TD3", "DDPG", "BC", "IQL", "TD3BC"),
    "OnPolicyBatchReplay": ("PQN", "SARSA", "SIL", "PPOSIL", "PPO", "ActorCritic"),
    "OnPolicyReplay": ("Reinforce", "Random"),
}
BASES = {
    name: {
        "name": "demo",
        "agent": {"algorithm": {"name": name}, "memory": {"name": memory}, "net": {"type": "MLPNet"}},
        "env": {"name": "CartPole-v1", "max_frame": 100_000},
    }
    for memory, names in MEMORIES.items()
    for name in names
}
for learned in ("BC", "IQL", "TD3BC"):
    BASES[learned]["agent"]["algorithm"]["data"] = "steps.safetensors"
DELETE = "__DELETE__"
Make = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def make() -> Make:
    """A raw spec of an algorithm with values set, or deleted, by dotted path."""

    def make_spec(base: str = "PPO", changes: dict[str, Any] | None = None) -> dict[str, Any]:
        raw: dict[str, Any] = copy.deepcopy(BASES[base])
        for path, value in (changes or {}).items():
            *parts, last = path.split(".")
            node = raw
            for part in parts:
                node = node.setdefault(part, {})
            node[last] = value
            if value == DELETE:
                del node[last]
        return raw

    return make_spec


@pytest.fixture(scope="session")
def problems(make: Make) -> Callable[..., list[str]]:
    """The lines of the error of a spec, without its first line."""

    def find(base: str, changes: dict[str, Any]) -> list[str]:
        with pytest.raises(SpecError) as caught:
            parse_spec(make(base, changes))
        first, *lines = str(caught.value).splitlines()
        assert first == f"spec has {len(lines)} error{'s' if len(lines) > 1 else ''}:"
        assert all(line.startswith("  ") for line in lines)
        return [line.removeprefix("  ") for line in lines]

    return find
