"""Reads what shared objects need of others, and gives the templates of stand-ins their names.

Only 64-bit little-endian files are read, as all are that torch comes with.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_IDENT = b"\x7fELF\x02\x01"
_LOAD, _DYNAMIC = 1, 2
# Tags of the dynamic section.
_NEEDED, _HASH, _STRTAB, _SYMTAB, _SONAME = 1, 4, 5, 6, 14
_GNU_HASH, _VERSYM, _VERDEF, _VERNEED = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFE
_SYMBOL = struct.Struct("<IBBHQQ")
# Of a symbol's version; the other bit hides it.
_VERSION_INDEX = 0x7FFF


@dataclass(frozen=True, slots=True)
class _Segment:
    address: int
    offset: int
    size: int


class SharedObject:
    """A shared object's dynamic section and symbols, read where they are asked for."""

    def __init__(self, data: bytes | bytearray | mmap.mmap) -> None:
        if data[:6] != _IDENT:
            raise ValueError("not a 64-bit little-endian ELF file")
        self._data = data
        self._segments = list(self._read_segments(_LOAD))
        self._tags = self._read_tags()

    @property
    def soname(self) -> str | None:
        """The name by which others ask for it."""
        names = self._tags.get(_SONAME)
        return self._string(names[0]) if names else None

    @cached_property
    def needed(self) -> list[str]:
        """The names of the libraries that it needs."""
        return [self._string(offset) for offset in self._tags.get(_NEEDED, [])]

    @cached_property
    def needed_versions(self) -> dict[str, list[str]]:
        """The versions of symbols that it wants of each library."""
        found: dict[str, list[str]] = {}
        for library, version, _ in self._needed_versions():
            found.setdefault(library, []).append(version)
        return found

    def wanted(self) -> Iterator[tuple[str, str | None]]:
        """Yield the names of symbols that it wants of others, and the library of each where its version tells."""
        libraries = {index: library for library, _, index in self._needed_versions()}
        versions = self._place(_VERSYM)
        for position, (name, section) in enumerate(self._symbols()):
            if name and not section:
                index = 0 if versions is None else struct.unpack_from("<H", self._data, versions + 2 * position)[0]
                yield self._string(name), libraries.get(index & _VERSION_INDEX)

    def defined(self) -> Iterator[str]:
        """Yield the names of what it defines for others."""
        for name, section in self._symbols():
            if name and section:
                yield self._string(name)

    def offset_of(self, symbol: str) -> int:
        """Return where in the file the memory of a symbol begins."""
        start, count = self._symbol_table()
        for index in range(count):
            name, _, _, section, value, _ = _SYMBOL.unpack_from(self._data, start + index * _SYMBOL.size)
            if section and self._string(name) == symbol:
                return self._offset(value)
        raise KeyError(symbol)

    def rename(self, names: Mapping[str, str]) -> bytes:
        """Return the file with names of symbols, libraries and versions replaced by ones that are not longer."""
        made = bytearray(self._data)
        for old, new in names.items():
            place = made.find(old.encode() + b"\0")
            if place < 0 or len(new) > len(old):
                raise ValueError(f"{new} does not fit into {old}")
            made[place : place + len(old)] = new.encode().ljust(len(old), b"\0")
        renamed = SharedObject(made)
        renamed._hash_versions(made)
        if _HASH in renamed._tags:
            renamed._hash_symbols(made)
        return bytes(made)

    def _needed_versions(self) -> Iterator[tuple[str, str, int]]:
        """Yield a library, a version that is wanted of it, and the index by which symbols name that version."""
        position = self._place(_VERNEED)
        while position is not None:
            _, count, file, first, following = struct.unpack_from("<HHIII", self._data, position)
            entry = position + first
            for _ in range(count):
                _, _, index, name, step = struct.unpack_from("<IHHII", self._data, entry)
                yield self._string(file), self._string(name), index
                entry += step
            position = position + following if following else None

    def _read_segments(self, kind: int) -> Iterator[_Segment]:
        (table,) = struct.unpack_from("<Q", self._data, 32)
        entry_size, count = struct.unpack_from("<HH", self._data, 54)
        for index in range(count):
            found, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", self._data, table + index * entry_size)
            if found == kind:
                yield _Segment(address, offset, size)

    def _read_tags(self) -> dict[int, list[int]]:
        tags: dict[int, list[int]] = {}
        for segment in self._read_segments(_DYNAMIC):
            for position in range(segment.offset, segment.offset + segment.size, 16):
                tag, value = struct.unpack_from("<qQ", self._data, position)
                if not tag:
                    break
                tags.setdefault(tag, []).append(value)
        return tags

    def _offset(self, address: int) -> int:
        for segment in self._segments:
            if segment.address <= address < segment.address + segment.size:
                return segment.offset + address - segment.address
        raise ValueError("an address that is not in the file")

    def _place(self, tag: int) -> int | None:
        return self._offset(self._tags[tag][0]) if tag in self._tags else None

    def _string(self, offset: int) -> str:
        start = self._strings + offset
        return bytes(self._data[start : self._data.find(b"\0", start)]).decode()

    @cached_property
    def _strings(self) -> int:
        return self._offset(self._tags[_STRTAB][0])

    def _symbol_table(self) -> tuple[int, int]:
        """Return where the symbols begin, and how many there are."""
        start = self._offset(self._tags[_SYMTAB][0])
        hashes = self._place(_HASH)
        if hashes is not None:
            return start, struct.unpack_from("<I", self._data, hashes + 4)[0]
        return start, self._count_by_newer_hashes()

    def _count_by_newer_hashes(self) -> int:
        """Return how many symbols there are: the last one ends the last chain of GNU's hash table."""
        place = self._place(_GNU_HASH)
        if place is None:
            return 0
        first: int
        num_buckets, first, num_words, _ = struct.unpack_from("<IIII", self._data, place)
        buckets = place + 16 + 8 * num_words
        last: int = max(struct.unpack_from(f"<{num_buckets}I", self._data, buckets), default=0)
        if last < first:
            return first
        chains = buckets + 4 * num_buckets
        while not struct.unpack_from("<I", self._data, chains + 4 * (last - first))[0] & 1:
            last += 1
        return last + 1

    def _symbols(self) -> Iterator[tuple[int, int]]:
        start, count = self._symbol_table()
        table = bytes(self._data[start : start + count * _SYMBOL.size])
        for name, _, _, section, _, _ in _SYMBOL.iter_unpack(table):
            yield name, section

    def _hash_versions(self, made: bytearray) -> None:
        position = self._place(_VERDEF)
        while position is not None:
            *_, first, following = struct.unpack_from("<HHHHIII", made, position)
            (name,) = struct.unpack_from("<I", made, position + first)
            struct.pack_into("<I", made, position + 8, elf_hash(self._string(name)))
            position = position + following if following else None

    def _hash_symbols(self, made: bytearray) -> None:
        place = self._place(_HASH)
        assert place is not None
        num_buckets, count = struct.unpack_from("<II", made, place)
        buckets, chain = [0] * num_buckets, [0] * count
        for index, (name, section) in enumerate(self._symbols()):
            if name and section:
                bucket = elf_hash(self._string(name)) % num_buckets
                chain[index], buckets[bucket] = buckets[bucket], index
        struct.pack_into(f"<{num_buckets + count}I", made, place + 8, *buckets, *chain)


def elf_hash(name: str) -> int:
    """Return the hash of a name as the ELF standard defines it.

    >>> elf_hash("GLIBC_2.2.5") == 0x09691A75
    True
    """
    value = 0
    for byte in name.encode():
        value = (value << 4) + byte
        high = value & 0xF0000000
        value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
    return value


def read_shared_object(path: Path) -> SharedObject | None:
    """Return the shared object in a file, which is read as it is needed; None where it is none."""
    try:
        with path.open("rb") as file:
            return SharedObject(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError, struct.error):
        return None


def libraries_in(folders: Iterable[Path]) -> Iterator[SharedObject]:
    """Yield the shared objects right in some folders."""
    for folder in folders:
        for path in sorted(folder.glob("*.so*")):
            found = read_shared_object(path)
            if found is not None:
                yield found
