"""End a session before its last frame: `meta.stop`."""

from collections.abc import Iterable

from slm_lab.experiment.tracker import Tracker
from slm_lab.lib.errors import SpecError, nearest
from slm_lab.spec.schema import Spec, StopSpec


def check_stop(spec: Spec, train_columns: Iterable[str], eval_columns: Iterable[str]) -> None:
    """Refuse a condition on a column that the table will not have."""
    stop = spec.meta.stop
    if stop is None:
        return
    if stop.counts_evaluations and not spec.meta.num_eval_episode:
        raise SpecError("meta.stop.for: meta.rigorous_eval is 0, so there are no evaluations; count rows, e.g. 5 rows")
    columns = list(eval_columns if stop.counts_evaluations else train_columns)
    for name in stop.conditions:
        if name not in columns:
            where = "evaluations" if stop.counts_evaluations else "rows"
            known = ", ".join(columns)
            raise SpecError(f"meta.stop.{name}: {where} have no such column{nearest(name, columns)} (known: {known})")


class StopCondition:
    """Checks the last rows of a table, which are in the checkpoint, so a resumed session stops at the same frame."""

    def __init__(self, spec: StopSpec | None, trained: Tracker, evaluated: Tracker) -> None:
        self.spec = spec
        self.tracker = evaluated if spec is not None and spec.counts_evaluations else trained

    @property
    def is_met(self) -> bool:
        """Whether the last rows fulfil every condition."""
        if self.spec is None or len(self.tracker.rows) < self.spec.count:
            return False
        recent = self.tracker.rows[-self.spec.count :]
        for name, (sign, bound) in self.spec.conditions.items():
            if name not in self.tracker.columns:
                # is_success, which is known only after the first episode
                return False
            column = self.tracker.columns.index(name)
            # an unknown value, NaN, does not fulfil any condition
            if not all(row[column] >= bound if sign == ">=" else row[column] <= bound for row in recent):
                return False
        return True
