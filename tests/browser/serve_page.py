#!/usr/bin/env python3
"""The web page of `lapidary serve` in a real Chromium: against the real program with a tiny model, and against a server whose answers are
made up (serve_page_made.py) for what no tiny model says. The page's files come from the program in both.

    tests/browser/serve_page.py LAPIDARY MODEL [-v]     without a browser it fails; it never skips
"""

import json
import pathlib
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import serve_page_base
from serve_page_base import IDLE, LAST, PageTest, Program
from serve_page_made import WithFake  # noqa: F401: unittest runs what it finds here

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}[model]"


class WithProgram(PageTest):
    """Nothing made up: what the page says to the real server, and what it makes of its answers."""

    def setUp(self):
        super().setUp()
        self.url = serve_page_base.SERVER.url

    def kv(self):
        with urllib.request.urlopen(self.url + "v1/kv", timeout=20) as answer:
            return json.load(answer)

    def test_the_policy_allows_only_the_server_itself(self):
        with urllib.request.urlopen(self.url, timeout=20) as answer:
            policy = answer.headers["Content-Security-Policy"]
            tag = answer.headers["ETag"]
        self.assertIn("default-src 'none'", policy)
        self.assertIn("script-src 'self'", policy)
        self.assertNotIn("unsafe", policy)
        request = urllib.request.Request(self.url, headers={"If-None-Match": tag})
        with self.assertRaises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=20)
        self.assertEqual(caught.exception.code, 304)
        page = self.ready()
        self.expected = ("Content Security Policy",)
        page.value("document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran = 1'}))")
        page.value("fetch('http://127.0.0.1:9/').catch(() => { window.refused = 1; })")
        page.wait("window.refused === 1")
        self.assertIsNone(page.value("window.ran ?? null"))
        self.pages.clear()  # the foreign request is the test's own

    def test_a_chat_with_every_setting_is_accepted(self):
        page = self.ready()
        values = {
            "temperature": "0.7", "top_p": "0.9", "top_k": "40", "min_p": "0.02", "max_tokens": "12", "seed": "7", "repetition_penalty": "1.1",
            "frequency_penalty": "0.1", "presence_penalty": "0.1", "stop": "never this\nnor\\nthis",
        }  # fmt: skip
        for name, value in values.items():
            page.value(f"(f => {{ f.value = {json.dumps(value)}; f.dispatchEvent(new Event('input')); }})(document.getElementById('set-{name}'))")
        page.value("(f => { f.value = 'Be brief'; f.dispatchEvent(new Event('input')); })(document.getElementById('system'))")
        page.value("document.getElementById('shade').click()")
        self.send(page, "hello")
        self.assertEqual(page.value("document.querySelectorAll('.error').length"), 0, page.value("document.querySelector('.turns').textContent"))
        first = page.value(f"{LAST}.querySelector('.tokens').textContent")
        self.assertGreater(page.value(f"{LAST}.querySelectorAll('.token').length"), 3)
        page.value(f"{LAST}.querySelector('.tokens').focus()")
        self.assertGreaterEqual(page.value("document.querySelectorAll('#tip tr').length"), 5)
        page.value("document.activeElement.blur()")
        self.click(page, "Regenerate")
        page.wait(IDLE)
        self.assertEqual(page.value(f"{LAST}.querySelector('.tokens').textContent"), first)  # the same seed
        self.click(page, "Continue")
        page.wait(IDLE)
        self.assertEqual(page.value("document.querySelectorAll('.error').length"), 0, page.value("document.querySelector('.turns').textContent"))
        self.assertTrue(page.value(f"{LAST}.querySelector('.tokens').textContent").startswith(first))

    def test_stop_frees_the_text_on_the_server(self):
        page = self.ready()
        for name, value in (("max_tokens", 480), ("temperature", 0)):
            page.value(f"(f => {{ f.value = '{value}'; f.dispatchEvent(new Event('input')); }})(document.getElementById('set-{name}'))")
        page.value("""new MutationObserver(() => {
          const text = [...document.querySelectorAll('.turn.running .answer')].at(-1)?.textContent;
          if (text && document.getElementById('send').textContent === 'Stop') document.getElementById('send').click();
        }).observe(document.getElementById('chat'), {subtree: true, childList: true, characterData: true})""")
        left = []
        for _ in range(40):  # a tiny model may be through before the page has drawn anything
            self.click(page, "New conversation")
            self.send(page, "hello")
            end = time.monotonic() + 0.5
            while not left and time.monotonic() < end:
                left = [line for line in serve_page_base.SERVER.lines("request") if line["status"] == 499]
                time.sleep(0.02)
            if left:
                break
        self.assertIn("Stopped.", page.value(f"{LAST}.textContent"))
        self.assertLess(left[0]["generated_tokens"], 480)
        end = time.monotonic() + 10
        while self.kv()["running"] and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(self.kv()["running"], 0)

    def test_raw_text_goes_on_with_probabilities(self):
        page = self.ready()
        page.value("document.getElementById('tab-raw').click()")
        page.value("(f => { f.value = '8'; f.dispatchEvent(new Event('input')); })(document.getElementById('set-max_tokens'))")
        page.value("document.getElementById('raw-shade').click()")
        page.value("document.getElementById('raw-text').focus()")
        page.type("the end of")
        self.click(page, "Go on")
        page.wait("document.getElementById('raw-go').textContent === 'Go on' && document.querySelectorAll('#raw .token').length > 0")
        self.assertEqual(page.value("document.querySelectorAll('#raw .error').length"), 0)
        self.assertTrue(page.value("document.getElementById('raw-text').value.startsWith('the end of')"))
        self.assertLessEqual(page.value("document.querySelectorAll('#raw .token').length"), 8)

    def test_the_live_view_draws_what_the_server_says(self):
        page = self.ready(width=1400)
        self.send(page, "hello")
        page.value("document.getElementById('open-live').click()")
        pools = [pool["name"] for pool in self.kv()["pools"]]
        page.wait(f"document.querySelectorAll('#live canvas.pages').length === {len(pools)}")
        self.assertEqual(page.value("[...document.querySelectorAll('#live h4')].map((e) => e.textContent)"), pools)
        page.wait("[...document.querySelectorAll('.fact')].some((e) => e.textContent.startsWith('Server0.0'))")
        self.assertEqual(page.value("document.querySelector('#live .problem').textContent"), "")

    def test_a_refusal_is_shown_with_its_words(self):
        page = self.ready()
        self.expected = ("400",)
        page.value("(f => { f.value = '2000000000'; f.dispatchEvent(new Event('input')); })(document.getElementById('set-max_tokens'))")
        self.write(page, "hello")
        page.wait(f"!!{LAST}?.querySelector('.error')")
        self.assertEqual(page.value(f"{LAST}.querySelector('.error code').textContent"), "context_length_exceeded")


