"""Letters: what is merged is what was sent, and many pieces go as one."""

import pytest
import torch
from torch import Tensor

from offbeat.letter import GatheredLetter, Letter
from offbeat.parcel import Parcel


class OneRank:
    """An average over this rank and another one whose x stands still at zero, both of them as the wire has it."""

    def average(self, x: Tensor, ranks: tuple[int, ...], out: Tensor) -> "OneRank":
        self.done = True
        out.copy_(x / 2)
        return self

    def result(self) -> Tensor:
        raise AssertionError


def test_the_merge_uses_the_snapshot_as_it_was_rounded() -> None:
    """x + (mean - sent), not x + (mean - x): otherwise the mean would drift by the rounding, round after round."""
    x = torch.full((5,), 1.0)
    parcel = Parcel((x,), "bfloat16")
    x += 1 / 3  # bfloat16 knows no third
    parcel.send(OneRank(), (0, 1), 0, training=True)  # type: ignore[arg-type]
    for _ in parcel.receive():
        pass
    parcel.merge()
    third = torch.tensor(1 / 3).bfloat16()
    torch.testing.assert_close(x, torch.full((5,), 4 / 3 - float(third) + float(third / 2)), rtol=1e-6, atol=0)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
@pytest.mark.parametrize("wire_dtype", [None, "bfloat16"])
@pytest.mark.parametrize("late", [False, True])
def test_pieces_handled_together_end_where_those_do_that_are_handled_one_by_one(
    wire_dtype: str | None, late: bool, momentum: float
) -> None:
    sizes, ends = (5, 1, 16, 3), []
    for kind in (Letter, GatheredLetter):
        torch.manual_seed(0)
        xs = [torch.randn(size) for size in sizes]
        references = [x + 0.1 * torch.randn_like(x) for x in xs]
        letter = kind(list(zip(xs, references, strict=True)), wire_dtype, momentum)
        for _ in range(2):
            letter.send(OneRank(), (0, 1), training=True)  # type: ignore[arg-type]
            if late:
                for x in xs:
                    x += 1
                letter.merge()
            else:
                letter.adopt()
        ends.append(xs + references)
    for one_by_one, together in zip(*ends, strict=True):
        torch.testing.assert_close(together, one_by_one, rtol=1e-6, atol=1e-6)
