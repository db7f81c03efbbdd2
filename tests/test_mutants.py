"""The list of mutants is true: each of them changes one place of the protocol as it is now. `make mutants` tries them."""

import ast

import pytest

from mutants import MUTANTS, PACKAGE


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.breaks}")
def test_a_mutant_changes_one_place_and_is_a_program(mutant):
    text = (PACKAGE / mutant.path).read_text()
    changed = mutant.applied(text)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))


def test_there_are_many_mutants_and_no_two_are_the_same():
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS) >= 30
    assert len({mutant.breaks for mutant in MUTANTS}) == len(MUTANTS)


def test_a_mutant_whose_place_is_gone_or_not_alone_is_told():
    for text in ("", 2 * MUTANTS[0].old):
        with pytest.raises(ValueError, match="times, not once"):
            MUTANTS[0].applied(text)
