"""Topologies: the graphs are the known ones, their numbers those of the paper, and healing keeps them together."""

import json
import math
import re
from pathlib import Path

import networkx
import numpy as np
import pytest
from commands import ROOT, run_command, run_here
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from offbeat.errors import BadInput
from offbeat.strategies import make_strategy
from offbeat.topology import TOPOLOGIES, Graph, heal, momentum, neighbours
from offbeat.topology.command import MEANING, print_topology, record
from offbeat.topology.picture import DPI, SIZE_INCHES, lines, places
from offbeat.topology.spectrum import ALL_EIGENVALUES_UP_TO, by_inverse, by_symmetry, edge_rates

REGULAR = ["ring", "exponential", "complete", "torus", "hypercube", "random_regular-3"]


def as_networkx(graph: Graph) -> networkx.Graph:
    result = networkx.Graph(graph.edges)
    result.add_nodes_from(range(len(graph)))
    return result


@st.composite
def connected_graphs(draw: st.DrawFn, least: int = 2, most: int = 12) -> Graph:
    """A tree, and any edges beside it."""
    workers = draw(st.integers(least, most))
    rank = st.integers(0, workers - 1)
    tree = [(draw(st.integers(0, later - 1)), later) for later in range(1, workers)]
    return Graph.of_edges(workers, tree + draw(st.lists(st.tuples(rank, rank), max_size=2 * workers)))


# --- the graphs ---


@pytest.mark.parametrize(
    ("name", "workers", "expected"),
    [
        ("ring", 1, [()]),
        ("ring", 2, [(1,), (0,)]),
        ("ring", 5, [(1, 4), (0, 2), (1, 3), (2, 4), (0, 3)]),
        ("exponential", 6, [(1, 2, 4, 5), (0, 2, 3, 5), (0, 1, 3, 4), (1, 2, 4, 5), (0, 2, 3, 5), (0, 1, 3, 4)]),
        ("complete", 4, [(1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2)]),
        ("torus", 4, [(1, 2), (0, 3), (0, 3), (1, 2)]),
        ("torus", 6, [(1, 2, 3), (0, 2, 4), (0, 1, 5), (0, 4, 5), (1, 3, 5), (2, 3, 4)]),
        ("hypercube", 1, [()]),
        ("hypercube", 4, [(1, 2), (0, 3), (0, 3), (1, 2)]),
        ("star", 4, [(1, 2, 3), (0,), (0,), (0,)]),
    ],
)
def test_written_out(name: str, workers: int, expected: list[tuple[int, ...]]) -> None:
    assert neighbours(name, workers) == tuple(expected)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("ring", networkx.cycle_graph(64)),
        ("exponential", networkx.circulant_graph(64, [1, 2, 4, 8, 16, 32])),
        ("complete", networkx.complete_graph(64)),
        ("torus", networkx.convert_node_labels_to_integers(networkx.grid_2d_graph(8, 8, periodic=True))),
        ("star", networkx.star_graph(63)),
    ],
)
def test_known_graphs(name: str, reference: networkx.Graph) -> None:
    assert neighbours(name, 64).edges == sorted(tuple(sorted(edge)) for edge in reference.edges)


def test_hypercube_is_the_known_one() -> None:
    ours = {tuple(map(int, f"{rank:04b}")) for rank in neighbours("hypercube", 16)[0b0101]}
    assert ours == set(networkx.hypercube_graph(4)[0, 1, 0, 1])


@pytest.mark.parametrize("name", [*TOPOLOGIES, "random_regular-3-5"])
def test_sorted_mutual_and_in_one_piece(name: str) -> None:
    graph = neighbours(name, 16)
    assert len(graph) == 16
    for rank, others in enumerate(graph):
        assert list(others) == sorted(set(others) - {rank})
        assert all(rank in graph[other] for other in others)
    assert networkx.is_connected(as_networkx(graph))


