"""An emulated network carries what its links allow, and nothing of it stays. Needs root: skipped elsewhere."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from commands import ROOT

from offbeat.emulate import Cluster, missing, support
from offbeat.emulate.namespace import BY_LOSS, CONGESTION
from offbeat.emulate.runs import new_name
from offbeat.emulate.strays import MARK, sweep
from offbeat.errors import BadInput

sys.path.append(str(ROOT / "benchmarks"))
import leaks

MISSING = missing(delay=True)
emulated = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

TRIES = 3  # for what a busy machine can spoil
PYTHON = [sys.executable, "-I", "-S", "-c"]
ECHO = """
import socket, sys
listener = socket.create_server((sys.argv[1], 5000))
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    while data := connection.recv(65536):
        connection.sendall(data)
"""
ASK = """
import socket, sys, time
connection = socket.create_connection((sys.argv[1], 5000), timeout=10)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
print("ready", flush=True)
for line in sys.stdin:  # each line: how long to wait for an answer
    began = time.monotonic()
    connection.settimeout(float(line))
    try:
        connection.sendall(b"x")
        connection.recv(1)
        print(time.monotonic() - began, flush=True)
    except TimeoutError:
        print("inf", flush=True)
"""
BOTH_WAYS = """
import socket, sys, threading, time
mode, address, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
if mode == "listen":
    listener = socket.create_server((address, 5001))
    print("ready", flush=True)
    connection, _ = listener.accept()
else:
    connection = socket.create_connection((address, 5001), timeout=10)
    connection.settimeout(None)
def send():
    until, block = time.monotonic() + seconds, bytes(65536)
    while time.monotonic() < until:
        connection.sendall(block)
    connection.shutdown(socket.SHUT_WR)
sender = threading.Thread(target=send)
sender.start()
began, nbytes, warm = time.monotonic(), 0, None
while data := connection.recv(1 << 20):
    now, nbytes = time.monotonic(), nbytes + len(data)
    if warm is None and now > began + 0.4:
        warm = now, nbytes  # TCP has found its speed
sender.join()
print(nbytes / (now - began), (nbytes - warm[1]) / (now - warm[0]), flush=True)
"""
MOVE = """
import socket, sys
if sys.argv[1] == "listen":
    listener = socket.create_server((sys.argv[2], 5002))
    print("ready", flush=True)
    connection, _ = listener.accept()
    nbytes = 0
    while data := connection.recv(1 << 20):
        nbytes += len(data)
    print(nbytes, flush=True)
else:
    with socket.create_connection((sys.argv[2], 5002), timeout=10) as connection:
        connection.sendall(bytes(int(sys.argv[3])))
