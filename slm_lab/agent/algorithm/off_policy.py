"""What algorithms share that learn from a replay."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from slm_lab.agent.algorithm.base import Algorithm, Context, Metrics
from slm_lab.agent.learn.gradient import Report
from slm_lab.agent.memory.batch import Transition
from slm_lab.agent.memory.build import build_replay
from slm_lab.lib.due import Due
from slm_lab.spec.algorithm import OffPolicySpec
from slm_lab.spec.schema import AgentSpec

ReplayConfig = TypeVar("ReplayConfig", bound=OffPolicySpec)


class OffPolicy(Algorithm[ReplayConfig]):
    """Trains on batches of past steps every few frames; targets follow their nets."""

    stores_raw_obs = True

    def __init__(self, spec: AgentSpec, context: Context, carry_size: int = 0) -> None:
        super().__init__(spec, context)
        self.memory = build_replay(spec.memory, context.build_setting(self.config.gamma, carry_size))
        self.replays = {"memory": self.memory}
        self.train_due = Due(self.config.training_frequency)

    def observe(self, step: Transition) -> None:
        self.memory.add(step)

    @property
    def is_ready(self) -> bool:
        """Whether the memory holds enough to learn from."""
        return self.frame > self.config.training_start_step

    def update(self, frame: int) -> Metrics | None:
        self.frame = frame
        for learner in self.learners.values():
            if learner.target is not None:
                # asked at every step, trained or not, so that a resumed run replaces it at the same frames
                learner.target.replace_if_due(frame)
        if not self.train_due(frame) or not self.is_ready:
            return None
        self._set_lr(frame)
        reports: list[Report] = []
        for _ in range(self.config.training_iter):
            reports += self.train(self.sample())
        return self.gather(reports)

    def sample(self) -> Any:
        """A batch as the nets see it."""
        batch = self.memory.sample(self.frame)
        return batch._replace(obs=self.context.encode(batch.obs), next_obs=self.context.encode(batch.next_obs))

    @abstractmethod
    def train(self, batch: Any) -> Sequence[Report]:
        """Update the nets on a batch; a report for each gradient step."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "memory": self.memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.memory.load_state_dict(state["memory"])
        self.train_due.skip_to(self.frame)
        for learner in self.learners.values():
            if learner.target is not None:
                learner.target.skip_to(self.frame)
