"""What lies beside `docs/` is part of the site as well: README.md is its first page, and links into the repository work."""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
BESIDE = ["ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "src/epidemic/data/embedded/NOTICE"]


def on_files(files, config):
    """Add the files of the repository that pages link to."""
    paths = [ROOT / name for name in BESIDE]
    paths += [p for folder in ("examples", "results") for p in sorted((ROOT / folder).rglob("*")) if p.is_file()]
    for path in paths:
        if "__pycache__" not in path.parts:
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    files.append(File.generated(config, "index.md", abs_src_path=str(ROOT / "README.md")))
    return files


def on_page_markdown(markdown, page, config, files):
    """Links as they are in the repository become links of the site."""
    if page.file.src_uri in ("index.md", *BESIDE):
        return re.sub(r"\]\(docs/", "](", markdown).replace("](README.md", "](index.md")
    return re.sub(r"\]\(\.\./(?!\.\.)", "](", markdown) if "/" not in page.file.src_uri else markdown
