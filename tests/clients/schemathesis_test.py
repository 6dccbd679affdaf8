#!/usr/bin/env python3
"""schemathesis on the server's own OpenAPI document: whatever fits the document, and what does not, gets an answer that fits it.

schemathesis_test.py LAPIDARY [unittest's arguments]      run with the Python of tests/clients/setup
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import made_model
import served

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
PATHS = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/models", "/tokenize", "/detokenize",
         "/apply-template", "/health", "/ready", "/metrics", "/v1/kv"}  # fmt: skip


class Document(unittest.TestCase):
    def run_against(self, model, examples):
        # Short answers, so that the time goes into the requests.
        with tempfile.TemporaryDirectory() as folder:
            if model == "made":
                model = made_model.make(f"{folder}/made")
            with served.Server(LAPIDARY, model, "--default-max-tokens", 4, "--max-tokens", 16, "--context", 512,
                               "--kv-dir", f"{folder}/kv") as server:
                document = server.get("/openapi.json").json
                self.assertLessEqual(PATHS, set(document["paths"]))
                program = pathlib.Path(sys.executable).with_name("st")
                command = [program, "run", f"{server.url}/openapi.json", "--checks", ",".join(CHECKS), "--max-examples", str(examples),
                           "--phases", "examples,coverage,fuzzing", "--generation-deterministic",
                           "--suppress-health-check", "all", "--request-timeout", "60", "--workers", "1", "--no-color", "--no-shrink",
                           "--report", "json", "--report-json-path", f"{folder}/report.json"]  # fmt: skip
                run = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=folder)
                self.assertEqual(run.returncode, 0, run.stdout[-12000:] + run.stderr[-2000:])
                self.assertEqual(served.pages_in_use(self.cleared(server)), 0)
                report = json.loads(pathlib.Path(folder, "report.json").read_text())
                self.assertTrue(report)
                return run.stdout

    def cleared(self, server):
        server.wait_idle()
        self.assertEqual(server.post("/v1/kv/clear", {}).status, 200)
        return server.kv()

    def test_made_model_with_tools(self):
        self.run_against("made", 25)

    def test_smollm2(self):
        self.run_against(served.SMOLLM2, 3)

    def test_gemma3(self):
        self.run_against(served.GEMMA3, 3)


if __name__ == "__main__":
    served.main(globals())
