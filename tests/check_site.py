"""The built site is whole and loads nothing from another host: `python tests/check_site.py site`, run by `make docs`."""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {
    "script": "src",
    "img": "src",
    "source": "src",
    "iframe": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
}
"""What a browser fetches by itself; of <link>, all but the page's own address."""
HARMLESS = {"canonical", "next", "prev", "alternate", "license"}


class Page(HTMLParser):
    """The names in a page, what it loads, and where its links lead."""

    def __init__(self, path):
        super().__init__()
        self.names, self.loads, self.links = set(), [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        """Take notes of one element."""
        have = {key: value or "" for key, value in attributes}
        self.names |= {have[key] for key in ("id", "name") if key in have}
        if tag in LOADED and LOADED[tag] in have:
            self.loads.append(have[LOADED[tag]])
        if "srcset" in have:
            self.loads += [part.split()[0] for part in have["srcset"].split(",")]
        if tag == "link" and not set(have.get("rel", "").split()) & HARMLESS:
            self.loads.append(have.get("href", ""))
        if tag == "a" and "href" in have:
            self.links.append(have["href"])
        self.loads += re.findall(r"url\(['\"]?([^'\")]+)", have.get("style", ""))


def problems(root):
    """What is wrong, a line each."""
    pages = {path: Page(path) for path in sorted(root.rglob("*.html"))}
    if not pages:
        yield f"{root} has no pages"
    for path, page in pages.items():
        for address in [*page.loads, *page.links]:
            parts = urlsplit(address)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                if address in page.loads:
                    yield f"{path.relative_to(root)} loads {address}"
                continue
            if path.name == "404.html":  # its addresses are those of the server
                continue
            place = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            place = place / "index.html" if place.is_dir() else place
            if not place.is_file():
                yield f"{path.relative_to(root)}: {address} does not exist"
            elif parts.fragment and place in pages and unquote(parts.fragment) not in pages[place].names:
                yield f"{path.relative_to(root)}: {address}: no such place in that page"
    for path in sorted(root.rglob("*.css")):
        for address in re.findall(
            r"(?:url\(|@import\s*)['\"]?((?:https?:)?//[^'\")]+)", path.read_text(encoding="utf-8")
        ):
            yield f"{path.relative_to(root)} loads {address}"


if __name__ == "__main__":
    found = list(problems(Path(sys.argv[1]).resolve()))
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(f"{len(found)} problems" if found else 0)
