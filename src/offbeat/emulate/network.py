"""Network: the namespaces of a cluster that is up, and the cables between them."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

from . import links
from .children import Children
from .namespace import Visitor
from .tap import forwarder, make_tap

T = TypeVar("T")


class Network:
    """A bridge, to which nodes are joined one by one. It goes with the visitor that made it."""

    def __init__(self, visitor: Visitor, children: Children) -> None:
        self._visitor = visitor
        self.children = children
        self.nodes: list[int] = []  # descriptors of their namespaces
        self._switch = visitor.create()
        self.in_switch(links.make_bridge)

    def join(self, bytes_per_second: float, delay: float) -> None:
        """One more node."""
        node = len(self.nodes)
        self.nodes.append(self._visitor.create())
        if delay:
            self._lay_slow_cable(node, bytes_per_second, delay)
        else:
            self.in_switch(partial(links.make_veth, node, self.nodes[node]))
        self.in_switch(partial(links.plug_in, node, bytes_per_second))
        self.in_node(node, partial(links.furnish, node, bytes_per_second))

    def in_switch(self, function: Callable[[], T]) -> T:
        return self._visitor.inside(self._switch, function)

    def in_node(self, node: int, function: Callable[[], T]) -> T:
        return self._visitor.inside(self.nodes[node], function)

    def _lay_slow_cable(self, node: int, bytes_per_second: float, delay: float) -> None:
        with ExitStack() as ours:  # the forwarder keeps both ends
            near = self.in_node(node, partial(make_tap, links.INTERFACE))
            ours.callback(os.close, near)
            far = self.in_switch(partial(make_tap, links.port_name(node)))
            ours.callback(os.close, far)
            self.children.start(self._switch, forwarder(delay, bytes_per_second), stdin=near, stdout=far)
