"""Combinations of valid keys that make no sense together; refused, never quietly corrected."""

from slm_lab.spec.algorithm import ActorCriticSpec, PPOSpec, ReinforceSpec
from slm_lab.spec.net import NetSpec
from slm_lab.spec.schema import Spec
from slm_lab.spec.search_space import search_problems


def check_combination(spec: Spec) -> list[str]:
    """Every conflict in a spec whose keys are each valid."""
    algorithm, env, memory = spec.agent.algorithm, spec.env, spec.agent.memory
    problems = []
    if algorithm.action_policy in ("epsilon_greedy", "boltzmann") and algorithm.explore_var_spec is None:
        problems.append(f"agent.algorithm.action_policy: {algorithm.action_policy} needs explore_var_spec")
    if env.max_frame < env.num_envs:
        problems.append(f"env.max_frame: {env.max_frame} is less than one step of num_envs {env.num_envs}")
    if env.num_workers > env.num_envs:
        problems.append(f"env.num_workers: {env.num_workers} workers for num_envs {env.num_envs}; use at most num_envs")
    if isinstance(algorithm, PPOSpec):
        problems += _ppo_problems(algorithm, env.num_envs, memory.name)
    if isinstance(algorithm, ActorCriticSpec):
        problems += _actor_critic_problems(algorithm, memory.name)
    if isinstance(algorithm, ReinforceSpec):
        problems += _reinforce_problems(spec.agent.net)
    problems += search_problems(spec)
    return problems


def _reinforce_problems(net: NetSpec) -> list[str]:
    problems = [f"agent.net.critic_{key}: Reinforce has no critic; remove it" for key in net.critic]
    if net.shared:
        problems.append("agent.net.shared: Reinforce has no critic to share a net with; remove it")
    return problems


def _ppo_problems(algorithm: PPOSpec, num_envs: int, memory: str) -> list[str]:
    problems = []
    if memory != "OnPolicyBatchReplay":
        problems.append(f"agent.memory.name: PPO needs OnPolicyBatchReplay, got {memory}")
    batch = algorithm.time_horizon * num_envs
    if batch % algorithm.minibatch_size:
        top = min(batch, algorithm.minibatch_size)
        # a bounded look: a hostile number must not turn the hint into hours
        near = next((size for size in range(top, max(0, top - 10_000), -1) if batch % size == 0), 1)
        problems.append(
            f"agent.algorithm.minibatch_size: {algorithm.minibatch_size} does not divide "
            f"time_horizon*num_envs = {algorithm.time_horizon}*{num_envs} = {batch}; {near} would"
        )
    if algorithm.clip_vloss and algorithm.normalize_v_targets:
        problems.append("agent.algorithm.clip_vloss: contradicts normalize_v_targets; set one of them to false")
    return problems


def _actor_critic_problems(algorithm: ActorCriticSpec, memory: str) -> list[str]:
    problems = []
    if algorithm.lam is not None and algorithm.num_step_returns is not None:
        problems.append("agent.algorithm.lam: contradicts num_step_returns; set one of them to null")
    if (
        memory == "OnPolicyBatchReplay"
        and algorithm.num_step_returns is not None
        and algorithm.num_step_returns > algorithm.training_frequency
    ):
        problems.append(
            f"agent.algorithm.num_step_returns: {algorithm.num_step_returns} steps do not fit in "
            f"training_frequency {algorithm.training_frequency}"
        )
    return problems