@pytest.mark.parametrize(("workers", "degree"), [(2, 1), (3, 2), (40, 2), (17, 4), (30, 27), (30, 29), (64, 32)])
def test_random_regular(workers: int, degree: int) -> None:
    graph = neighbours(f"random_regular-{degree}", workers)
    assert set(graph.degrees) == {degree}
    assert networkx.is_connected(as_networkx(graph))


def test_random_regular_follows_its_seed() -> None:
    drawn = neighbours("random_regular", 20)
    neighbours.__globals__["_named"].cache_clear()
    assert neighbours("random_regular-4", 20) == neighbours("random_regular-4-0", 20) == drawn
    assert neighbours("random_regular-4-1", 20) != drawn


def test_exponential_draws_the_rank_half_way_round_from_both_sides() -> None:
    graph = neighbours("exponential", 16)
    assert graph[3] == (1, 2, 4, 5, 7, 11, 15)
    assert graph.draws[3] == (1, 2, 4, 5, 7, 11, 11, 15)
    assert heal(graph, {4})[3] == (1, 2, 5, 7, 11, 15)
    assert heal(graph, {4}).draws[3] == (1, 2, 5, 7, 11, 11, 15)
    assert neighbours("exponential", 4) == neighbours("complete", 4)
    assert momentum(neighbours("exponential", 4), 1.0) != momentum(neighbours("complete", 4), 1.0)
    assert neighbours("ring", 16).draws is neighbours("ring", 16)


def test_the_same_question_is_answered_once() -> None:
    assert neighbours("exponential", 100) is neighbours("exponential", 100)
    assert hash(neighbours("ring", 9)) == hash(tuple(neighbours("ring", 9)))


@given(connected_graphs(least=1))
def test_diameter(graph: Graph) -> None:
    assert graph.diameter == networkx.diameter(as_networkx(graph))


@pytest.mark.parametrize(("name", "diameter"), [("ring", 8), ("complete", 1), ("torus", 4), ("hypercube", 4)])
def test_known_diameters(name: str, diameter: int) -> None:
    assert neighbours(name, 16).diameter == diameter


@given(connected_graphs())
def test_offsets_are_found_where_all_ranks_see_the_same(graph: Graph) -> None:
    workers = len(graph)
    same = {tuple(sorted((other - rank) % workers for other in others)) for rank, others in enumerate(graph)}
    assert graph.offsets == (same.pop() if len(same) == 1 else None)


def test_edge_list(tmp_path: Path) -> None:
    file = tmp_path / "edges.txt"
    file.write_text("# a path\n0 1\n\n  2\t1  # back and forth\n1 2\n")
    assert neighbours(str(file), 3) == ((1,), (0, 2), (1,))
    file.write_text("0 1\n0 2\n")
    assert neighbours(str(file), 3) == ((1, 2), (0,), (0,)), "the file has changed"


def test_a_file_without_a_dot_is_one_if_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pairs", "ring"):
        (tmp_path / name).write_text("0 1\n0 2\n0 3\n")
    assert neighbours("pairs", 4) == neighbours("star", 4)
    assert neighbours("ring", 4).degrees == (2, 2, 2, 2), "names come first"


# --- the numbers ---


def laplacian(graph: Graph) -> np.ndarray:
    """At rate 1, as in the docstring of `spectrum`, edge by edge."""
    result = np.zeros((len(graph), len(graph)))
    for one, other in graph.edges:
        difference = np.eye(len(graph))[one] - np.eye(len(graph))[other]
        result += (0.5 / len(graph[one]) + 0.5 / len(graph[other])) * np.outer(difference, difference)
    return result


