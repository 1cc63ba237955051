"""CSV files that are not in UTF-8: what they are in, and their text in UTF-8, which is what everything else reads.

Such a file is decoded in memory for every pass over it. A copy on disk would leave its owner's rows where nobody
expects them.
"""

import codecs
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

UTF8 = "utf-8"
_MARKS = {codecs.BOM_UTF8: UTF8, codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


class EncodingError(Exception):
    """Bytes that are no text in the encoding; its message says where."""


def find_encoding(start: bytes, said: str) -> str:
    """Return the encoding of a file that begins in this way: what its mark says, or else what is ``said`` of it."""
    for mark, encoding in _MARKS.items():
        if start.startswith(mark):
            return encoding
    return codecs.lookup(said).name


def open_utf8(path: Path, encoding: str) -> BinaryIO:
    """Open a file as text in UTF-8.

    Raises:
        EncodingError: it is not in this encoding.
    """
    if encoding == UTF8:
        return path.open("rb")
    data = path.read_bytes()
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise EncodingError(f"line {line} is no text in {encoding}: {error.reason}") from error
    if not encoding.startswith("utf") and not data.isascii() and _is_utf8(data):
        raise EncodingError(f"it is text in UTF-8, not in {encoding}")
    return BytesIO(text.removeprefix("\ufeff").encode())


def _is_utf8(data: bytes) -> bool:
    """Tell whether bytes are text in UTF-8: text in a code page with letters beyond ASCII hardly ever is."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
