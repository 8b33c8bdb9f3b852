"""Uniformly random actions: a baseline, and a check of everything around the algorithm."""

import torch
from torch import Tensor

from slm_lab.agent.algorithm.base import Act, Algorithm, Carry, Context, Metrics
from slm_lab.agent.memory.batch import Transition
from slm_lab.lib.data import State
from slm_lab.spec.algorithm import RandomSpec
from slm_lab.spec.schema import AgentSpec


class Random(Algorithm[RandomSpec]):
    """Learns nothing."""

    def __init__(self, spec: AgentSpec, context: Context) -> None:
        super().__init__(spec, context)
        # evaluation has its own generator, so that it does not change training
        self.eval_generator = torch.Generator(context.device).manual_seed(context.act_generator.initial_seed() + 1)

    def act(self, obs: Tensor, carry: Carry, explore: bool) -> Act:
        generator = self.context.act_generator if explore else self.eval_generator
        return self.build_act(self.context.draw_random(obs, generator), obs, carry)

    def init_carry(self, num_envs: int) -> Carry:
        return None

    def observe(self, step: Transition) -> None:
        pass

    def update(self, frame: int) -> Metrics | None:
        return None

    def state_dict(self) -> State:
        return {**super().state_dict(), "eval_generator": self.eval_generator.get_state()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.eval_generator.set_state(state["eval_generator"])
