"""check_layers.py must refuse each kind of breach, by file, line and rule, and pass a clean tree."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).parents[2] / "tools" / "check_layers.py"


def run(files):
    """Exit code and output of the tool on a tree of {path below src/: text}."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            target = pathlib.Path(root, "src", path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        done = subprocess.run([sys.executable, str(TOOL), root], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout


class CheckLayers(unittest.TestCase):
    def refused(self, files, *fragments):
        code, output = run(files)
        self.assertEqual(code, 1, output)
        self.assertEqual(len(output.splitlines()), 1, output)
        for fragment in fragments:
            self.assertIn(fragment, output)

    def test_clean_tree_passes(self):
        code, output = run({
            "base/error.h": "#pragma once\n#include <fmt/format.h>\n#include <string>\n",
            "spec/model_spec.h": '#include "base/error.h"\n#include <boost/json.hpp>\n',
            "engine/engine.cc": '#include "engine/engine.h"\n#include "spec/model_spec.h"\n#include "kernels/kernels.h"\n',
            "text/tokenizer.cc": '#include "bridge.h"\n',
            "cli/main.cc": '#include "engine/engine.h"\n#include "text/tokenizer.h"\n#include <CLI/CLI.hpp>\n',
        })
        self.assertEqual(code, 0, output)

    def test_upward_include_is_named_with_its_line(self):
        self.refused({"spec/a.cc": '#include "base/error.h"\n\n#include "engine/engine.h"\n'},
                     "src/spec/a.cc:3:", "upward include of engine/engine.h", "spec (row 1) may include base only")

    def test_sideways_include(self):
        self.refused({"formats/a.h": '#include "engine/engine.h"\n'}, "src/formats/a.h:1:", "sideways include")

    def test_neighbours_on_the_first_row(self):
        self.refused({"kernels/a.inc": '  #  include "spec/model_spec.h"\n'}, "src/kernels/a.inc:1:", "sideways include")

    def test_lower_folder_that_is_not_declared(self):
        self.refused({"engine/a.cc": '#include "text/tokenizer.h"\n'}, "undeclared include of text/tokenizer.h")

    def test_angle_brackets_hide_nothing(self):
        self.refused({"base/a.h": "#include <spec/model_spec.h>\n"}, "upward include of spec/model_spec.h")

    def test_unknown_folder(self):
        self.refused({"base/a.h": "", "misc/b.h": ""}, "src/misc:1: unknown folder")

    def test_include_of_unknown_folder(self):
        self.refused({"cli/a.cc": '#include "misc/b.h"\n'}, "src/cli/a.cc:1:", "'misc' is no folder of src/")

    def test_relative_path(self):
        self.refused({"spec/a.cc": '#include "../engine/engine.h"\n'}, "'..' is no folder of src/")

    def test_library_in_the_wrong_room(self):
        self.refused({"engine/a.cc": "#include <boost/json.hpp>\n"}, "include of boost/json.hpp", "engine may use fmt only")


if __name__ == "__main__":
    unittest.main()
