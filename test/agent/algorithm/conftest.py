"""A small spec of every algorithm, between them with every kind of memory, net and option."""

from typing import Any

CARTPOLE: dict[str, Any] = {"env": "CartPole-v1", "max_t": 20}
PENDULUM: dict[str, Any] = {"env": "Pendulum-v1", "normalize_obs": True, "normalize_reward": True}
REPLAY: dict[str, Any] = {"name": "Replay", "batch_size": 32, "max_size": 200}
SIL_MEMORY: dict[str, Any] = {"name": "PrioritizedReplay", "batch_size": 32}
# past the first steps, so that batches hold more than one of them
START: dict[str, Any] = {"training_start_step": 60}
CASES: dict[str, dict[str, Any]] = {
    "reinforce": {**CARTPOLE, "algorithm": {"name": "Reinforce", "training_frequency": 16, "entropy_coef_spec": 0.01}},
    "reinforce_episodes": {
        **CARTPOLE,
        "algorithm": {"name": "Reinforce", "training_frequency": 4, "gamma": 0.95},
        "memory": "OnPolicyReplay",
    },
    "a2c_gae": {**CARTPOLE, "algorithm": {"name": "ActorCritic", "training_frequency": 16, "lam": 0.95}},
    "a2c_nstep_shared": {
        **CARTPOLE,
        "algorithm": {"name": "ActorCritic", "num_step_returns": 8, "val_loss_coef": 0.5, "entropy_coef_spec": 0.01},
        "net": {"shared": True, "clip_grad_val": 0.5, "optim_spec": {"name": "RMSprop", "lr": 1e-3}},
    },
    "a2c_full_episodes": {
        **CARTPOLE,
        "algorithm": {"name": "ActorCritic", "training_frequency": 4, "normalize_v_targets": True},
        "memory": "OnPolicyReplay",
    },
    "ppo": {
        **CARTPOLE,
        "algorithm": {
            "name": "PPO",
            "time_horizon": 32,
            "minibatch_size": 32,
            "training_epoch": 4,
            "clip_vloss": True,
            "val_loss_coef": 0.5,
        },
        "net": {"init_fn": "orthogonal_", "actor_init_std": 0.01, "critic_init_std": 1.0, "clip_grad_val": 0.5},
    },
    "ppo_continuous": {
        **PENDULUM,
        "algorithm": {
            "name": "PPO",
            "time_horizon": 32,
            "minibatch_size": 64,
            "training_epoch": 4,
            "normalize_advantages": "percentile",
            "symlog": True,
            "entropy_coef_spec": {"start_val": 0.01, "end_val": 0.0, "end_step": 1000},
        },
        "net": {"log_std_init": -0.5, "lr_scheduler_spec": {"name": "LinearToZero", "frame": 2000}},
    },
    "sarsa": {
        **CARTPOLE,
        "algorithm": {"name": "SARSA", "training_frequency": 8, "explore_var_spec": 0.3},
        "net": {"clip_grad_val": 0.5},
    },
    "vanilla_dqn": {
        **CARTPOLE,
        "algorithm": {"name": "VanillaDQN", **START, "training_batch_iter": 2, "action_policy": "boltzmann"},
        "memory": REPLAY,
        "net": {"loss_spec": {"name": "SmoothL1Loss"}},
    },
    "dqn": {
        **CARTPOLE,
        "algorithm": {"name": "DQN", **START},
        "memory": {**REPLAY, "use_cer": True},
        "net": {"update_frequency": 8},
    },
    "double_dqn_dueling_per": {
        **CARTPOLE,
        "normalize_obs": True,
        "algorithm": {"name": "DoubleDQN", **START, "training_iter": 2},
        "memory": {**REPLAY, "name": "PrioritizedReplay", "num_step_returns": 3, "beta": 0.6},
        "net": {"type": "DuelingMLPNet", "hid_layers": [16], "polyak_coef": 0.1, "clip_grad_val": 1.0},
    },
    "sac": {
        **PENDULUM,
        "algorithm": {"name": "SoftActorCritic", **START, "training_iter": 2, "policy_delay": 2},
        "memory": REPLAY,
        "net": {"polyak_coef": 0.05},
    },
    "sac_discrete": {
        **CARTPOLE,
        "algorithm": {
            "name": "SoftActorCritic",
            **START,
            "training_iter": 2,
            "symlog": True,
            "entropy_anneal": {"end_ratio": 0.1, "frames": 200},
        },
        "memory": {**REPLAY, "name": "PrioritizedReplay"},
        "net": {"update_type": "replace", "update_frequency": 12},
    },
    "crossq": {
        **PENDULUM,
        "algorithm": {"name": "CrossQ", **START, "training_iter": 2},
        "memory": REPLAY,
        "net": {"critic_hid_layers": [32], "critic_batch_norm": True},
    },
    "td3": {
        **PENDULUM,
        "algorithm": {"name": "TD3", **START, "training_iter": 2},
        "memory": REPLAY,
        "net": {"polyak_coef": 0.05},
    },
    "ddpg": {
        **PENDULUM,
        "algorithm": {
            "name": "DDPG",
            **START,
            "training_iter": 2,
            "action_noise": {"start_val": 0.5, "end_val": 0.0, "end_step": 200},
            "critic": {"kind": "categorical", "num_atom": 11},
        },
        "memory": {**REPLAY, "name": "PrioritizedReplay", "num_step_returns": 3},
        "net": {"update_frequency": 12, "critic_hid_layers": [32]},
    },
    "tqc": {
        **PENDULUM,
        "algorithm": {
            "name": "SoftActorCritic",
            **START,
            "training_iter": 2,
            "num_critic": 3,
            "q_reduction": "mean",
            "critic": {"kind": "quantile", "num_quantile": 5, "num_drop": 2},
        },
        "memory": REPLAY,
        "net": {"type": "SimbaNet", "width": 8, "num_block": 2},
    },
    "qr_dqn": {
        **CARTPOLE,
        "algorithm": {"name": "DQN", **START, "critic": {"kind": "quantile", "num_quantile": 5}},
        "memory": REPLAY,
    },
    "iqn": {
        **CARTPOLE,
        "algorithm": {"name": "DQN", **START, "critic": {"kind": "implicit", "num_quantile": 5, "num_cosine": 4}},
        "memory": REPLAY,
        "net": {"update_frequency": 8},
    },
    "rainbow": {
        **CARTPOLE,
        "algorithm": {
            "name": "DoubleDQN",
            **START,
            "explore_var_spec": 0.0,
            "critic": {"kind": "categorical", "num_atom": 11, "v_min": 0.0, "v_max": 20.0},
        },
        "memory": {**REPLAY, "name": "PrioritizedReplay", "num_step_returns": 3},
        "net": {"type": "DuelingMLPNet", "hid_layers": [16], "noisy": True, "polyak_coef": 0.1},
    },
    "her_dqn": {
        "env": "probe/BitFlip-v0",
        "algorithm": {"name": "DoubleDQN", **START},
        "memory": {**REPLAY, "name": "HindsightReplay"},
        "net": {"update_frequency": 8},
    },
    "her_sac": {
        "env": "probe/Reach-v0",
        "normalize_obs": True,
        "algorithm": {"name": "SoftActorCritic", **START},
        "memory": {**REPLAY, "name": "HindsightReplay", "strategy": "final", "num_goal": 1},
    },
    "ppo_sde": {
        **PENDULUM,
        "algorithm": {"name": "PPO", "time_horizon": 32, "minibatch_size": 64, "training_epoch": 2, "sde": {}},
    },
    "a2c_sde": {
        **PENDULUM,
        "algorithm": {"name": "ActorCritic", "num_step_returns": 8, "sde": {"sample_frequency": 3}},
        "net": {"shared": True},
    },
    "sac_sde": {
        **PENDULUM,
        "algorithm": {"name": "SoftActorCritic", **START, "sde": {"log_std_init": -3.0}},
        "memory": REPLAY,
    },
    "xqc": {
        **PENDULUM,
        "algorithm": {
            "name": "CrossQ",
            **START,
            "critic": {"kind": "categorical", "num_atom": 11, "v_min": -5.0, "v_max": 5.0},
        },
        "memory": REPLAY,
        "net": {"critic_hid_layers": [32], "critic_batch_norm": True, "critic_weight_norm": True},
    },
    "pqn": {
        **CARTPOLE,
        "algorithm": {"name": "PQN", "time_horizon": 16, "minibatch_size": 24},
        "net": {"layer_norm": True, "clip_grad_val": 10.0},
    },
    "sil": {
        **CARTPOLE,
        "algorithm": {"name": "SIL", "training_frequency": 24, "lam": 0.95, "sil_memory": SIL_MEMORY},
    },
    "ppo_sil": {
        **CARTPOLE,
        "algorithm": {
            "name": "PPOSIL",
            "time_horizon": 32,
            "minibatch_size": 64,
            "training_epoch": 2,
            "training_iter": 2,
            "sil_memory": {"name": "Replay", "batch_size": 32},
        },
        "net": {"shared": True},
    },
}
