"""The texts that come with Flyweight are enough, of many kinds, and none of them is in two places."""

from __future__ import annotations

from flyweight.calibration import shipped_texts


def test_there_is_enough_of_every_kind() -> None:
    texts = {text.name: text.content for text in shipped_texts()}
    assert {"code.txt", "dialogue.txt", "languages.txt", "lists.txt", "mathematics.txt", "prose.txt"} <= texts.keys()
    assert sum(len(content.encode()) for content in texts.values()) > 75_000
    assert sum(len(text.content) for text in shipped_texts(held_back=True)) > 18_000


def test_nothing_is_repeated() -> None:
    seen: dict[str, str] = {}
    for text in (*shipped_texts(), *shipped_texts(held_back=True)):
        for line in text.content.splitlines():
            if len(line) > 60 and "import" not in line and not line.startswith(("|", "//", "#")):
                assert seen.setdefault(line, text.name) == text.name, line
