"""The work that is measured: one spec per row, from which the lab and every peer take their settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slm_lab.spec.loading import load_spec
from slm_lab.spec.schema import Spec

# the meter ends a run, never the spec
MAX_FRAME = 10**9


@dataclass(frozen=True)
class Row:
    """A piece of work, and who else can do it."""

    name: str
    title: str
    # a shipped spec and what is changed in it
    spec: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    # smaller batches for a smoke measurement; its figures are never shown beside real ones
    quick: Mapping[str, Any] = field(default_factory=dict)
    # each peer with what could not be set equal, empty where nothing is known
    peers: Mapping[str, str] = field(default_factory=dict)
    # whether its layers are wide enough for bfloat16 to gain
    is_wide: bool = False

    @property
    def variants(self) -> tuple[str, ...]:
        """The lab compiled, which meta.compile: auto decides for in a long run, and with other ways of computing."""
        return ("lab", "lab-plain", "lab-bf16") if self.is_wide else ("lab", "lab-plain")


ONE_OPTIMIZER = "one optimiser and one gradient norm for both nets, where the lab has one for each"
VALUES_AGAIN = "values of the batch are computed again before the update"
TIANSHOU_PPO = f"{ONE_OPTIMIZER}; {VALUES_AGAIN}, and so are log probabilities"

ROWS = (
    Row(
        "ppo_cartpole",
        "PPO CartPole, 4 envs, horizon 256, minibatch 128, 15 epochs, two 64-64 tanh nets",
        "ppo_cartpole",
        peers={
            "sb3": ONE_OPTIMIZER,
            "sbx": "",
            "tianshou": TIANSHOU_PPO,
            "torchrl": f"{ONE_OPTIMIZER}; {VALUES_AGAIN}; a loop written from its parts, without a log",
        },
    ),
    Row(
        "sac_pendulum",
        "SAC Pendulum, 4 envs, 1 update per frame, batch 256, 256-256 relu nets",
        "sac_pendulum",
        {
            "agent.algorithm.training_iter": 4,
            "agent.memory.batch_size": 256,
            "agent.net.hid_layers": [256, 256],
        },
        peers={
            "sb3": "constant learning rate",
            "sbx": "constant learning rate; all gradient steps of a training are one compiled call",
            "tianshou": "constant learning rate; an optimiser for each critic",
            "torchrl": "constant learning rate; a loop written from its parts, without a log",
        },
        is_wide=True,
    ),
    Row(
        "dqn_cartpole",
        "DQN CartPole, 4 envs, 1 update per 4 frames, batch 128, 5-step, 128-128 relu net (dqn_boltzmann_cartpole)",
        "dqn_boltzmann_cartpole",
        peers={
            "sb3": "constant learning rate",
            "sbx": "constant learning rate; no gradient clipping",
            "tianshou": "constant learning rate; no gradient clipping; the target net is copied whole, not mixed",
        },
    ),
    Row(
        "a2c_cartpole",
        "A2C CartPole, 4 envs, 32 steps, two 64-64 tanh nets",
        "a2c_gae_cartpole",
        peers={
            "sb3": f"constant learning rate; {ONE_OPTIMIZER}",
            "tianshou": f"constant learning rate; {ONE_OPTIMIZER}; {VALUES_AGAIN}; advantages are not standardised",
        },
    ),
    Row(
        "ppo_hopper",
        "PPO Hopper, 16 envs, horizon 2048, minibatch 64, 10 epochs, two 256-256 tanh nets (ppo_hopper)",
        "ppo_hopper",
        {"agent.algorithm.time_horizon": 2048, "agent.net.hid_layers": [256, 256]},
        quick={"agent.algorithm.time_horizon": 64},
        peers={
            "sb3": f"constant learning rate; {ONE_OPTIMIZER}; value targets are not normalised",
            "sbx": "constant learning rate; value targets are not normalised",
            "tianshou": f"constant learning rate; {TIANSHOU_PPO}; returns are scaled, not rewards",
        },
        is_wide=True,
    ),
    Row(
        "ppo_pong",
        "PPO Pong, 16 envs, horizon 128, minibatch 256, 4 epochs, Nature CNN (ppo_atari)",
        "ppo_atari",
        {"env": "ALE/Pong-v5"},
        quick={"agent.algorithm.time_horizon": 32},
        peers={
            "sb3": "constant learning rate; its own Atari wrappers in Python, where the lab's are in C++",
            "sbx": "as sb3; actor and critic pass through the CNN one after the other; values are not clipped",
        },
        is_wide=True,
    ),
    *(
        Row(
            f"ppo_cartpole_{num_envs}",
            f"PPO CartPole with {num_envs} envs, horizon 32, minibatch 128, 15 epochs",
            "ppo_cartpole",
            {"env.num_envs": num_envs, "agent.algorithm.time_horizon": 32},
            quick={"agent.algorithm.time_horizon": 2048 // num_envs},
            peers={"sb3": ONE_OPTIMIZER, "sbx": "", "tianshou": TIANSHOU_PPO},
        )
        for num_envs in (256, 1024)
    ),
)
ROW_BY_NAME = {row.name: row for row in ROWS}


def build_spec(row: Row, quick: bool = False, overrides: Mapping[str, Any] | None = None, variant: str = "lab") -> Spec:
    """The spec of a row as the lab runs it and as peers read it."""
    settings: dict[str, Any] = {
        "env.max_frame": MAX_FRAME,
        "meta.max_session": 1,
        "meta.device": "cpu",
        **row.overrides,
        **(row.quick if quick else {}),
        **(overrides or {}),
        "meta.compile": variant != "lab-plain",
        "meta.precision": "bf16" if variant == "lab-bf16" else "float32",
    }
    return load_spec(row.spec, row.spec, settings).spec
