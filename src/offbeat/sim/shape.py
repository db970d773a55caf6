"""StepShape: where in a step its gradients become ready, bucket by bucket as DistributedDataParallel has them."""

from dataclasses import dataclass

FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20  # torch's defaults
FORWARD_SHARE = 1 / 3  # of a step's compute; backward is the rest


@dataclass(frozen=True)
class Bucket:
    """Gradients that are averaged at once."""

    nbytes: int
    ready_share: float  # of the step's compute, until its last gradient is there


@dataclass(frozen=True, kw_only=True)
class StepShape:
    """The inside of a step; the optimizer's share of its compute comes after the gradients are averaged."""

    buckets: tuple[Bucket, ...]  # in the order they become ready
    optimizer_share: float = 0.0

    @property
    def nbytes(self) -> int:
        return sum(bucket.nbytes for bucket in self.buckets)


def usual_shape(nbytes: int) -> StepShape:
    """Of a model of which only the bytes are known: a third is forward, gradients come evenly over the rest."""
    sizes = [min(nbytes, FIRST_BUCKET_BYTES)]
    while (left := nbytes - sum(sizes)) > 0:
        sizes.append(min(left, BUCKET_BYTES))
    before, buckets = 0, []
    for size in sizes:
        before += size
        buckets.append(Bucket(size, FORWARD_SHARE + (1 - FORWARD_SHARE) * before / max(nbytes, 1)))
    return StepShape(buckets=tuple(buckets))
