"""Fails if a program or library needs a newer glibc than this: python ci/check_glibc.py [--limit 2.28] FILE...

A file is an ELF file or a wheel, whose ELF files are all looked at. What they need is read from their tables of symbol
versions, as the loader reads it. Needs pyelftools.
"""

import argparse
import io
import re
import sys
import zipfile

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection

VERSION = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")
MAGIC = b"\x7fELF"


def number(version):
    return tuple(int(part) for part in version.split("."))


def needed(elf):
    """The version of glibc behind each needed symbol version, with the names of the symbols that need it."""
    versions, symbols = {}, {}
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, auxiliaries in section.iter_versions():
                for auxiliary in auxiliaries:
                    match = VERSION.fullmatch(auxiliary.name)
                    if match:
                        versions[auxiliary["vna_other"]] = match.group(1)
                        symbols.setdefault(match.group(1), [])
    table, names = elf.get_section_by_name(".gnu.version"), elf.get_section_by_name(".dynsym")
    if table is not None and names is not None:
        for index, symbol in enumerate(names.iter_symbols()):
            version = versions.get(table.get_symbol(index)["ndx"])
            if version is not None:
                symbols[version].append(symbol.name)
    return symbols


def binaries(path):
    """The ELF files at the path: itself, or what is in the wheel. Name and content."""
    with open(path, "rb") as file:
        content = file.read()
    if content.startswith(MAGIC):
        yield path, content
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                content = wheel.read(name)
                if content.startswith(MAGIC):
                    yield f"{path}: {name}", content


def check(path, limit):
    """Prints one line for each ELF file; whether there are any, and all are fine."""
    count, fine = 0, True
    for name, content in binaries(path):
        count += 1
        symbols = needed(ELFFile(io.BytesIO(content)))
        newest = max(symbols, key=number, default="0")
        print(f"{name}: needs glibc {newest}")
        for version in sorted(symbols, key=number):
            if number(version) > number(limit):
                fine = False
                print(f"{name}: {', '.join(symbols[version]) or '?'} of glibc {version}, newer than {limit}")
    if count == 0:
        print(f"{path}: neither an ELF file nor a wheel with one")
    return fine and count > 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", default="2.28", help="the newest version that may be needed (default: 2.28)")
    parser.add_argument("files", nargs="+", metavar="FILE")
    arguments = parser.parse_args()
    try:
        fine = [check(file, arguments.limit) for file in arguments.files]
    except (OSError, ELFError, zipfile.BadZipFile) as error:
        sys.exit(f"check_glibc: {error}")
    sys.exit(not all(fine))


if __name__ == "__main__":
    main()
