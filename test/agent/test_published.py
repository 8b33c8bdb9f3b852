"""Specs as the published lab has them: each kind that its program runs trains two updates here."""

import math
from typing import Any

import pytest

from slm_lab.spec.loading import parse_spec

ADAM, RMSPROP = {"name": "Adam", "lr": 1e-3}, {"name": "RMSprop", "lr": 1e-3}
OWN = {"use_same_optim": False, "actor_optim_spec": ADAM, "critic_optim_spec": RMSPROP, "gpu": "auto"}
MLP: dict[str, Any] = {"type": "MLPNet", "hid_layers": [8], "hid_layers_activation": "relu"}
RNN: dict[str, Any] = {
    "type": "RecurrentNet",
    "cell_type": "GRU",
    "rnn_hidden_size": 8,
    "seq_len": 8,
    "fc_hid_layers": [8],
}
ARC = {
    "modules": {"body": {"Sequential": [{"LazyLinear": {"out_features": 8}}, {"Tanh": None}]}},
    "graph": {"input": "x", "modules": {"body": ["x"]}, "output": "body"},
}
PPO: dict[str, Any] = {"name": "PPO", "time_horizon": 16, "training_epoch": 1, "clip_eps_spec": 0.2}
A2C: dict[str, Any] = {"name": "ActorCritic", "lam": 0.95, "num_step_returns": None, "training_frequency": 8}
DQN: dict[str, Any] = {"name": "DQN", "training_frequency": 4, "training_iter": 1, "training_batch_iter": 1}
DQN |= {"explore_var_spec": {"name": "linear_decay", "start_val": 1.0, "end_val": 0.1, "end_step": 100}}
SIL: dict[str, Any] = {"training_iter": 1, "training_batch_iter": 1}
ROLLOUT, REPLAY = {"name": "OnPolicyBatchReplay"}, {"name": "Replay", "batch_size": 8, "max_size": 500}
SIL_REPLAY = {**ROLLOUT, "sil_replay_name": "Replay", "batch_size": 8, "max_size": 500, "use_cer": True}

# algorithm, memory, net, and what else differs
SPECS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "shared_net": (A2C, ROLLOUT, {**MLP, **OWN, "shared": True}, {}),
    "same_optimiser": (PPO, ROLLOUT, {**MLP, **OWN, "use_same_optim": True}, {}),
    "dead_key": (A2C, ROLLOUT, {**MLP, **OWN, "shared": False, "normalize": True}, {}),
    "dead_search_key": (A2C, ROLLOUT, {**MLP, **OWN}, {"search": {"agent.net.lr_decay_frequency__choice": [1]}}),
    "arc_with_batch_norm": (A2C, ROLLOUT, {"type": "TorchArcNet", "arc": ARC, "batch_norm": False}, {}),
    "minibatch_of_4": (PPO, ROLLOUT, {**MLP, **OWN}, {}),
    "minibatch_with_a_rest": ({**PPO, "minibatch_size": 12}, ROLLOUT, {**MLP, **OWN}, {}),
    "minibatch_beyond_the_batch": ({**PPO, "minibatch_size": 64}, ROLLOUT, {**MLP, **OWN}, {}),
    "ppo_with_a_recurrent_net": ({**PPO, "minibatch_size": 24}, ROLLOUT, {**RNN, **OWN, "shared": True}, {}),
    "sil_with_a_recurrent_net": ({**A2C, **SIL, "name": "SIL"}, SIL_REPLAY, {**RNN, **OWN, "shared": True}, {}),
    "ppo_sil": ({**PPO, **SIL, "name": "PPOSIL"}, SIL_REPLAY, {**MLP, **OWN, "normalize": True}, {}),
    "drqn_with_cer": (DQN, {**REPLAY, "use_cer": True}, {**RNN, "update_frequency": 8}, {}),
    "dqn_shared": (DQN, REPLAY, {**MLP, "shared": True, "update_type": "replace", "update_frequency": 8}, {}),
    "n_steps": ({**A2C, "lam": None, "num_step_returns": 5, "training_frequency": 1}, ROLLOUT, {**MLP, **OWN}, {}),
    "sac_gumbel": ({"name": "SoftActorCritic", "action_pdtype": "GumbelSoftmax"}, REPLAY, MLP, {}),
    "workers": (A2C, ROLLOUT, {**MLP, **OWN}, {"meta": {"distributed": "synced", "max_session": 2}}),
    "random": (
        {"name": "Random", "training_frequency": 1},
        {**REPLAY, "name": "PrioritizedReplay", "epsilon": 0.0},
        {},
        {},
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_two_updates(lab, name: str) -> None:
    algorithm, memory, net, rest = SPECS[name]
    if algorithm["name"] == "SoftActorCritic":
        algorithm = {**algorithm, "training_frequency": 1, "training_start_step": 8}
    raw = {
        "name": name,
        "agent": {"name": name, "algorithm": {"action_policy": "default", "gamma": 0.99, **algorithm}},
        "env": {"name": "CartPole-v1", "num_envs": 2, "max_t": None, "max_frame": 5000},
        "meta": {"distributed": False, "max_session": 1, "max_trial": 1},
        **rest,
    }
    if algorithm["name"] == "DQN":
        raw["agent"]["algorithm"]["action_policy"] = "epsilon_greedy"
    raw["agent"] |= {"memory": memory, "net": net}
    spec, notes = parse_spec(raw)
    assert notes
    is_random = algorithm["name"] == "Random"
    trained = lab.train(spec, 1000, until=lambda agent: agent.algorithm.opt_step >= 2)
    assert (trained.agent.algorithm.opt_step == 0) if is_random else (trained.agent.algorithm.opt_step >= 2)
    assert all(math.isfinite(value) for row in trained.metrics for key, value in row.items() if "sil" not in key)
