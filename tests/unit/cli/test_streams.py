"""`run`, `chat` and `eval` with whatever may be at their ends: closed, not text, a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from flyweight.cli.streams import say
from support.toys import toy_llama_files, write_files

COMMAND = [sys.executable, "-m", "flyweight"]
SHORT = ("--max-tokens", "4")
NOT_TEXT = os.fsdecode(b"abc\xff")


def flyweight(*arguments: object, shell: str = "", typed: bytes = b"", **options: Any) -> subprocess.CompletedProcess[bytes]:
    """The command, its streams redirected as a shell would; never a traceback."""
    command = ["sh", "-c", f'"$@" {shell}', "sh", *COMMAND, *map(str, arguments)] if shell else [*COMMAND, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, timeout=60, input=typed, **options)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    assert 0 <= done.returncode < 128, done.returncode
    return done


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_files(tmp_path_factory.mktemp("streams") / "toy", toy_llama_files())


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("abc " * 200, "utf-8")
    return path


def verbs(toy: Path, text: Path) -> dict[str, tuple[object, ...]]:
    return {
        "run": ("run", toy, "abc", *SHORT),
        "json": ("run", toy, "abc", "--json", *SHORT),
        "stdin": ("run", toy, *SHORT),
        "chat": ("chat", toy, *SHORT),
        "eval": ("eval", toy, "--text", text, "--context", 16),
    }


@pytest.mark.parametrize("verb", ["run", "json", "stdin", "chat", "eval"])
@pytest.mark.parametrize("shell", ["<&-", ">&-", "2>&-", "</dev/null", "<&- >&- 2>&-"])
def test_closed_streams(verb: str, shell: str, toy: Path, text: Path) -> None:
    """A closed stream is as good as /dev/null."""
    done = flyweight(*verbs(toy, text)[verb], shell=shell, typed=b"abc\n")
    if verb == "stdin" and "<" in shell:
        assert done.returncode == 2
        assert "2>&-" in shell or b"no prompt" in done.stderr
    else:
        assert done.returncode == 0
        assert done.stdout or " >&-" in f" {shell}" or (verb == "chat" and "<" in shell)


@pytest.mark.parametrize(("verb", "before"), [("stdin", b""), ("stdin", "é\r\n".encode()), ("chat", b""), ("chat", b"abc\n")])
def test_standard_input_that_is_no_text(verb: str, before: bytes, toy: Path, text: Path) -> None:
    done = flyweight(*verbs(toy, text)[verb], typed=before + b"ab\xffc\n")
    assert done.returncode == 3
    assert f"standard input, byte {len(before) + 2}: ".encode() in done.stderr
    assert b"[E_TEXT]" in done.stderr


@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b""])
def test_lines_of_a_chat_may_be_empty_and_end_anyhow(ends: bytes, toy: Path, text: Path) -> None:
    arguments = verbs(toy, text)["chat"]
    plain = flyweight(*arguments, typed=b"abc\nxyz\n").stdout
    assert flyweight(*arguments, typed=b"\n  \nabc\r\n\nxyz" + ends).stdout == plain


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "MODEL", NOT_TEXT), ("run", "MODEL", NOT_TEXT, "--raw"), ("run", "MODEL", "abc", "--system", NOT_TEXT),
        ("chat", "MODEL", "--system", NOT_TEXT),
    ],
)  # fmt: skip
def test_arguments_that_are_no_text(arguments: tuple[str, ...], toy: Path) -> None:
    done = flyweight(*(toy if word == "MODEL" else word for word in arguments))
    assert done.returncode == 2
    assert b"is not UTF-8 at byte 3" in done.stderr


@pytest.mark.parametrize("stop", [("--stop", ""), ("--stop", "a", "--stop", "")])
def test_an_empty_stop_text(stop: tuple[str, ...], toy: Path) -> None:
    done = flyweight("run", toy, "abc", *stop)
    assert done.returncode == 2
    assert b"--stop" in done.stderr


@pytest.mark.parametrize("prompt", ["\0", "a\0b\x1b]0;title\x07", " ", "\n", "\u202e"])
def test_any_text_is_a_prompt(prompt: str, toy: Path) -> None:
    done = flyweight("run", toy, *SHORT, typed=prompt.encode())
    assert done.returncode == 0 or b"[E_PROMPT]" in done.stderr


@pytest.mark.parametrize(
    ("template", "prompt", "options"),
    [
        ("", "abc", ()),
        ("{% if false %}x{% endif %}", "abc", ()),
        ("{{ '' }}", "abc", ()),
        (None, "é", ()),
        (None, "é", ("--raw",)),
    ],
)
def test_what_makes_no_tokens(template: str | None, prompt: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """The vocabulary of the toy has no é."""
    config = {} if template is None else {"tokenizer_config.json": json.dumps({"chat_template": template}).encode()}
    model = write_files(tmp_path / "model", toy_llama_files() | config)
    for arguments, typed in ((("run", model, prompt, *options), ""), (("chat", model), prompt + "\n")):
        if arguments[0] == "chat" and options:
            continue
        done = flyweight(*arguments, typed=typed.encode())
        assert (done.returncode, done.stdout) == (3, b"")
        assert b"[E_PROMPT]" in done.stderr


def test_a_text_file_that_is_no_text(toy: Path, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"te\xffxt")
    path.write_bytes(b"abc \xf0\x9f\x91")
    done = flyweight("eval", toy, "--text", path)
    assert done.returncode == 3
    assert b"byte 4" in done.stderr
    assert b"[E_TEXT]" in done.stderr


def test_a_template_has_no_more_room_than_the_context(tmp_path: Path) -> None:
    flood = {"tokenizer_config.json": json.dumps({"chat_template": "{{ 'ab' * 1000000 }}"}).encode()}
    done = flyweight("run", write_files(tmp_path / "model", toy_llama_files() | flood), "abc")
    assert done.returncode == 3
    assert b"it gives more than" in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_of_another_encoding(encoding: str, toy: Path) -> None:
    done = flyweight("run", toy, "abc", *SHORT, env=os.environ | {"PYTHONIOENCODING": encoding})
    assert done.returncode == 0


# Terminals --------------------------------------------------------------------------------------

COMMANDS = (
    "\x1b]0;title\x07", "\x1b[31m", "\x9b31m", "\x9d0;x\x9c", "\r", "\b", "\x7f", "\x00", "\u202e", "\u2066", "\u200f",
    "\u2028", "\u206a", "\x1bP", "\x0c",
)  # fmt: skip
SHOWN = ("a", "é\n", "\t", "👩‍👩‍👧", "❤️", "ك‌ك", "한", "\u0301", " ")


def speaking(words: Mapping[str, int]) -> dict[str, int]:
    """A vocabulary that says nothing but commands and letters."""
    cut = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spoken = [
        cut.pre_tokenize_str(f"{(COMMANDS + SHOWN)[index % (len(COMMANDS) + len(SHOWN))]}{index}")[0][0]
        for index in range(len(words))
    ]
    return {word if index < 3 or word in "abc" else spoken[index]: index for word, index in words.items()}


def on_a_terminal(*arguments: object, typed: bytes = b"") -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen([*COMMAND, *map(str, arguments)], stdout=theirs, stdin=subprocess.PIPE) as running:
        os.close(theirs)
        assert running.stdin is not None
        running.stdin.write(typed)
        running.stdin.close()
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # how the end of a terminal reads on Linux
            pass
    os.close(ours)
    assert running.returncode == 0
    return shown.decode().replace("\r\n", "\n")


def test_a_terminal_is_shown_no_commands(tmp_path: Path) -> None:
    files = toy_llama_files()
    document = json.loads(files["tokenizer.json"])
    document["model"] |= {"vocab": speaking(document["model"]["vocab"]), "merges": []}
    config = json.loads(files["config.json"])
    del config["eos_token_id"]
    changed = {
        "tokenizer.json": document,
        "config.json": config,
        "tokenizer_config.json": {"chat_template": "{{ messages[-1].content }}"},
    }
    model = write_files(tmp_path / "model", files | {name: json.dumps(held).encode() for name, held in changed.items()})
    for arguments, typed in ((("run", model, "abc"), b""), (("chat", model), b"abc\n")):
        options = ("--max-tokens", 100, "--temperature", 2, "--seed", 1)
        said = flyweight(*arguments, *options, typed=typed).stdout.decode()
        shown = on_a_terminal(*arguments, *options, typed=typed)
        assert "\x1b]0;" in said, "a pipe gets the text as it is"
        commands = {c for c in shown if c not in "\n\t" and unicodedata.category(c) in ("Cc", "Zl", "Zp")}
        assert not commands | (set(shown) & set("\u202e\u2066\u200f\u206a"))
        assert "\\x1b]0;title\\x07" in shown


def test_escapes_do_not_depend_on_where_a_piece_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(list[str]):
        write = list.append

        def isatty(self) -> bool:
            return True

        def flush(self) -> None:
            pass

    text = "".join(COMMANDS + SHOWN)
    whole, pieces = Terminal(), Terminal()
    for terminal, parts in ((whole, [text]), (pieces, list(text))):
        monkeypatch.setattr(sys, "stdout", terminal)
        for part in parts:
            say(part)
    monkeypatch.undo()
    assert "".join(whole) == "".join(pieces)
    assert "".join(whole).endswith("".join(SHOWN))
    assert "\x1b" not in "".join(whole)
