"""What travels in a message in place of its numbers: one codec a file."""

from collections.abc import Mapping

from tdcd.core.codecs.base import Codec, Codecs, row_size
from tdcd.core.codecs.bfloat16 import BFloat16
from tdcd.core.codecs.float16 import Float16
from tdcd.core.codecs.plain import Plain

CODECS: Mapping[str, type[Codec]] = {"plain": Plain, "float16": Float16, "bfloat16": BFloat16}
"""By kind."""

__all__ = ["CODECS", "BFloat16", "Codec", "Codecs", "Float16", "Plain", "row_size"]
