"""rate_factor: what share of its learning rate an optimizer has in a step."""

CONSTANT, ONE_CYCLE = "constant", "one-cycle"
SCHEDULES = (CONSTANT, ONE_CYCLE)
RISING = 0.2  # of all steps


def rate_factor(schedule: str, step: int, steps: int) -> float:
    """In step 1 to `steps`. One cycle rises from near 0 to 1 over the first fifth, then falls to near 0."""
    if schedule == CONSTANT:
        return 1.0
    top = RISING * steps
    return step / top if step <= top else (steps + 1 - step) / (steps + 1 - top)