@pytest.mark.parametrize(
    ("name", "workers", "expected"),  # chi_1, chi_2, eta, alpha~ at rate 1
    [
        ("ring", 8, (3.41, 0.875, 0.289, 0.988)),
        ("ring", 16, (13.14, 0.938, 0.1425, 1.872)),
        ("ring", 64, (207.67, 0.984, 0.0350, 7.262)),
        ("exponential", 16, (2.0, 1.010, 0.352, 0.704)),
        *(("complete", n, ((n - 1) / n, (n - 1) / n, n / (2 * (n - 1)), 0.5)) for n in (2, 3, 16, 100)),
        *(("ring", n, ((n - 1) / n, (n - 1) / n, n / (2 * (n - 1)), 0.5)) for n in (2, 3)),
        *(("star", n, (2 * (n - 1) / n, (n - 1) / n, n / (n - 1) / 8**0.5, 0.5**0.5)) for n in (3, 16, 100)),
        ("hypercube", 32, (2.5, 31 / 32, 0.5 / math.sqrt(2.5 * 31 / 32), 0.5 * math.sqrt(2.5 * 32 / 31))),
    ],
)
def test_published_values(name: str, workers: int, expected: tuple[float, ...]) -> None:
    found = momentum(neighbours(name, workers), 1.0)
    assert (found.chi_1, found.chi_2, found.eta, found.alpha_tilde) == pytest.approx(expected, rel=2e-3)
    assert found.alpha == 0.5


@pytest.mark.parametrize("name", REGULAR)
def test_regular_graphs_have_the_laplacian_of_the_paper(name: str) -> None:
    graph = neighbours(name, 16)
    w = np.array([[others.count(other) / len(others) for other in range(16)] for others in graph.draws])
    eigenvalues = np.linalg.eigvalsh(2.0 * (np.eye(16) - w))
    assert momentum(graph, 2.0).chi_1 == pytest.approx(1 / eigenvalues[1])


@given(connected_graphs(), st.floats(0.01, 100))
def test_chis_as_defined(graph: Graph, rate: float) -> None:
    found = momentum(graph, rate)
    matrix = rate * laplacian(graph)
    pseudo = np.linalg.pinv(matrix)
    assert found.chi_1 == pytest.approx(1 / np.linalg.eigvalsh(matrix)[1])
    assert found.chi_2 == pytest.approx(
        max(0.5 * (pseudo[i, i] + pseudo[j, j] - 2 * pseudo[i, j]) for i, j in graph.edges)
    )


@given(connected_graphs(), st.floats(0.01, 100))
def test_bounds(graph: Graph, rate: float) -> None:
    """Foster: rate times resistance sums to n - 1 over the edges, whose rates sum to r n / 2; so chi_2 has a least."""
    found, workers = momentum(graph, rate), len(graph)
    assert (workers - 1) / workers / rate <= found.chi_2 * (1 + 1e-9)
    assert found.chi_2 <= found.chi_1 * (1 + 1e-9)
    assert found.alpha_tilde >= 0.5 * (1 - 1e-9)
    assert 0 < found.eta <= rate * workers / (2 * (workers - 1)) * (1 + 1e-9)


@given(connected_graphs())
def test_foster(graph: Graph) -> None:
    _, rates = edge_rates(graph)
    _, resistances = by_inverse(graph)
    assert rates @ resistances == pytest.approx(len(graph) - 1)
    assert rates.sum() == pytest.approx(len(graph) / 2)


@pytest.mark.parametrize("name", ["ring", "exponential", "complete"])
@pytest.mark.parametrize("workers", [2, 3, 7, 16, 4096])
def test_foster_by_symmetry(name: str, workers: int) -> None:
    if workers == 4096 and name == "complete":
        workers = 512
    graph = neighbours(name, workers)
    assert graph.draws.offsets is not None
    chi_1, resistances = by_symmetry(workers, graph.draws.offsets)
    assert resistances.mean() * workers / 2 == pytest.approx(workers - 1)
    if name == "ring" and workers > 2:
        assert chi_1 == pytest.approx(1 / (2 * math.sin(math.pi / workers) ** 2))


