"""Sentences: what torch says is told in its own words, without its source files."""

import pytest

from offbeat.connect import check_reachable
from offbeat.errors import BadInput, torch_story, unknown


@pytest.mark.parametrize(
    ("said", "story"),
    [
        (
            "[/src/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:4711. This is a sign of GLHF!",
            "Connection closed by peer [127.0.0.1]:4711",
        ),
        ("Timed out waiting 1800000ms for recv operation to complete", None),
        ("", "RuntimeError"),
    ],
)
def test_torch_story(said: str, story: str | None) -> None:
    assert torch_story(RuntimeError(said)) == (said if story is None else story)


def test_unknown_suggests() -> None:
    assert "did you mean 'lasgd'?" in str(unknown("strategy", "lasdg", ["ddp", "lasgd"]))


def test_a_loopback_address_reaches_no_other_host() -> None:
    check_reachable(["a", "a"], ["127.0.0.1", "127.0.0.1"])
    check_reachable(["a", "b"], ["10.1.0.1", "10.1.0.2"])
    with pytest.raises(BadInput, match=r"rank 1 on b would be called at 127\.0\.1\.1.*set MASTER_ADDR"):
        check_reachable(["a", "b"], ["10.1.0.1", "127.0.1.1"])
