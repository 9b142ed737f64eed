"""The examples of docs/python.md, as they stand there."""
import doctest

from conftest import ROOT


def test_the_pages_examples(monkeypatch):
    monkeypatch.chdir(ROOT)
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testfile(str(ROOT / "docs" / "python.md"), module_relative=False, optionflags=flags)
    assert tried > 20 and failed == 0
