"""Every command and every block of code of the documentation works as written."""

import pytest

import pages

PAGES = [
    pages.ROOT / "README.md",
    *sorted(pages.ROOT.glob("docs/**/*.md")),
    *(pages.ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "results/cifar10/README.md")),
]


def name(path):
    return str(path.relative_to(pages.ROOT))


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_block_works_as_written(path, tmp_path):
    found = pages.blocks(path.read_text(), name(path))
    pages.supply(tmp_path)
    with pages.Desk(tmp_path) as desk:
        for block in found:
            desk.do(block)
        desk.finish()
