"""Becomes another program inside a network namespace: `python enter.py PARENT NAMESPACE_FD PROGRAM ARGUMENT...`.
With `-` in place of the descriptor it stays where it is.

The program dies with PARENT, the process that asked for it, however that ends. Run by its path, so that nothing of
Offbeat is imported: it starts in milliseconds.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000
CANNOT_ENTER, CANNOT_RUN = 125, 127


def enter(parent: int, namespace: int | None, argv: list[str]) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it was gone before we asked
        return CANNOT_ENTER
    if namespace is not None:
        if libc.setns(namespace, CLONE_NEWNET) != 0:
            print(f"offbeat: no way into the node's network: {os.strerror(ctypes.get_errno())}", file=sys.stderr)
            return CANNOT_ENTER
        os.close(namespace)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and what is ignored would stay so
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"offbeat: {argv[0]!r} cannot be run: {error.strerror}", file=sys.stderr)
    return CANNOT_RUN


if __name__ == "__main__":
    _, own_parent, descriptor, *program = sys.argv
    sys.exit(enter(int(own_parent), None if descriptor == "-" else int(descriptor), program))
