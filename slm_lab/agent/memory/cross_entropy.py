"""The memory of the cross-entropy method: only the best of the finished episodes are learned from."""

import numpy as np
import torch

from slm_lab.agent.memory.batch import Rollout
from slm_lab.agent.memory.rollout import OnPolicyReplay, RolloutSetting
from slm_lab.spec.memory import OnPolicyCrossEntropySpec


class OnPolicyCrossEntropy(OnPolicyReplay):
    """Whole episodes, without those whose return is below a percentile of the batch."""

    def __init__(self, spec: OnPolicyCrossEntropySpec, setting: RolloutSetting) -> None:
        super().__init__(spec, setting)
        self.percentile = spec.cross_entropy

    def sample(self) -> Rollout:
        reward = torch.stack([row["reward"] for row in self.rows])
        total = np.array([float(reward[begin:end, env].sum()) for env, begin, end in self.episodes])
        is_kept = total >= np.percentile(total, self.percentile)
        self.episodes = [episode for episode, kept in zip(self.episodes, is_kept, strict=True) if kept]
        return super().sample()
