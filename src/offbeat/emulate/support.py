"""What an emulated network needs of the machine; what is missing is said in one sentence, with a way around."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import BadInput

OTHERWISE = "or use --loopback, which runs unshaped over this machine's loopback"


def check_machine() -> None:
    """What can be told before anything is made."""
    if sys.platform != "linux":
        raise BadInput(
            f"an emulated network needs Linux, and this is {sys.platform}: go to such a machine, {OTHERWISE}"
        )
    if os.geteuid() != 0:
        raise BadInput(f"an emulated network needs root, for its network namespaces: use sudo, {OTHERWISE}")
    try:
        import pyroute2  # noqa: F401
    except ImportError:
        raise BadInput(
            f"an emulated network needs pyroute2, which is not installed: pip install 'offbeat[emulate]', {OTHERWISE}"
        ) from None


@contextmanager
def needing(what: str) -> Iterator[None]:
    """Around a system call or a request to the kernel that makes `what`."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        yield
    except (OSError, NetlinkError) as error:
        number = error.code if isinstance(error, NetlinkError) else error.errno
        if number in (errno.EPERM, errno.EACCES):
            raise BadInput(
                f"an emulated network needs {what}, which this process may not make: "
                f"give the container CAP_SYS_ADMIN and CAP_NET_ADMIN, {OTHERWISE}"
            ) from error
        reason = os.strerror(number) if number else str(error)
        raise BadInput(
            f"an emulated network needs {what}, which this kernel did not make ({reason}): "
            f"use a kernel that has it, {OTHERWISE}"
        ) from error


def missing(*, delay: bool = False) -> str | None:
    """Why no cluster can be emulated here, in one sentence; None if one can (it is tried). `delay`: one with delays."""
    from .cluster import Cluster

    try:
        with Cluster(1, delay=0.001 if delay else 0.0):
            return None
    except BadInput as error:
        return str(error)
