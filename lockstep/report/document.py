"""One HTML file that needs nothing else: styles, scripts, libraries and data inside, and no way out.

What a page shows was written by models, so none of it may ever be code. Data goes in as compressed blocks, in
base64, whose alphabet has neither `<` nor a quote, and scripts put text on the page as text. Behind that stands a
Content-Security-Policy: a script runs only if its hash is listed, and nothing is loaded from anywhere.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lockstep.disk import own_copy
from lockstep.records import refuse_other
from lockstep.whole_files import open_aside


@dataclass(frozen=True)
class Document:
    """The parts of a page that do not depend on what it shows.

    Attributes:
        title: Title of the window, HTML.
        styles: CSS.
        body: HTML that scripts fill.
        libraries: Scripts of others, by name; they lie compressed until `run_library(name)` in `page/data.js`.
        scripts: Our own, by name, in order. They see each other's names, as all plain scripts of a page do.
        connects: The page may ask the server that it came from, and no other.
    """

    title: str
    styles: str
    body: str
    libraries: Mapping[str, str]
    scripts: Mapping[str, str]
    connects: bool = False

    def write(
        self, path: Path, blocks: Mapping[str, bytes], late_blocks: Callable[[BinaryIO], object] | None = None
    ) -> None:
        """Writes the file aside and renames it, so that a reader finds a whole one.

        Args:
            path: The file; one that is there is replaced.
            blocks: Data by name, there when the scripts start.
            late_blocks: Writes more blocks, behind the scripts, so that a page is in use before these are read.

        Raises:
            InputError: If something else than a file is there, such as a device, which would be replaced.
        """
        refuse_other(path)
        with open_aside(path, own_copy(path)) as file:
            self.write_to(file, blocks)
            if late_blocks is not None:
                late_blocks(file)

    def write_to(self, file: BinaryIO, blocks: Mapping[str, bytes]) -> None:
        """Writes the page with its blocks."""
        file.write(self._head().encode())
        for name, content in {**{name: text.encode() for name, text in self.libraries.items()}, **blocks}.items():
            write_block(file, name, content)
        for source in self._own():
            file.write(f"<script>{source}</script>\n".encode())

    def _head(self) -> str:
        # Plotting libraries put styles into attributes; like everything else, styles can load nothing.
        runnable = " ".join(f"'sha256-{_sha256(source)}'" for source in [*self._own(), *self.libraries.values()])
        policy = (
            f"default-src 'none'; script-src {runnable}; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
            + ("; connect-src 'self'" if self.connects else "")
        )
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{self.title}</title>\n<style>\n{self.styles}</style>\n</head>\n<body>\n{self.body}"
        )

    def _own(self) -> list[str]:
        """Our scripts as they stand between their tags."""
        return [f"\n{source}//# sourceURL={name}\n" for name, source in self.scripts.items()]


def write_block(file: BinaryIO, name: str, content: bytes) -> None:
    """Writes a data block; `inflated(name)` in `page/data.js` gives its bytes back."""
    file.write(f'<script type="application/gzip" id="{name}">'.encode())
    file.write(base64.b64encode(gzip.compress(content, 6, mtime=0)))
    file.write(b"</script>\n")


def _sha256(source: str) -> str:
    return base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
