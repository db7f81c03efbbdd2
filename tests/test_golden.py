"""Golden files: a difference fails with its lines, and is only written down when that is asked for."""

import pytest

import golden


def test_a_changed_text_fails_and_is_rewritten_on_demand(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(golden, "FOLDER", tmp_path)
    monkeypatch.delenv(golden.REWRITE, raising=False)
    with pytest.raises(pytest.fail.Exception, match=r"python tests/golden\.py(.|\n)*\+two"):
        golden.check("a", "one\ntwo\n")
    assert not (tmp_path / "a.txt").exists()
    monkeypatch.setenv(golden.REWRITE, "1")
    golden.check("a", "one\ntwo")
    assert (tmp_path / "a.txt").read_text() == "one\ntwo\n"
    assert "+two" in capsys.readouterr().out
    monkeypatch.delenv(golden.REWRITE)
    golden.check("a", "one\ntwo\n")
    with pytest.raises(pytest.fail.Exception, match=r"-two\n\+three"):
        golden.check("a", "one\nthree\n")
