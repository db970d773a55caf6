"""Every snippet of README.md and docs/**/*.md is run, as a reader would: from top to bottom, in one folder.

- ```python whose first line is a comment with a file name is saved under that name; a command must use it.
- any other ```python is executed.
- ```shell: every line is a command, run as written (see `commands.py` for what stands for `scripts/...`).
- ```text is not run. There is nothing else.
"""

import re
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import ROOT, run_command

README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^[ >]*(```+|~~~+) *(.*)$")
FILE_NAME = re.compile(r"# (\w+\.py)\n")


@dataclass(frozen=True)
class Block:
    document: Path
    line: int
    language: str
    text: str

    @property
    def file_name(self) -> str | None:
        found = FILE_NAME.match(self.text) if self.language == "python" else None
        return found[1] if found else None

    def __str__(self) -> str:
        return f"{self.document.name}:{self.line}"


def blocks_of(document: Path) -> list[Block]:
    blocks, begin, language, lines = [], 0, "", list[str]()
    for number, line in enumerate(document.read_text().splitlines(), start=1):
        fence = FENCE.match(line)
        if fence and not begin:
            begin, language, lines = number, fence[2].strip(), []
        elif fence:
            blocks.append(Block(document, begin, language, "".join(f"{each}\n" for each in lines)))
            begin = 0
        elif begin:
            lines.append(line)
    assert not begin, f"the block at {document.name}:{begin} has no end"
    return blocks


BLOCKS = [block for document in DOCUMENTS for block in blocks_of(document)]
COMMANDS = [
    (block, line)
    for block in BLOCKS
    if block.language == "shell"
    for line in block.text.replace("\\\n", " ").splitlines()
    if line.strip()
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a reader works: the repository's folders, and the files that the documents tell to write."""
    for name in ("benchmarks", "docs", "examples", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    for block in BLOCKS:
        if block.file_name:
            (tmp_path / block.file_name).write_text(block.text)
    return tmp_path


def test_blocks_are_of_known_kinds() -> None:
    unknown = [
        f"{block} is {block.language!r}" for block in BLOCKS if block.language not in ("python", "shell", "text")
    ]
    assert not unknown, f"mark what is not to be run as text: {', '.join(unknown)}"
    assert {block.language for block in BLOCKS} >= {"python", "shell"}


def test_saved_files_are_used_and_named_once() -> None:
    named = [block.file_name for block in BLOCKS if block.file_name]
    assert len(set(named)) == len(named)
    for name in named:
        users = [line for _, line in COMMANDS if name in line]
        users += [
            b.text for b in BLOCKS if b.language == "python" and f"from {name.removesuffix('.py')} import" in b.text
        ]
        assert users, f"nothing runs {name}"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("block", "line"), COMMANDS, ids=[line.split("#")[0].strip() for _, line in COMMANDS])
def test_command(block: Block, line: str, folder: Path) -> None:
    output = run_command(line, folder)
    assert "Traceback" not in output, f"{block}: {output}"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "block", [b for b in BLOCKS if b.language == "python" and not b.file_name], ids=lambda block: str(block)
)
def test_python(block: Block, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(folder)
    before = set(sys.modules)
    try:
        code = "\n" * block.line + block.text  # so that an error tells the line of the document
        exec(compile(code, str(block.document), "exec"), {"__name__": "__main__"})
    finally:
        for name in [name for name in sys.modules if name not in before and (folder / f"{name}.py").exists()]:
            del sys.modules[name]


@pytest.mark.timeout(120)
def test_the_strategy_of_the_docs_trains_for_real(folder: Path) -> None:
    script = (folder / "train.py").read_text()
    ours = script.replace('"lasgd"', "Elastic(every=4)").replace(
        "import offbeat", "import offbeat\nfrom elastic import Elastic", 1
    )
    assert ours.count("Elastic") == 2
    (folder / "train_elastic.py").write_text(ours)
    first, second = run_command("torchrun --nproc-per-node 2 train_elastic.py", folder).split("accuracy ")[1:]
    assert first.strip() == second.strip()


def test_the_script_of_the_readme_is_the_example() -> None:
    block = next(block for block in BLOCKS if block.file_name == "train.py")
    _, _, code = (ROOT / "examples" / "own_loop.py").read_text().split('"""', 2)
    assert block.text.split("\n", 1)[1].strip() == code.strip()


def test_links_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#\s]+)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name} links to {target}, which is not there"


@pytest.mark.timeout(60)
def test_the_picture_can_be_made_again(tmp_path: Path) -> None:
    runpy.run_path(str(ROOT / "docs" / "make_pictures.py"))["overview"](tmp_path / "overview.png")
    made = (tmp_path / "overview.png").stat().st_size
    assert 20_000 < made < 300_000
