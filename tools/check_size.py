#!/usr/bin/env python3
"""Fails on a source file that has outgrown one idea.  (Functions: readability-function-size in .clang-tidy.)

    tools/check_size.py [ROOT]
"""

import pathlib
import sys

LIMIT = 600  # lines; aim at 300
FOLDERS = ("src", "bridge/src", "bridge/include", "tests", "bench", "tools", "cmake")
SUFFIXES = (".h", ".cc", ".inc", ".rs", ".py", ".cmake")


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    files = [file for folder in FOLDERS for file in sorted((root / folder).rglob("*")) if file.suffix in SUFFIXES]
    if not files:
        print(f"size: no source file under {root}")
        return 1
    too_long = 0
    for file in files:
        lines = len(file.read_text(encoding="utf-8").splitlines())
        if lines > LIMIT:
            too_long += 1
            print(f"{file.relative_to(root)}:{LIMIT}: {lines} lines; the limit is {LIMIT}")
    print(f"size: {len(files)} files, {too_long} over {LIMIT} lines")
    return 1 if too_long else 0


if __name__ == "__main__":
    sys.exit(main())