"""


@contextmanager
def program(cluster: Cluster, node: int, script: str, *arguments: object) -> Iterator[Callable[..., str]]:
    """A script in a node. What is yielded writes it a line, if given one, and reads its next."""
    process = cluster.run(
        node, [*PYTHON, script, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def talk(line: str | None = None) -> str:
        if line is not None:
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
        return str(process.stdout.readline()).strip()

    try:
        yield talk
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        with suppress(BrokenPipeError):
            process.stdin.close()


def rates(cluster: Cluster, seconds: float) -> list[tuple[float, float]]:
    """Payload in bytes per second from node 1 to 0 and from 0 to 1, both at once: in all, and without the start."""
    with (
        program(cluster, 0, BOTH_WAYS, "listen", cluster.address(0), seconds) as zero,
        ready(zero),
        program(cluster, 1, BOTH_WAYS, "dial", cluster.address(0), seconds) as one,
    ):
        return [(float(in_all), float(steady)) for in_all, steady in (zero().split(), one().split())]


def check_rates(cluster: Cluster, bytes_per_second: float, *, seconds: float, at_least: float = 0.85) -> None:
    """Payload as a share of the nominal speed; headers alone take 4 %."""
    tried = []
    for _ in range(TRIES):
        measured = rates(cluster, seconds)
        assert max(in_all for in_all, _ in measured) < 1.02 * bytes_per_second
        tried.append([steady / bytes_per_second for _, steady in measured])
        if min(tried[-1]) > at_least:
            return
    pytest.fail(f"the link carried no more than these shares of its speed, each way: {tried}")


@contextmanager
def ready(talk: Callable[..., str]) -> Iterator[None]:
    assert talk() == "ready"
    yield


@contextmanager
def asking(cluster: Cluster, node: int, of: int) -> Iterator[Callable[..., str]]:
    with (
        program(cluster, of, ECHO, cluster.address(of)) as echo,
        ready(echo),
        program(cluster, node, ASK, cluster.address(of)) as ask,
        ready(ask),
    ):
        yield ask


# -- what the links carry -------------------------------------------------------------------------------------------


@emulated
def test_nodes_reach_each_other_and_nothing_else() -> None:
    routes = "print(open('/proc/net/route').read().splitlines()[1:]); import socket; print(socket.if_nameindex())"
    with Cluster(3, "1gbit") as cluster:
        assert cluster.addresses == ("10.213.0.1", "10.213.0.2", "10.213.0.3")
        for node in range(3):
            with asking(cluster, (node + 1) % 3, of=node) as ask:
                assert float(ask("5")) < 5
            with program(cluster, node, routes.replace("; ", "\n", 1)) as told:
                assert told().count("eth0") == 1  # its own network, no default route
                assert {name for _, name in eval(told())} <= {"lo", "eth0", "sit0", "tunl0", "ip6tnl0"}


@emulated
@pytest.mark.skipif(not os.access(CONGESTION, os.W_OK), reason="/proc/sys cannot be written")
def test_tcp_goes_by_losses_whatever_this_machine_is_set_to() -> None:
    show = f"print(open({str(CONGESTION)!r}).read())"
    with Cluster(2, "1gbit") as cluster, program(cluster, 1, show) as told:
        assert told() in BY_LOSS


@emulated
def test_workers_of_one_node_share_its_loopback() -> None:
    with Cluster(2) as cluster, program(cluster, 0, ECHO, "127.0.0.1") as echo, ready(echo):
        with program(cluster, 0, ASK, "127.0.0.1") as beside, ready(beside):
            assert float(beside("5")) < 5
        elsewhere = cluster.run(1, [*PYTHON, ASK, "127.0.0.1"], stderr=subprocess.DEVNULL)
        assert elsewhere.wait(10) == 1  # refused


@emulated
def test_a_link_carries_its_speed_in_both_directions_at_once() -> None:
    with Cluster(2, "100mbit") as cluster:
        check_rates(cluster, 12.5e6, seconds=1.9)


@emulated
def test_links_have_speeds_of_their_own() -> None:
    with Cluster(2, ["20mbit", "100mbit"]) as cluster:
        assert cluster.bytes_per_second == (2.5e6, 12.5e6)
        check_rates(cluster, 2.5e6, seconds=1.4, at_least=0.75)  # TCP looks for its speed a little longer


@emulated
def test_counters_match_the_bytes_moved() -> None:
    nbytes = 3_000_000
    with Cluster(2, "1gbit") as cluster:
        before = cluster.bytes_sent(0), cluster.bytes_received(1), cluster.bytes_sent(1)
        with program(cluster, 1, MOVE, "listen", cluster.address(1)) as there, ready(there):
            assert cluster.run(0, [*PYTHON, MOVE, "dial", cluster.address(1), str(nbytes)]).wait(20) == 0
            assert int(there()) == nbytes
        on_the_wire = nbytes * 1514 / 1448  # full frames, of which 66 bytes are headers
        assert on_the_wire < cluster.bytes_sent(0) - before[0] < 1.15 * on_the_wire  # some may be sent again
        assert on_the_wire < cluster.bytes_received(1) - before[1] < 1.15 * on_the_wire
        assert cluster.bytes_sent(1) - before[2] < 0.1 * nbytes


@emulated
@pytest.mark.parametrize("delay", [0.0, 0.002])
def test_a_cut_link_loses_everything_until_it_is_restored(delay: float) -> None:
    with Cluster(2, "1gbit", delay=delay) as cluster, asking(cluster, 0, of=1) as ask:
        assert float(ask("5")) < 5
        cluster.cut(1)
        assert float(ask("0.4")) == float("inf")
        cluster.restore(1)
        assert float(ask("10")) < 10


@emulated
def test_a_delay_adds_to_the_round_trip_and_keeps_the_throughput() -> None:
    delay = 0.02
    fastest = []
    for seconds in (0.0, delay):
        with Cluster(2, "100mbit", delay=seconds) as cluster, asking(cluster, 0, of=1) as ask:
            fastest.append(min(float(ask("5")) for _ in range(10)))
    assert 2 * delay < fastest[1] - fastest[0] + 0.002 < 2 * delay + 0.022
    with Cluster(2, "100mbit", delay=delay) as cluster:
        check_rates(cluster, 12.5e6, seconds=2.4, at_least=0.75)


@emulated
def test_only_the_sender_named_is_delayed() -> None:
    with Cluster(2, "100mbit", delay=[0.0, 0.03]) as cluster, asking(cluster, 0, of=1) as ask:
        assert 0.03 <= min(float(ask("5")) for _ in range(5)) < 0.055


# -- processes ------------------------------------------------------------------------------------------------------


@emulated
def test_a_process_has_the_environment_and_folder_it_was_given(tmp_path: Any) -> None:
    with Cluster(1) as cluster:
        script = "import os; print(os.environ['GREETING'], os.environ['PATH'] != '', os.getcwd())"
        process = cluster.run(
            0, [*PYTHON, script], env={"GREETING": "hello"}, cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        assert process.communicate(timeout=10)[0].split() == ["hello", "True", str(tmp_path)]
        absent = cluster.run(0, ["no-such-program"], stderr=subprocess.PIPE, text=True)
        assert "'no-such-program' cannot be run: No such file" in absent.communicate(timeout=10)[1]
        assert absent.returncode == 127


@emulated
def test_a_process_outlives_the_thread_that_asked_for_it() -> None:
    with Cluster(1) as cluster:
        started: list[subprocess.Popen[Any]] = []
        thread = threading.Thread(target=lambda: started.append(cluster.run(0, ["sleep", "60"])))
        thread.start()
        thread.join()
        time.sleep(0.2)
        assert started[0].poll() is None
    assert started[0].returncode == -signal.SIGTERM


@emulated
def test_who_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.emulate.children.GRACE_SECONDS", 0.2)
    script = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    with Cluster(1) as cluster:
        process = cluster.run(0, [*PYTHON, script], stdout=subprocess.PIPE)
        with process.stdout:
            process.stdout.readline()
    assert process.returncode == -signal.SIGKILL


@emulated
def test_the_example_of_the_docs_runs(capfd: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "emulate.md").read_text()
    (code,) = (block for block in page.split("```text\n")[1:] if block.startswith("import"))
    exec(compile(code.split("```")[0], "emulate.md", "exec"), {})
    assert "1000000 bytes arrived" in capfd.readouterr().out


# -- nothing stays --------------------------------------------------------------------------------------------------


@emulated
@pytest.mark.parametrize(
    ("ending", "number", "status"),
    [
        ("success", None, 0),
        ("exception", None, 1),
        ("wait", signal.SIGINT, 1),
        ("wait", signal.SIGTERM, 128 + signal.SIGTERM),
        ("wait", signal.SIGHUP, 128 + signal.SIGHUP),
    ],
)
def test_a_run_that_ends_leaves_nothing(ending: str, number: signal.Signals | None, status: int) -> None:
    process, held = leaks.start(delay=0.001, ending=ending)
    if number is not None:
        assert len(held.left()) == 7  # 2 workers, their children, 2 namespaces, a folder
        os.kill(process.pid, number)
    process.join(20)
    assert process.exitcode == status
    assert held.left_at_last() == []


@emulated
def test_the_next_start_removes_what_a_killed_run_left_and_nothing_else() -> None:
    living, theirs = leaks.start()
    killed, left = leaks.start()
    try:
        os.kill(killed.pid, signal.SIGKILL)
        killed.join()
        assert left.left(), "its workers' children are ended by nobody yet"
        with Cluster(1):
            assert len(theirs.left()) == 7
        assert left.left_at_last() == []  # now: the new namespaces may have had the numbers of those that went
    finally:
        living.terminate()
        living.join(20)
    assert theirs.left_at_last() == []


@emulated
def test_up_kill_up_again() -> None:
    assert [leaks.kill_and_start_again(delay) for delay in (0.0, 0.001, 0.0, 0.001, 0.0)] == [[]] * 5


@emulated
def test_clusters_stand_side_by_side_in_one_process() -> None:
    with Cluster(2) as first, asking(first, 0, of=1) as ask:
        with Cluster(2) as second, asking(second, 1, of=0) as other:
            assert float(other("5")) < 5
        assert float(ask("5")) < 5


@emulated
def test_what_cannot_be_finished_is_taken_down(monkeypatch: pytest.MonkeyPatch) -> None:
    before, interfaces = set(os.listdir("/proc/self/fd")), socket.if_nameindex()

    def refuse(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("offbeat.emulate.links.furnish", refuse)
    with pytest.raises(KeyboardInterrupt), Cluster(2, delay=0.001):
        pass
    assert set(os.listdir("/proc/self/fd")) == before
    assert socket.if_nameindex() == interfaces


@emulated
def test_a_mark_that_is_not_ours_is_left_alone() -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    marks = {"of something else": True, new_name(): True, f"{dead.pid}-1-0": False}
    for mark, stays in marks.items():
        process = subprocess.Popen(["sleep", "60"], env={**os.environ, MARK: mark})
        try:
            time.sleep(0.1)  # until it is `sleep`
            sweep()
            assert (process.poll() is None) is stays
        finally:
            process.kill()
            process.wait()


# -- one sentence ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Cluster(0), "0 nodes cannot be emulated"),
        (lambda: Cluster(2000), "choose 1 to 1023"),
        (lambda: Cluster(2, "100 parsec"), "'100 parsec' is not a rate"),
        (lambda: Cluster(2, "100"), "'100' is not a rate"),
        (lambda: Cluster(2, "90gbit"), "choose 1kbit to 34gbit"),
        (lambda: Cluster(2, "1bit"), "choose 1kbit to 34gbit"),
        (lambda: Cluster(2, ["1gbit"] * 3), "3 link speeds do not fit 2 nodes"),
        (lambda: Cluster(2, ["1gbit"]), "1 link speeds do not fit 2 nodes"),
        (lambda: Cluster(2, delay=-1.0), "a delay of -1.0 s cannot be emulated"),
        (lambda: Cluster(2, delay=float("nan")), "a delay of nan s cannot be emulated"),
        (lambda: Cluster(2, delay=[0.1] * 3), "3 delays do not fit 2 nodes"),
        (lambda: Cluster(2).address(2), "there is no node 2: the cluster has nodes 0 to 1"),
        (lambda: Cluster(2).cut(-1), "there is no node -1"),
        (lambda: Cluster(2).restore(2), "there is no node 2"),
        (lambda: Cluster(2).bytes_sent(5), "there is no node 5"),
        (lambda: Cluster(2).run(2, ["true"]), "there is no node 2"),
        (lambda: Cluster(2).run(0, ["true"]), "the cluster is not up"),
        (lambda: Cluster(2).cut(0), "the cluster is not up"),
    ],
)
def test_bad_input_is_told_in_one_sentence(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(BadInput) as error:
        make()
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@emulated
@pytest.mark.parametrize("argv", [[], "sleep 60"])
def test_a_command_is_a_list(argv: Any) -> None:
    with Cluster(1) as cluster, pytest.raises(BadInput, match="is no command: give a list"):
        cluster.run(0, argv)


def test_without_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert (story := missing()) is not None
    assert "needs root" in story
    assert "--loopback" in story


@pytest.mark.skipif(os.geteuid() != 0, reason="root is asked for first")
def test_without_pyroute2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroute2", None)
    assert (story := missing()) is not None
    assert "pip install 'offbeat[emulate]'" in story
    assert "--loopback" in story


@emulated
def test_without_the_kernels_support(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("offbeat.emulate.tap.DEVICE", "/dev/net/none")
    assert missing() is None
    assert (story := missing(delay=True)) is not None
    assert "needs TAP interfaces (/dev/net/none), which this kernel did not make (No such file" in story
    refused = pytest.raises(BadInput, match=r"may not make: give the container CAP_SYS_ADMIN .* --loopback")
    with refused, support.needing("veth pairs"):
        raise OSError(errno.EPERM, "no")
