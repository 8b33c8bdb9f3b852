"""Small specs: every algorithm, with nets of every kind, on envs that are fast and end their episodes."""

from typing import Any

from slm_lab.spec.loading import parse_spec
from slm_lab.spec.schema import Spec

NAME = "fault"
_PPO = {"time_horizon": 16, "minibatch_size": 16, "training_epoch": 2}
_START = {"training_start_step": 60, "training_frequency": 8}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "Random": {},
    "Reinforce": {"training_frequency": 20, "entropy_coef_spec": 0.01},
    "ActorCritic": {"training_frequency": 16, "lam": 0.95, "normalize_v_targets": True},
    "PPO": _PPO,
    "SIL": {"training_frequency": 16, "lam": 0.95, "training_iter": 2},
    "PPOSIL": _PPO,
    "SARSA": {"training_frequency": 8},
    "VanillaDQN": _START,
    "DQN": {**_START, "training_iter": 2},
    "DoubleDQN": {**_START, "training_batch_iter": 2},
    "SoftActorCritic": {**_START, "training_iter": 1, "policy_delay": 2},
    "CrossQ": {**_START, "training_iter": 1},
}
# those that only the tests of exact resume stop, not the rows of this bench
OTHERS: dict[str, dict[str, Any]] = {
    "TD3": {**_START, "training_iter": 2},
    "DDPG": {**_START, "training_iter": 1},
    "PQN": {"time_horizon": 16, "minibatch_size": 24},
}
CONTINUOUS = ("TD3", "DDPG")
_REPLAY = {"name": "Replay", "batch_size": 8, "max_size": 300}
_PRIORITIZED = {**_REPLAY, "name": "PrioritizedReplay", "num_step_returns": 3}
MEMORIES = {
    "VanillaDQN": _REPLAY,
    "DQN": {**_REPLAY, "use_cer": True},
    "DoubleDQN": _PRIORITIZED,
    "SoftActorCritic": _PRIORITIZED,
    "CrossQ": _REPLAY,
    "TD3": _REPLAY,
    "DDPG": _PRIORITIZED,
}
NETS: dict[str, dict[str, Any]] = {
    "MLP": {"type": "MLPNet", "hid_layers": [16], "optim_spec": {"name": "Adam", "lr": 3e-3}},
    "CNN": {"type": "ConvNet", "conv_hid_layers": [[4, 4, 2], [4, 3, 1]], "fc_hid_layers": [8], "normalize": True},
    "RNN": {"type": "RecurrentNet", "cell_type": "GRU", "rnn_hidden_size": 8, "seq_len": 8},
}
# what the lab has no recurrent nets for
NOT_RECURRENT = ("Random", "SIL", "PPOSIL", "SARSA", "SoftActorCritic", "CrossQ")
ENVS = {"MLP": "CartPole-v1", "CNN": "probe/Image-v0", "RNN": "CartPole-v1"}


def make_spec(
    algorithm: str,
    net: str | dict[str, Any] = "MLP",
    env: dict[str, Any] | None = None,
    meta: dict[str, Any] | None = None,
    keys: dict[str, Any] | None = None,
    memory: dict[str, Any] | None = None,
) -> Spec:
    """A spec of the table above, or with a net, a memory or more keys of the algorithm of one's own."""
    memory = memory or MEMORIES.get(algorithm, {"name": "OnPolicyBatchReplay"})
    if net == "RNN" and memory["name"] != "OnPolicyBatchReplay":
        # stretches of steps are drawn uniformly and have returns of one step
        memory = {**_REPLAY, "batch_size": 2}
    raw = {
        "name": NAME,
        "agent": {
            "algorithm": {"name": algorithm, **{**ALGORITHMS, **OTHERS}.get(algorithm, {}), **(keys or {})},
            "memory": memory,
            "net": NETS[net] if isinstance(net, str) else net,
        },
        "env": {
            "name": "Pendulum-v1" if algorithm in CONTINUOUS else ENVS[net] if isinstance(net, str) else "CartPole-v1",
            "num_envs": 4,
            "num_workers": 0,
            "max_frame": 800,
            **(env or {}),
        },
        "meta": {
            "log_frequency": 100,
            "checkpoint_frequency": 100,
            "rigorous_eval": 0,
            "final_eval": 0,
            "compile": False,
            "device": "cpu",
            **(meta or {}),
        },
    }
    return parse_spec(raw)[0]
