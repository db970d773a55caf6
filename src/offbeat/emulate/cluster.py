"""Cluster: nodes joined by a bridge, each by a link of its own speed, for as long as a `with` statement lasts."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any, Self

from ..errors import BadInput
from . import links
from .check import check_node, check_nodes, link_delays, link_speeds
from .children import Children, Stream
from .namespace import Visitor
from .network import Network
from .signals import leaving_in_order
from .strays import sweep
from .support import check_machine


class Cluster:
    """So many nodes on one machine; processes inside a node reach the others at their addresses, and nothing else.

        with Cluster(2, link=["100mbit", "1gbit"], delay=0.01) as cluster:
            worker = cluster.run(0, ["python", "worker.py", "--peer", cluster.address(1)])
            worker.wait()

    `link` is the speed of each node's link in each direction, one for all or one per node. `delay` is how many seconds
    later what a node sends arrives; a round trip takes the delays of both. All that was made and started is gone after
    the `with` statement, and if this process is killed.
    """

    interface = links.INTERFACE  # inside every node, such as for GLOO_SOCKET_IFNAME

    def __init__(
        self, nodes: int, link: str | Sequence[str] = "100mbit", *, delay: float | Sequence[float] = 0.0
    ) -> None:
        self.nodes = check_nodes(nodes)
        self.bytes_per_second: Sequence[float] = link_speeds(link, nodes)
        self.delays: Sequence[float] = link_delays(delay, nodes)
        self._network: Network | None = None
        self._teardown = ExitStack()
        self._owner = os.getpid()

    @property
    def addresses(self) -> tuple[str, ...]:
        return tuple(map(links.address, range(self.nodes)))

    def address(self, node: int) -> str:
        return links.address(check_node(node, self.nodes))

    def run(
        self,
        node: int,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: Stream = None,
        stdout: Stream = None,
        stderr: Stream = None,
        text: bool = False,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[Any]:
        """Start a program inside a node. `env` is added to this process's environment; the rest is as for `Popen`."""
        network = self._having(node)
        return network.children.start(
            network.nodes[node], argv,
            env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr, text=text, pass_fds=pass_fds,
        )  # fmt: skip

    def cut(self, node: int) -> None:
        """Pull the node's cable: from now on what it sends and what is sent to it is lost, without a word."""
        self._having(node).in_switch(partial(links.switch_port, node, up=False))

    def restore(self, node: int) -> None:
        """Plug the cable in again."""
        self._having(node).in_switch(partial(links.switch_port, node, up=True))

    def bytes_sent(self, node: int) -> int:
        """What left the node since the cluster is up, headers included; loopback does not count."""
        return self._having(node).in_node(node, partial(links.bytes_out, links.INTERFACE))

    def bytes_received(self, node: int) -> int:
        """What the bridge passed on to the node since the cluster is up, headers included."""
        return self._having(node).in_switch(partial(links.bytes_out, links.port_name(node)))

    def __enter__(self) -> Self:
        if self._network is not None:
            raise BadInput("the cluster is up already: make another Cluster for another network")
        check_machine()
        sweep()
        self._owner = os.getpid()
        with ExitStack() as stack:
            stack.enter_context(leaving_in_order())
            visitor = Visitor()
            stack.callback(visitor.close)
            children = Children(visitor)
            stack.callback(children.end)
            network = Network(visitor, children)
            for speed, delay in zip(self.bytes_per_second, self.delays, strict=True):
                network.join(speed, delay)
            self._network, self._teardown = network, stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, story: TracebackType | None
    ) -> None:
        self._network = None
        if os.getpid() == self._owner:  # a forked child leaves it to its parent
            self._teardown.close()

    def _having(self, node: int) -> Network:
        check_node(node, self.nodes)
        if self._network is None:
            raise BadInput("the cluster is not up: use it inside its `with` statement")
        return self._network
