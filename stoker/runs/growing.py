"""Files that grow by whole pieces, whatever the disk does."""

from __future__ import annotations

import errno
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path


class GrowingFile(ABC):
    """A piece that a kill or a full disk cut off goes before the next one comes.

    No method raises for a disk that fails: `trouble` is what went wrong last, None once writing
    works again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble: str | None = None
        self._file: io.FileIO | None = None
        self._end = 0  # where the last whole piece ends

    @property
    def begun(self) -> bool:
        """Whether there is a piece in it, as far as that is known."""
        return self._end > 0

    def append(self, piece: bytes) -> None:
        try:
            file = self._opened()
            whole = piece if self._end else self._head() + piece
            file.truncate(self._end)
            file.seek(self._end)
            if file.write(whole) < len(whole):
                file.truncate(self._end)  # or who reads along glues what comes next to the part
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._end += len(whole)
            self.trouble = None
        except OSError as error:
            self._note(error)

    def close(self) -> None:
        if self._file is not None:
            try:
                self._file.close()
            except OSError as error:
                self._note(error)
            self._file = None

    @abstractmethod
    def _whole(self, content: bytes) -> int:
        """How many bytes, from the beginning, are whole pieces."""

    def _head(self) -> bytes:
        """What a file begins with."""
        return b""

    def _opened(self) -> io.FileIO:
        # A deleted file takes what is written as if nothing were amiss, and it is lost.
        if self._file is not None and os.fstat(self._file.fileno()).st_nlink == 0:
            self.close()
        if self._file is None:
            # Unbuffered: a piece is with the system, and with its readers, once it is written.
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
            self._file = io.FileIO(os.open(self.path, flags, 0o666), "r+")
            self._end = self._whole(self._file.readall())
        return self._file

    def _note(self, error: OSError) -> None:
        self.trouble = f"Cannot write {self.path}: {error.strerror or error}."


class LineFile(GrowingFile):
    """Its pieces are lines."""

    def keep_while(self, wanted: Callable[[bytes], bool]) -> None:
        """Drop the first line that is not wanted, and all after it."""
        try:
            file = self._opened()
            file.seek(0)
            lines = file.read(self._end).splitlines(keepends=True)
            self._end = sum(map(len, takewhile(wanted, lines)))
            file.truncate(self._end)  # in place, which a full disk allows
        except OSError as error:
            self._note(error)

    def _whole(self, content: bytes) -> int:
        return content.rfind(b"\n") + 1
