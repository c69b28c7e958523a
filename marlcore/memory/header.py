"""A segment's header: magic, layout version, sizes, nonce, checksum and a JSON description, padded to pages."""

import json
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..checks import brief
from ..errors import SegmentCorrupt

MAGIC = b"marlcore"
LAYOUT_VERSION = 3
# magic, layout version, checksum, header bytes, segment bytes, nonce, description bytes
_HEADER = struct.Struct("<8sIIQQQQ")
_CHECKSUM_AT = 12
_MAX_HEADER = 1 << 26
_PAGE = 4096
CHECKSUM = "checksum"  # the key of a description that tells where the checksum lies


@dataclass(frozen=True)
class Header:
    raw: bytes
    header_bytes: int
    segment_bytes: int
    nonce: int
    layout: int
    description: dict[str, Any]

    @classmethod
    def build(cls, nonce: int, description: dict[str, Any], body_bytes: int) -> "Header":
        text = json.dumps(description, sort_keys=True).encode()
        header_bytes = -(-(_HEADER.size + len(text)) // _PAGE) * _PAGE
        segment_bytes = header_bytes + -(-body_bytes // _PAGE) * _PAGE
        packed = min(segment_bytes, 2**64 - 1)  # no file system has room for so many, as `open_nameless` will say
        fixed = _HEADER.pack(MAGIC, LAYOUT_VERSION, 0, header_bytes, packed, nonce, len(text))
        raw = bytearray((fixed + text).ljust(header_bytes, b"\0"))
        struct.pack_into("<I", raw, _CHECKSUM_AT, zlib.crc32(raw))
        return cls(bytes(raw), header_bytes, segment_bytes, nonce, zlib.crc32(text), description)

    @classmethod
    def read(cls, fd: int, path: Path) -> "Header":
        """Copies the header once into private memory, and uses only the values checked in this copy."""
        fixed = os.pread(fd, _HEADER.size, 0)
        if len(fixed) < _HEADER.size or not fixed.startswith(MAGIC):
            raise SegmentCorrupt(f"{path}: expected a marlcore segment, got another file")
        header_bytes = _HEADER.unpack(fixed)[3]
        if not _PAGE <= header_bytes <= _MAX_HEADER or header_bytes % _PAGE:
            raise SegmentCorrupt(f"{path}: the header's length {header_bytes} is out of range")
        raw = bytearray(os.pread(fd, header_bytes, 0))
        if len(raw) != header_bytes:
            raise SegmentCorrupt(f"{path}: the file ends inside its header")
        magic, version, checksum, header_again, segment_bytes, nonce, text_bytes = _HEADER.unpack_from(raw)
        if version != LAYOUT_VERSION:
            raise SegmentCorrupt(f"{path}: expected layout version {LAYOUT_VERSION}, got {version}")
        struct.pack_into("<I", raw, _CHECKSUM_AT, 0)
        if magic != MAGIC or header_again != header_bytes or zlib.crc32(raw) != checksum:
            raise SegmentCorrupt(f"{path}: the header's checksum does not match")
        size = os.fstat(fd).st_size
        if text_bytes > header_bytes - _HEADER.size or segment_bytes != size or size <= header_bytes:
            raise SegmentCorrupt(f"{path}: expected a file of {segment_bytes} bytes, got {size}")
        text = bytes(raw[_HEADER.size : _HEADER.size + text_bytes])
        struct.pack_into("<I", raw, _CHECKSUM_AT, checksum)
        try:
            description = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SegmentCorrupt(f"{path}: the header's description cannot be read: {error}") from None
        at = description.get(CHECKSUM, 0) if isinstance(description, dict) else None
        if type(at) is not int or not 0 <= at <= size - header_bytes - 8 or at % 8:
            raise SegmentCorrupt(f"{path}: expected the place of a checksum in the body, got {brief(description)}")
        return cls(bytes(raw), header_bytes, segment_bytes, nonce, zlib.crc32(text), description)
