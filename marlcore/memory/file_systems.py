"""The file systems that keep synced data through a power cut."""

import os
import stat
from pathlib import Path

from ..regular_files import mode_of
from .files import File
from .native import checked, lib

# Linux's linux/magic.h. Of these, the manuals say that fdatasync and msync end when the disk has the data.
_KEEPING = {
    0xEF53: "ext4", 0x58465342: "xfs", 0x9123683E: "btrfs", 0xF2F52010: "f2fs", 0xCA451A4E: "bcachefs",
    0x2FC12FC1: "zfs",
}  # fmt: skip
_OTHERS = {
    0x01021994: "tmpfs", 0x858458F6: "ramfs", 0x794C7630: "overlay", 0x6969: "nfs", 0xFF534D42: "cifs",
    0xFE534D42: "smb", 0x01021997: "9p", 0x65735546: "fuse", 0x4D44: "vfat", 0x2011BAB0: "exfat",
}  # fmt: skip


def check_keeps(target: Path) -> None:
    """Raises ValueError if the file system of a new file may lose, at a power cut, what it has synced."""
    directory = target.parent
    if not stat.S_ISDIR(mode_of(directory)):
        return  # `open_nameless` refuses it
    with File() as file:
        file.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        magic = checked(lib.mc_file_system(file.fd))
    if magic not in _KEEPING:
        known, got = ", ".join(sorted(_KEEPING.values())), _OTHERS.get(magic, f"one of type {magic:#x}")
        keeping = f"{known}, which keep what they synced"
        raise ValueError(f"path: expected a durable file on {keeping}, got {got} at {directory}")