@pytest.mark.parametrize(("name", "workers"), [("ring", 50), ("exponential", 50), ("exponential", 1025)])
def test_both_ways_agree(name: str, workers: int) -> None:
    """Of the two sizes, one takes all eigenvalues and the other only the one it needs."""
    assert 50 <= ALL_EIGENVALUES_UP_TO < 1025
    graph = neighbours(name, workers).draws
    assert graph.offsets is not None
    symmetric, inverse = by_symmetry(workers, graph.offsets), by_inverse(graph)
    assert inverse[0] == pytest.approx(symmetric[0])
    assert inverse[1].max() == pytest.approx(symmetric[1].max())


@given(connected_graphs())
def test_the_slowest_difference_fades_as_told(graph: Graph) -> None:
    """The expectation of (x, x~) obeys a linear equation, whose slowest rate is eta; of plain gossip, 1 / (2 chi_1)."""
    found, eye, matrix = momentum(graph, 1.0), np.eye(len(graph)), laplacian(graph)
    plain = np.sort(np.linalg.eigvalsh(-0.5 * matrix))[::-1]
    assert -plain[1] == pytest.approx(1 / (2 * found.chi_1))
    mixing = found.eta * np.block([[-eye, eye], [eye, -eye]])
    exchange = np.block([[-found.alpha * matrix, 0 * eye], [-found.alpha_tilde * matrix, 0 * eye]])
    rates = np.sort(np.linalg.eigvals(mixing + exchange).real)[::-1]
    # Of the mean, x and x~ only mix: 0 and -2 eta. All else fades at least as fast as eta.
    assert rates[0] == pytest.approx(0, abs=1e-6)
    assert -rates[1] == pytest.approx(found.eta, rel=1e-3)


@pytest.mark.parametrize("graph", [neighbours("ring", 1), Graph([(), (), ()])])
def test_alone_there_is_no_momentum(graph: Graph) -> None:
    found = momentum(graph, 1.0)
    assert (found.eta, found.alpha, found.alpha_tilde) == (0.0, 0.5, 0.5)
    assert (found.chi_1, found.chi_2) == (0.0, 0.0)


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_impossible_rates(rate: float) -> None:
    with pytest.raises(BadInput, match=re.escape(f"rate={rate} does not fit")):
        momentum(neighbours("ring", 4), rate)


def test_parts_never_agree() -> None:
    with pytest.raises(BadInput, match="several parts"):
        momentum(Graph.of_edges(4, [(0, 1), (2, 3)]), 1.0)


# --- healing ---


@pytest.mark.parametrize(
    ("name", "workers", "lost", "expected"),
    [
        ("ring", 5, {2}, [(1, 4), (0, 3), (), (1, 4), (0, 3)]),
        ("ring", 6, {2, 3}, [(1, 5), (0, 4), (), (), (1, 5), (0, 4)]),
        ("ring", 6, {0, 3}, [(), (2, 5), (1, 4), (), (2, 5), (1, 4)]),
        ("ring", 3, {1}, [(2,), (), (0,)]),
        ("ring", 3, {0, 1}, [(), (), ()]),
        ("ring", 2, {0, 1}, [(), ()]),
        ("ring", 4, set(), [(1, 3), (0, 2), (1, 3), (0, 2)]),
        ("star", 5, {0}, [(), (2, 4), (1, 3), (2, 4), (1, 3)]),
        ("star", 4, {2}, [(1, 3), (0,), (), (0,)]),
        ("complete", 4, {1}, [(2, 3), (), (0, 3), (0, 2)]),
    ],
)
def test_healed(name: str, workers: int, lost: set[int], expected: list[tuple[int, ...]]) -> None:
    assert heal(neighbours(name, workers), lost) == tuple(expected)


