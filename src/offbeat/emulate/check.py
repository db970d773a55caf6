"""What a user may ask of a cluster; anything else is bad input, in one sentence."""

from collections.abc import Sequence
from math import isfinite

from ..errors import BadInput
from ..sim.rates import parse_rate

NODES_AT_MOST = 1023  # ports of a bridge
BYTES_PER_SECOND_AT_LEAST = 125.0
BYTES_PER_SECOND_AT_MOST = float(2**32 - 1)  # the shaper counts in 32 bits
DELAY_SECONDS_AT_MOST = 10.0


def check_nodes(nodes: int) -> int:
    if not 1 <= nodes <= NODES_AT_MOST:
        raise BadInput(f"{nodes} nodes cannot be emulated: choose 1 to {NODES_AT_MOST}")
    return nodes


def check_node(node: int, nodes: int) -> int:
    if not 0 <= node < nodes:
        raise BadInput(f"there is no node {node}: the cluster has nodes 0 to {nodes - 1}")
    return node


def link_speeds(link: str | Sequence[str], nodes: int) -> tuple[float, ...]:
    """Bytes per second of each node's link."""
    texts = [link] * nodes if isinstance(link, str) else list(link)
    if len(texts) != nodes:
        raise BadInput(f"{len(texts)} link speeds do not fit {nodes} nodes: give one for all, or one for each")
    speeds = tuple(map(parse_rate, texts))
    for text, speed in zip(texts, speeds, strict=True):
        if not BYTES_PER_SECOND_AT_LEAST <= speed <= BYTES_PER_SECOND_AT_MOST:
            raise BadInput(f"a link of {text} cannot be shaped: choose 1kbit to 34gbit")
    return speeds


def link_delays(delay: float | Sequence[float], nodes: int) -> tuple[float, ...]:
    """Seconds that each node's frames are held back."""
    delays = tuple(delay) if isinstance(delay, Sequence) else (delay,) * nodes
    if len(delays) != nodes:
        raise BadInput(f"{len(delays)} delays do not fit {nodes} nodes: give one for all, or one for each")
    for seconds in delays:
        if not (isfinite(seconds) and 0 <= seconds <= DELAY_SECONDS_AT_MOST):
            raise BadInput(f"a delay of {seconds} s cannot be emulated: choose 0 to {DELAY_SECONDS_AT_MOST:g} s")
    return delays
