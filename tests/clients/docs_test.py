#!/usr/bin/env python3
"""The examples of docs/serving.md, as a reader would paste them: curl, Python, Node.

docs_test.py LAPIDARY NODE_FOLDER [unittest's arguments]      run with the Python of tests/clients/setup

A block is run when it is fenced as sh and all its commands are curl's, or fenced as python or js and uses the openai package. Each must
end with exit code 0, and curl must get a 2xx. A block after a line `<!-- not run: REASON -->` is left out.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import served

DOCUMENT = served.ROOT / "docs" / "serving.md"
BLOCK = re.compile(r"^(?P<before>[^\n]*)\n+```(?P<language>sh|bash|python|js|javascript)\n(?P<text>.*?)^```$", re.M | re.S)
ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost):8080")
# The exit code of curl for a refusal would be 0 otherwise.
SHELL = 'set -e -o pipefail\ncurl() { command curl --fail-with-body --silent --show-error "$@"; }\n'


def blocks():
    for match in BLOCK.finditer(DOCUMENT.read_text(encoding="utf-8")):
        if "not run:" in match["before"]:
            continue
        yield match["language"], match["text"]


def is_curl(text):
    joined = re.sub(r"\\\n", " ", text)
    joined = re.sub(r"'[^']*'", "''", joined)  # bodies over several lines
    commands = [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return bool(commands) and all(line.startswith("curl ") for line in commands)


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.folder = pathlib.Path(folder)
        (cls.folder / "node_modules").symlink_to(pathlib.Path(NODE, "node_modules").resolve())
        cls.server = cls.enterClassContext(served.Server(LAPIDARY, served.SMOLLM2, "--kv-dir", cls.folder / "kv"))

    def run_blocks(self, languages, wanted, command, suffix, start=""):
        count = 0
        for language, text in blocks():
            if language not in languages or not wanted(text):
                continue
            count += 1
            with self.subTest(block=text):
                path = self.folder / f"example{suffix}"
                path.write_text(start + ADDRESS.sub(f"127.0.0.1:{self.server.port}", text), encoding="utf-8")
                environment = {**os.environ, "OPENAI_API_KEY": "none"}
                run = subprocess.run([*command, path], cwd=self.folder, capture_output=True, text=True, timeout=120, env=environment)
                self.assertEqual(run.returncode, 0, run.stdout[-2000:] + run.stderr[-2000:])
                self.assertTrue(run.stdout.strip())
        return count

    def test_curl(self):
        self.assertGreaterEqual(self.run_blocks(("sh", "bash"), is_curl, ["bash"], ".sh", SHELL), 4)

    def test_python(self):
        self.assertGreaterEqual(self.run_blocks(("python",), lambda text: "openai" in text, [sys.executable], ".py"), 1)

    def test_node(self):
        self.assertGreaterEqual(self.run_blocks(("js", "javascript"), lambda text: "openai" in text, ["node"], ".mjs"), 1)


if __name__ == "__main__":
    if len(sys.argv) < 3 or not pathlib.Path(sys.argv[2], "node_modules").is_dir():
        sys.exit("usage: docs_test.py LAPIDARY NODE_FOLDER [unittest's arguments]")
    NODE = sys.argv.pop(2)
    served.main(globals())