@given(connected_graphs(), st.data())
def test_healing_keeps_it_together(graph: Graph, data: st.DataObject) -> None:
    lost = data.draw(st.sets(st.sampled_from(range(len(graph)))))
    healed = heal(graph, lost)
    living = [rank for rank in range(len(graph)) if rank not in lost]
    assert len(healed) == len(graph)
    for rank in range(len(graph)):
        assert list(healed[rank]) == sorted(set(healed[rank]) - {rank} - lost)
        assert all(rank in healed[other] for other in healed[rank])
        if rank in lost:
            assert healed[rank] == ()
        else:
            assert set(graph[rank]) - lost <= set(healed[rank]), "no edge between the living is given up"
            gone = set(graph[rank]) & lost
            assert len(healed[rank]) <= len(graph[rank]) + len(gone)
    if len(living) > 1:
        assert networkx.is_connected(as_networkx(healed).subgraph(living))
    found = momentum(healed, 1.0)
    assert (found.eta > 0) == (len(living) > 1)


@pytest.mark.parametrize("lost", [{3}, {0, 1}, {2, 5, 9}])
def test_a_healed_ring_is_a_smaller_ring(lost: set[int]) -> None:
    healed = heal(neighbours("ring", 12), lost)
    assert momentum(healed, 2.0) == momentum(neighbours("ring", 12 - len(lost)), 2.0)


# --- the command ---


