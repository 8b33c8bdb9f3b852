"""Small specs of every algorithm and kind of net."""

from typing import Any

from test.agent.algorithm.conftest import CARTPOLE, REPLAY, START
from test.agent.algorithm.conftest import CASES as ALGORITHM_CASES
from test.agent.algorithm.test_dict_obs import DICT_NET

PPO: dict[str, Any] = {"name": "PPO", "time_horizon": 16, "minibatch_size": 32, "training_epoch": 2}
IMAGE: dict[str, Any] = {"env": "probe/Image-v0"}
CONV: dict[str, Any] = {
    "type": "ConvNet",
    "normalize": True,
    "conv_hid_layers": [[4, 3, 2]],
    "fc_hid_layers": [16],
    "hid_layers_activation": "relu",
}
GRU: dict[str, Any] = {"type": "RecurrentNet", "fc_hid_layers": [16], "rnn_hidden_size": 8, "seq_len": 8}
NORMED = [{"LazyLinear": {"out_features": 16}}, {"LazyBatchNorm1d": {}}, "Tanh", {"Dropout": {"p": 0.1}}]
ARC: dict[str, Any] = {
    "type": "TorchArcNet",
    "arc": {
        "modules": {"body": {"Sequential": NORMED}},
        "graph": {"input": "x", "modules": {"body": ["x"]}, "output": "body"},
    },
}
NET_CASES: dict[str, dict[str, Any]] = {
    "ppo_multi": {"env": "probe/MultiAction-v0", "algorithm": PPO},
    "ppo_conv": {**IMAGE, "algorithm": PPO, "net": CONV},
    "ppo_rnd": {**CARTPOLE, "algorithm": {**PPO, "rnd": {}}},
    "ppo_gru": {**CARTPOLE, "algorithm": PPO, "net": GRU},
    "ppo_dict": {"env": "test/Picture-v0", "algorithm": PPO, "net": {"obs_keys": ["image", "vector"], **DICT_NET}},
    "a2c_lstm": {
        **CARTPOLE,
        "algorithm": {"name": "ActorCritic", "lam": 0.95, "training_frequency": 16},
        "net": {**GRU, "cell_type": "LSTM"},
    },
    "dqn_arc": {**CARTPOLE, "algorithm": {"name": "DQN", **START}, "memory": REPLAY, "net": ARC},
    "dqn_radam": {
        **CARTPOLE,
        "algorithm": {"name": "DQN", **START},
        "memory": REPLAY,
        "net": {"optim_spec": {"name": "RAdam", "lr": 1e-3}},
    },
    "dqn_dueling_conv": {
        **IMAGE,
        "algorithm": {"name": "DQN", **START},
        "memory": REPLAY,
        "net": {**CONV, "type": "DuelingConvNet"},
    },
    "dqn_masked": {"env": "probe/Masked-v0", "algorithm": {"name": "DQN", **START}, "memory": REPLAY},
    "dqn_gru": {
        **CARTPOLE,
        "algorithm": {"name": "DoubleDQN", **START},
        "memory": {**REPLAY, "batch_size": 8},
        "net": {**GRU, "burn_in": 4, "update_frequency": 8},
    },
    "sac_conv": {**IMAGE, "algorithm": {"name": "SoftActorCritic", **START}, "memory": REPLAY, "net": CONV},
    # its replay keeps each frame of a stack once
    "dqn_stack": {
        "env": "ALE/Pong-v5",
        "num_envs": 2,
        "algorithm": {"name": "DQN", "training_start_step": 8},
        "memory": {**REPLAY, "batch_size": 8},
        "net": {**CONV, "conv_hid_layers": [[4, 8, 8]]},
    },
}
CASES = {**ALGORITHM_CASES, **NET_CASES}
# Updates of the size of MuJoCo Playground's, 480 gradient steps, and Atari's, 32.
LARGE_CASES: dict[str, dict[str, Any]] = {
    "ppo_2048_envs": {
        "env": "Pendulum-v1",
        "num_envs": 2048,
        "normalize_obs": True,
        "algorithm": {**PPO, "time_horizon": 30, "minibatch_size": 2048, "training_epoch": 16},
    },
    "ppo_atari": {
        "env": "ALE/Pong-v5",
        "num_envs": 16,
        "algorithm": {**PPO, "time_horizon": 128, "minibatch_size": 256, "training_epoch": 4},
        "net": {
            **CONV,
            "conv_hid_layers": [[32, 8, 4], [64, 4, 2], [64, 3, 1]],
            "fc_hid_layers": [512],
            "shared": True,
        },
    },
}
# other kernels, other last bits; categorical targets are summed in another order
ROUNDED = ("conv", "dict", "gru", "lstm", "stack", "ddpg", "rainbow", "xqc")
