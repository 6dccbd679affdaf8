#!/usr/bin/env python3
"""lm-eval's local-completions, unchanged, on the local tasks of tasks/: its sums are those of `lapidary score`.

lm_eval_test.py LAPIDARY [unittest's arguments]      run with the Python of tests/clients/setup (lm-eval)
"""

import json
import math
import os
import pathlib
import subprocess
import tempfile
import unittest

CACHE = tempfile.TemporaryDirectory()  # what the packages would keep in the home folder
os.environ |= {"HF_HOME": CACHE.name, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
os.environ |= {"TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}

import lm_eval  # noqa: E402
import lm_eval.tasks  # noqa: E402
import served  # noqa: E402

TASKS = pathlib.Path(__file__).resolve().parent / "tasks"
NAMES = ["lapidary_choice", "lapidary_rolling", "lapidary_generate"]


def evaluate(server, concurrent, tasks=NAMES):
    arguments = {"model": server.model(), "base_url": f"{server.url}/v1/completions", "tokenizer_backend": "remote", "max_length": 1024,
                 "num_concurrent": concurrent, "max_retries": 1, "timeout": 300}  # fmt: skip
    return lm_eval.simple_evaluate(
        model="local-completions", model_args=arguments, tasks=list(tasks), bootstrap_iters=0, log_samples=True,
        task_manager=lm_eval.tasks.TaskManager(include_path=str(TASKS), include_defaults=False),
    )  # fmt: skip


def samples(result, task):
    return sorted(result["samples"][task], key=lambda sample: sample["doc_id"])


def answers(result):
    return {task: [sample["resps"] for sample in samples(result, task)] for task in result["samples"]}


class LmEval:
    """Of each model."""

    @classmethod
    def setUpClass(cls):
        cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        home = os.getcwd()
        os.chdir(TASKS)  # the tasks' data files are relative
        cls.addClassCleanup(os.chdir, home)
        cls.server = cls.enterClassContext(served.Server(LAPIDARY, cls.MODEL, "--context", 1024))
        cls.one = evaluate(cls.server, 1)

    def tokens(self, text):
        return self.server.post("/tokenize", {"prompt": text, "add_special_tokens": False}).json["tokens"]

    def score(self, ids):
        """Log-probabilities of all but the first, as the command says."""
        path = pathlib.Path(self.folder, "ids.json")
        path.write_text(json.dumps(ids))
        command = [LAPIDARY, "score", self.MODEL, "--ids", path, "--context", "1024", "--json"]
        said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        values = said["logprobs"]
        return values if len(values) == len(ids) - 1 else values[1:]

    def test_rolling_log_likelihood_is_what_score_says(self):
        (bos,) = self.tokens(self.server.get("/tokenizer_info").json["bos_token"])
        for sample in samples(self.one, "lapidary_rolling"):
            expected = math.fsum(self.score([bos, *self.tokens(sample["doc"]["text"])]))
            self.assertAlmostEqual(float(sample["resps"][0][0]), expected, delta=1e-4)
        self.assertGreater(self.one["results"]["lapidary_rolling"]["word_perplexity,none"], 1)

    def test_log_likelihood_of_choices_is_what_score_says(self):
        for sample in samples(self.one, "lapidary_choice")[:2]:
            context = self.tokens(f"Question: {sample['doc']['question']}\nAnswer:")
            for choice, (answer,) in zip(sample["doc"]["choices"], sample["resps"]):
                whole = self.tokens(f"Question: {sample['doc']['question']}\nAnswer: {choice}")
                self.assertEqual(whole[: len(context)], context)
                expected = math.fsum(self.score(whole)[len(context) - 1 :])
                self.assertAlmostEqual(float(answer[0]), expected, delta=1e-4)

    def test_the_model_knows_more_than_chance(self):
        self.assertGreater(self.one["results"]["lapidary_choice"]["acc,none"], 0.25)

    def test_generation_stops_at_the_stop_text(self):
        for sample in samples(self.one, "lapidary_generate"):
            self.assertNotIn("\n", sample["resps"][0][0])

    def test_requests_at_once_change_no_bit(self):
        self.assertEqual(answers(evaluate(self.server, 4)), answers(self.one))


class SmolLM2(LmEval, unittest.TestCase):
    MODEL = served.SMOLLM2


class Gemma3(LmEval, unittest.TestCase):
    MODEL = served.GEMMA3


if __name__ == "__main__":
    served.main(globals())