class WithoutTemplate(PageTest):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        server = Program(pathlib.Path(folder.name))
        self.addCleanup(server.close)
        self.url = server.url

    def test_a_model_without_a_template_begins_with_raw_text(self):
        page = self.ready()
        page.wait("!document.getElementById('raw').hidden")
        self.assertIn("tiny has no chat template", page.value("document.querySelector('.note').textContent"))
        self.expected = ("400",)
        page.value("document.getElementById('tab-chat').click()")
        self.write(page, "hello")
        page.wait("!document.getElementById('raw').hidden")


class WithKeys(PageTest):
    expected = ("401",)

    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        keys = pathlib.Path(folder.name) / "keys"
        keys.write_text("reader secret-0123456789abcdef\n", encoding="utf-8")
        keys.chmod(0o600)
        server = Program(pathlib.Path(folder.name), "--api-keys", str(keys))
        self.addCleanup(server.close)
        self.url = server.url

    def test_the_page_itself_needs_no_key_and_asks_for_one(self):
        page = self.open()
        page.wait("!!document.getElementById('key')")
        page.type("secret-0123456789abcdef")
        page.press("Enter")
        page.wait("document.getElementById('model').textContent === 'tiny'")


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    serve_page_base.PROGRAM, serve_page_base.MODEL = (str(pathlib.Path(argument).resolve()) for argument in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "t.jinja").write_text(TEMPLATE, encoding="utf-8")
        serve_page_base.SERVER = Program(pathlib.Path(folder), "--chat-template", "t.jinja")
        try:
            unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
        finally:
            serve_page_base.SERVER.close()


if __name__ == "__main__":
    main()
