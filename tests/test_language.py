"""The package speaks the language of the field: docstrings say something, and names are those of the glossary."""

import ast
import re
from pathlib import Path

import epidemic

ROOT = Path(epidemic.__file__).parent
TERSE_ALLOWED = 0
"""Docstrings of fewer than four words. This number only ever shrinks."""
PRIVATE = frozenset(
    [
        "seat",
        "seats",
        "desk",
        "letter",
        "letters",
        "journal",
        "roster",
        "hello",
        "hellos",
        "acquaintance",
        "whoever",
        "ear",
        "ears",
        "wish",
        "voice",
        "emit",
        "absorb",
        "people",
        "person",
        "body",
    ]
)
"""Words of a private language, with which no class, function, argument or variable is named."""
ALLOWED = frozenset({"body", "body_bytes", "people"})
"""Names that mean what everybody means: the body of a page, of a table, of a message."""


def trees():
    """Every file of the package: its path in the package, and its tree."""
    return [(path.relative_to(ROOT), ast.parse(path.read_text())) for path in sorted(ROOT.rglob("*.py"))]


def terse():
    """The docstrings of fewer than four words, shapes left out, with their places."""
    found = []
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
                text = ast.get_docstring(node)
                if text is not None and len(text.partition("   #")[0].split()) < 4:
                    found.append(f"{path}:{getattr(node, 'lineno', 1)}: {text}")
    return found


def named(tree):
    """The names that a file gives to anything."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def words_of(name):
    """The words that a name consists of: `LateMessages` and `late_messages` are both {late, messages}."""
    return {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}


def test_no_docstring_says_nothing():
    found = terse()
    assert len(found) <= TERSE_ALLOWED, "\n".join(found)
    assert len(found) == TERSE_ALLOWED, f"there are {len(found)} now: lower TERSE_ALLOWED"


def test_names_are_those_of_the_glossary():
    found = {
        f"{path}: {name}"
        for path, tree in trees()
        for name in named(tree)
        if name not in ALLOWED and words_of(name) & PRIVATE
    }
    assert not found, "\n".join(sorted(found))


def test_the_census_sees_what_it_looks_for():
    tree = ast.parse("class Journal:\n    def put(self, the_letter):\n        self.seats = 1\n")
    assert [name for name in named(tree) if words_of(name) & PRIVATE] == ["Journal", "the_letter", "seats"]
