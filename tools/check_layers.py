#!/usr/bin/env python3
"""Holds the includes of src/ to the rule of arrows (docs/architecture.md): a folder includes lower rows only, never a neighbour.

    tools/check_layers.py [ROOT]     prints each breach as FILE:LINE and exits with 1 when there is one
"""

import pathlib
import re
import sys

# folder: (row, the folders above base that it may include, third-party headers that it may include)
RULES = {
    "base": (0, (), ("fmt", "xxhash.h")),
    "spec": (1, (), ("boost",)),
    "kernels": (1, (), ("immintrin.h",)),
    "text": (1, (), ("boost", "bridge.h")),
    "formats": (2, ("spec",), ("boost",)),
    "engine": (2, ("spec", "kernels"), ()),
    "reference": (2, ("spec",), ("ATen", "torch")),
    "verify": (3, ("spec", "engine", "reference"), ("boost",)),
    "kvlab": (3, ("spec", "kernels", "engine", "reference"), ("boost", "zstd.h")),
    "serve": (4, ("spec", "text", "engine"), ("boost", "prometheus")),
    "cli": (
        5,
        ("spec", "kernels", "text", "formats", "engine", "reference", "verify", "kvlab", "serve"),
        ("boost", "CLI", "histedit.h", "spdlog"),
    ),
}
THIRD_PARTY = {header for _, _, headers in RULES.values() for header in headers}
INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')


def breach(folder, quote, path):
    """The reason why a file of `folder` may not include `path`, or None."""
    row, below, headers = RULES[folder]
    first = path.split("/")[0]
    if first in RULES:
        if first in (folder, "base", *below):
            return None
        their_row = RULES[first][0]
        direction = "sideways" if their_row == row else "upward" if their_row > row else "undeclared"
        return f"{direction} include of {path}: {folder} (row {row}) may include {', '.join(('base', *below))} only, not {first} (row {their_row})"
    if first in THIRD_PARTY or quote == '"':
        if first in headers or first == "fmt":
            return None
        if first in THIRD_PARTY:
            return f"include of {path}: {folder} may use {', '.join(('fmt', *headers))} only"
        return f"include of {path}: '{first}' is no folder of src/ (spell includes from src/, and add a new folder to the table here)"
    return None


def check(root):
    src = root / "src"
    for entry in sorted(src.iterdir()):
        if entry.name not in RULES:
            yield f"{entry.relative_to(root)}:1: unknown {'folder' if entry.is_dir() else 'file'} in src/: the table here has no row for it"
    for file in sorted(src.rglob("*")):
        folder = file.relative_to(src).parts[0]
        if folder not in RULES or file.suffix not in (".h", ".cc", ".inc"):
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            reason = match and breach(folder, *match.groups())
            if reason:
                yield f"{file.relative_to(root)}:{number}: {reason}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    breaches = list(check(root))
    print("\n".join(breaches) if breaches else f"layers: every include of {root / 'src'} points downward")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
