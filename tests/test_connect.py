"""How the workers of a run are joined."""

import pytest
import torch.distributed as dist

from offbeat.connect import gradient_backend


def test_nccl_only_where_every_rank_of_a_group_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    assert gradient_backend(["a", "b"]) == "nccl"
    assert gradient_backend(["a", "a"]) == "gloo"  # shared, whatever nodes the layout says
    assert gradient_backend(["a", None]) == "gloo"
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)
    assert gradient_backend(["a", "b"]) == "gloo"
