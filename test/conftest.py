"""What every test shares: one torch thread, and a cache folder of its own."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _quiet_machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two torch threads on a busy machine slow tiny nets down several times; the user's own cache stays untouched."""
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("SLM_LAB_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
