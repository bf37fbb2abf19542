"""Fetch texts to evaluate and calibrate with: paragraphs of books that Debian ships, and the source of Python packages.

    python tools/fetch_text.py .models/text        writes debian-handbook.txt (0.9 MB), anarchism.txt (11 MB),
                                                   click.txt (0.3 MB) and jinja2.txt (0.5 MB)

The packages are downloaded, never installed. Out of every HTML page of a book, in the order of their names, come the paragraphs
of more than 120 characters, without tags and with white space collapsed, an empty line between them; of a Python package, every
module. The result is checked against the digest of the text that the figures in docs/ were made with.
"""

from __future__ import annotations

import hashlib
import html
import io
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Book:
    package: str
    pages: str
    paragraph: str
    sha256: str


BOOKS = (
    Book(
        "debian-handbook",
        r"\./usr/share/doc/debian-handbook/html/en-US/[^/]+\.html",
        r'<div class="para">(.*?)</div>',
        "b61de7c4799880b02b0d6945534dc5075ca4f90629fc685f67cb8735a6e547ff",
    ),
    Book(
        "anarchism",
        r"\./usr/share/doc/anarchism/html/[^/]+\.html",
        r"<p>(.*?)</p>",
        "671219f53071764a31f170214ed3b0ea6b652aa0012c129ccc6bd2768cf8a138",
    ),
)
SHORTEST = 121


@dataclass(frozen=True)
class Modules:
    package: str
    version: str
    sha256: str


SOURCES = (
    Modules("click", "8.1.7", "3d050ec0901cbab5fc9d861e19af0edb43195d7ebe1e8bd3f51686fdc1150cba"),
    Modules("jinja2", "3.1.6", "0d743b923d75264c6e93f6c14dde6148db56aa254cdb64aa50d201e726bf4b36"),
)


def members(deb: bytes) -> Iterator[tuple[str, bytes]]:
    """The members of an ar archive, which a .deb is: 60-byte headers, bodies padded to even lengths."""
    at = len(b"!<arch>\n")
    while at < len(deb):
        name, size = deb[at : at + 16].decode().strip().rstrip("/"), int(deb[at + 48 : at + 58])
        yield name, deb[at + 60 : at + 60 + size]
        at += 60 + size + size % 2


def pages(deb: bytes, pattern: str) -> Iterator[str]:
    data = next(body for name, body in members(deb) if name.startswith("data.tar"))
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        chosen = [member for member in archive if member.isfile() and re.fullmatch(pattern, member.name)]
        for member in sorted(chosen, key=lambda member: member.name):
            file = archive.extractfile(member)
            assert file is not None
            yield file.read().decode("utf-8", "replace")


def text_of(book: Book, deb: bytes) -> str:
    found = (paragraph for page in pages(deb, book.pages) for paragraph in re.findall(book.paragraph, page, re.DOTALL))
    plain = (" ".join(html.unescape(re.sub(r"<[^>]+>", "", paragraph)).split()) for paragraph in found)
    return "\n\n".join(text for text in plain if len(text) >= SHORTEST)


def source_of(wheel: bytes) -> str:
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        modules = sorted(name for name in archive.namelist() if name.endswith(".py"))
        return "\n".join(archive.read(name).decode() for name in modules)


def fetched(command: list[str], into: Path, pattern: str) -> bytes:
    with tempfile.TemporaryDirectory(dir=into) as folder:
        subprocess.run(command, check=True, cwd=folder)
        (package,) = Path(folder).glob(pattern)
        return package.read_bytes()


def keep(into: Path, package: str, sha256: str, text: str) -> None:
    digest = hashlib.sha256(text.encode()).hexdigest()
    if digest != sha256:
        print(f"{package} has other text than our figures were made with (sha256 {digest})", file=sys.stderr)
    (into / f"{package}.txt").write_bytes(text.encode())


def main(into: Path) -> None:
    into.mkdir(parents=True, exist_ok=True)
    for book in BOOKS:
        deb = fetched(["apt-get", "download", "-qq", book.package], into, "*.deb")
        keep(into, book.package, book.sha256, text_of(book, deb))
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    for modules in SOURCES:
        wheel = fetched([*download, f"{modules.package}=={modules.version}"], into, "*.whl")
        keep(into, modules.package, modules.sha256, source_of(wheel))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
