"""The built site is whole, loads nothing from another host, and can be searched from the disk: `python tests/check_site.py site`, run by `make docs`.

The search is tried in a real browser if there is one.
"""

import json
import re
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from browser import BROWSER, browser

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


INDEX = "var __index = "
"""How the index of the search begins as a script, which pages on the disk can load."""


def search_problems(root):
    """What keeps somebody from searching the site without a server."""
    pages = {path: Page(path) for path in sorted(root.rglob("*.html"))}
    script, index = root / "search" / "search_index.js", root / "search" / "search_index.json"
    if not script.is_file() or not index.is_file():
        yield "search: there is no index that pages on the disk can load (the plugin `offline`)"
        return
    text = script.read_text(encoding="utf-8")
    if not text.startswith(INDEX) or json.loads(text.removeprefix(INDEX)) != json.loads(index.read_text("utf-8")):
        yield "search: the index for pages on the disk is another one"
    found = {entry["location"].partition("#")[0] for entry in json.loads(index.read_text("utf-8"))["docs"]}
    for path, page in pages.items():
        name = path.relative_to(root).as_posix()
        if name == "404.html" or "__config" not in page.names:  # the latter: a page that is shown, not made by the site
            continue
        if name not in found and not (name == "index.html" and "" in found):
            yield f"{name} is not in the index of the search"
        if not any(address.endswith("/iframe-worker.js") for address in page.loads):
            yield f"{name} does not load what searches without a worker"
        named = re.search(r'"search": "([^"]+)"', path.read_text(encoding="utf-8"))
        worker = named and (root / unquote(urlsplit(urljoin(f"/{name}", named[1])).path).lstrip("/"))
        if not worker or not worker.is_file():
            yield f"{name} names no script that searches"


def searched(root):
    """What goes wrong when somebody opens a page from the disk and searches it."""
    with tempfile.TemporaryDirectory() as home, browser(Path(home)) as page:
        page.look()
        page.open((root / "guide.html").as_uri())
        page.value("document.querySelector('#__search').click()")
        page.value(
            "(field => { field.focus(); field.value = 'contraction';"
            " field.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true})) })(document.querySelector('.md-search__input'))"
        )
        try:
            page.wait("document.querySelectorAll('.md-search-result__link').length > 2", patience=30)
        except AssertionError:
            yield f"search: guide.html on the disk finds nothing; the browser says {page.problems}"
            return
        place = urlsplit(page.value("document.querySelector('.md-search-result__link').href"))
        if place.scheme != "file" or not Path(unquote(place.path)).is_file():
            yield f"search: the first result leads to {place.geturl()}"


if __name__ == "__main__":
    site = Path(sys.argv[1]).resolve()
    found = [*problems(site), *search_problems(site), *(searched(site) if BROWSER is not None else [])]
    print(*found, sep="\n", end="\n" if found else "")
    sys.exit(f"{len(found)} problems" if found else 0)
