"""Positions of keys in TOML."""

from __future__ import annotations

from slipstream.spark.pipelines.toml_positions import TomlPosition, TomlPositions


def test_keys_of_all_kinds_have_positions() -> None:
    text = '''# [not.this]
top = """
[neither] = "this"
"""   # comment
[a . "b c"]
  x = { y = [1, { z = 2 }], "w" = 'q=1' }
a.b = 1
[[list]]
k = "v"
'''
    positions = TomlPositions(text)
    assert positions[("top",)] == TomlPosition(2, 1)
    assert positions[("a", "b c")] == TomlPosition(5, 1)
    assert positions[("a", "b c", "x")] == TomlPosition(6, 3)
    assert positions[("a", "b c", "x", "y")] == TomlPosition(6, 9)
    assert positions[("a", "b c", "x", "y", "z")] == TomlPosition(6, 19)
    assert positions[("a", "b c", "x", "w")] == TomlPosition(6, 29)
    assert positions[("a", "b c", "a", "b")] == TomlPosition(7, 1)
    assert positions[("list", "k")] == TomlPosition(9, 1)
    assert positions[("list", "not there")] == TomlPosition(8, 1)
    assert positions[("nowhere",)] == TomlPosition(1, 1)