def test_json_is_alone_on_standard_output(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from offbeat.cli import cli

    cli.main(["topology", "ring", "--workers", "8", "--rate", "2", "--json", "-"], standalone_mode=False)
    out, err = capfd.readouterr()
    numbers = json.loads(out)
    expected = momentum(neighbours("ring", 8), 2.0)
    assert numbers == {
        "topology": "ring", "workers": 8, "rate": 2.0, "edges": 8, "degree": 2, "least_degree": 2, "diameter": 4,
        "chi_1": expected.chi_1, "chi_2": expected.chi_2, "eta": expected.eta,
        "alpha": 0.5, "alpha_tilde": expected.alpha_tilde,
    }  # fmt: skip
    assert "ring of 8 workers" in err
    run_here(["topology", "ring", "--workers", "8", "--rate", "2", "--json", "numbers.json"], tmp_path)
    assert json.loads((tmp_path / "numbers.json").read_text()) == numbers


def test_what_is_printed(tmp_path: Path) -> None:
    printed = run_here(["topology", "ring", "--workers", "16"], tmp_path)
    assert printed.startswith("ring of 16 workers: 16 edges, 2 neighbours each, diameter 8\n")
    for name, value in zip(MEANING, ("13.14", "0.9375", "0.1425", "0.5", "1.872"), strict=True):
        assert re.search(rf"^{name} +{re.escape(value)} ", printed, re.MULTILINE), printed
    assert "26.3 steps by plain gossip (2 chi_1), and in 7.0 steps with momentum (1 / eta)" in printed
    assert "3.7 times the exchanges" in printed
    assert "changes nothing" in run_here(["topology", "complete", "--workers", "8"], tmp_path)
    assert "nobody" in run_here(["topology", "star", "--workers", "1"], tmp_path)
    assert "1 to 2 neighbours" in run_here(["topology", "star", "--workers", "3"], tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("encoding", "expected"), [("utf-8", ["▄▀▀", "▀··"]), ("ascii", [".##", "#..", "#.."])], ids=["utf-8", "ascii"]
)
def test_the_matrix_of_the_terminal(encoding: str, expected: list[str], tmp_path: Path) -> None:
    graph = neighbours("star", 3)
    with (tmp_path / "printed").open("w", encoding=encoding) as file:
        print_topology(Console(file=file, width=100), "star", graph, momentum(graph, 1.0))
    rows = (tmp_path / "printed").read_text(encoding).splitlines()[2:]
    assert [row.strip() for row in rows[: len(expected) + 1]] == [*expected, ""]


@pytest.mark.parametrize(("name", "workers"), [("torus", 12), ("star", 2), ("ring", 1), ("random_regular", 300)])
def test_picture(name: str, workers: int, tmp_path: Path) -> None:
    run_here(["topology", name, "--workers", str(workers), "--out", "graph.png"], tmp_path)
    with Image.open(tmp_path / "graph.png") as image:
        assert image.size == tuple(round(DPI * inches) for inches in SIZE_INCHES)
        shown = {colour for _, colour in image.convert("RGB").getcolors(1 << 20) or ()}
    assert (0x2F, 0x7F, 0xB8) in shown, "no rank is drawn"


def test_places() -> None:
    torus = neighbours("torus", 12)
    assert {(x, y) for x, y in places("torus", torus)} == {(x, -y) for x in range(4) for y in range(3)}
    assert len(lines(torus, places("torus", torus), 4)) == 24 + 4 + 3  # two stubs for each edge that leaves the grid
    star = neighbours("star", 9)
    assert np.hypot(*places("star", star).T) == pytest.approx([0, *[1] * 8], abs=1e-6)
    ring = neighbours("ring", 9)
    assert len(lines(ring, places("ring", ring), None)) == 9


EDGES = {
    "apart.txt": "0 1\n2 3\n",
    "beyond.txt": "0 1\n1 16\n",
    "self.txt": "0 1\n1 1\n",
    "nonsense.txt": "0 1\nzero one\n",
    "three.txt": "0 1 2\n",
    "below.txt": "0 -1\n",
    "empty.txt": "# nothing\n",
}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("rng", r"no topology 'rng': did you mean 'ring'\? .*, or a file of edges"),
        ("ring-4", r"no topology 'ring-4': did you mean 'ring'\?"),
        ("randomregular-4", r"did you mean 'random_regular'\?"),
        ("hypercube --workers 6", r"hypercube does not fit 6 workers.*power of two: use 4 or 8"),
        ("torus --workers 17", r"torus does not fit 17 workers.*prime.*: use 16 or 18"),
        ("torus --workers 2", r"torus does not fit 2 workers.*: use 4"),
        ("random_regular-3 --workers 7", r"random_regular-3 does not fit 7 workers.*even: use 8 .*random_regular-4"),
        ("random_regular-3 --workers 5", r"even: use 6 workers, or random_regular-4"),
        ("random_regular-4 --workers 4", r"random_regular-4 does not fit 4 workers.*: use complete, or 5"),
        ("random_regular-1 --workers 4", r"random_regular-1 does not fit 4 workers.*: use random_regular-2"),
        ("random_regular-0", r"random_regular-0 does not fit.*at least 1"),
        ("random_regular-x", r"random_regular-x does not fit.*as in random_regular-4-0"),
        ("random_regular-4-", r"random_regular-4- does not fit"),
        ("random_regular-4-1-2", r"random_regular-4-1-2 does not fit"),
        ("nowhere.txt", r"nowhere.txt cannot be read \(No such file"),
        ("./folder", r"./folder cannot be read \(Is a directory"),
        ("binary.txt", r"binary.txt is no text"),
        ("apart.txt --workers 4", r"apart.txt leaves 2 of 4 workers out of reach of rank 0 \(rank 2, 3\): add an edge"),
        ("apart.txt --workers 16", r"leaves 14 of 16 .*\(rank 2, 3, 4, 5, 6, ...\)"),
        ("empty.txt", r"leaves 15 of 16 workers"),
        ("beyond.txt", r"line 2 of beyond.txt names rank 16, but 16 workers have ranks 0 to 15: .*17 workers or more"),
        ("self.txt", r"line 2 of self.txt joins rank 1 to itself"),
        ("nonsense.txt", r"line 2 of nonsense.txt, 'zero one', is no edge: write two ranks"),
        ("three.txt", r"line 1 of three.txt, '0 1 2', is no edge"),
        ("below.txt", r"line 1 of below.txt, '0 -1', is no edge"),
        ("ring --workers 0", r"0 workers joins nobody: give at least 1"),
        ("ring --workers -3", r"-3 workers"),
        ("ring --rate 0", r"rate=0.0 does not fit: .* at least 1e-06"),
        ("ring --rate -1", r"rate=-1.0"),
        ("ring --rate nan", r"rate=nan"),
        ("ring --rate inf", r"rate=inf .* finite"),
        ("ring --out graph.jpg", r"--out graph.jpg is no picture: .*\.png"),
        ("ring --out nowhere/graph.png", r"--out nowhere/graph.png cannot be written \(No such file"),
        ("complete --workers 400 --out graph.png", r"--out graph.png would show 79,800 edges, and 50,000 fill it"),
        ("ring --json nowhere/x.json", r"--json nowhere/x.json cannot be written"),
    ],
)
def test_one_sentence(
    arguments: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from offbeat.cli import cli

    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe0 1")
    for name, text in EDGES.items():
        (tmp_path / name).write_text(text)
    before = set(tmp_path.rglob("*"))
    with pytest.raises(BadInput) as refused:
        cli.main(["topology", *arguments.split()], standalone_mode=False)
    assert re.search(words, str(refused.value)), refused.value
    assert "\n" not in str(refused.value)
    assert capfd.readouterr().out == ""
    assert set(tmp_path.rglob("*")) == before


def test_exit_status(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"ended with status 2:\noffbeat: there is no topology 'rng'.*\n$"):
        run_command("offbeat topology rng", tmp_path)


# --- where it is used ---


@pytest.mark.parametrize("topology", ["random_regular-3-1", "torus", "hypercube", "star", "./pairs"])
def test_gossip_on_every_kind_of_graph(topology: str, tmp_path: Path) -> None:
    (tmp_path / "pairs").write_text("0 1\n1 2\n2 3\n")
    spec = f"gossip:topology={topology},rate=2"
    workers = {"./pairs": 4}.get(topology, 8)
    arguments = f"simulate --task synthetic --steps 20 --workers {workers} --strategy {spec} --json r.json --quiet"
    run_here(arguments.split(), tmp_path)
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["options"]["topology"] == topology
    assert all(status["averages"] > 0 for status in result["per_worker"])


@pytest.mark.parametrize("topology", ["rng", "random_regular-x"])
def test_gossip_refuses_what_it_can_before_it_starts(topology: str) -> None:
    with pytest.raises(BadInput, match=topology):
        make_strategy(f"gossip:topology={topology}")


def test_gossip_refuses_the_rest_in_one_sentence(tmp_path: Path) -> None:
    arguments = ["simulate", "--workers", "6", "--steps", "1", "--strategy", "gossip:topology=hypercube", "--quiet"]
    with pytest.raises(BadInput, match="hypercube does not fit 6 workers"):
        run_here(arguments, tmp_path)


def test_the_page_tells_what_the_command_does() -> None:
    page = (ROOT / "docs" / "topologies.md").read_text()
    rows = re.findall(r"^\| `(\S+)` \| (\d+) \| (.+) \|$", page, re.MULTILINE)
    assert {name for name, *_ in rows} == set(TOPOLOGIES)
    assert {int(workers) for _, workers, _ in rows} == {16, 64}
    for name, workers, cells in rows:
        assert cells == row_of_the_page(name, int(workers))


def row_of_the_page(name: str, workers: int) -> str:
    """The cells after the name and the number of workers."""
    graph = neighbours(name, workers)
    of = record(name, 1.0, graph, momentum(graph, 1.0))
    degrees = f"{of['least_degree']} to {of['degree']}" if of["least_degree"] < of["degree"] else f"{of['degree']}"
    cells = [f"{of['edges']:,}", degrees, f"{of['diameter']}"]
    cells += [f"{of[key]:.3g}" for key in ("chi_1", "chi_2", "eta", "alpha_tilde")]
    cells += [f"{2 * of['chi_1']:.1f}", f"{1 / of['eta']:.1f}"]
    return " | ".join(cells)
