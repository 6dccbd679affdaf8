"""The web page against a server whose answers are made up (fake_server.py): what no tiny model says."""

import json
import time

import serve_page_base
from fake_server import ATTACK, KEY, FakeServer, page_of
from report_browser import CONTRAST
from serve_page_base import IDLE, LAST, WIDE, PageTest

# What random texts of Markdown's own marks become: names of elements and attributes, schemes of links.
FUZZ = r"""import('/page/js/markdown.js').then(({ render }) => {
  const parts = ['*', '**', '`', '```', '\n', '\n\n', '- ', '1. ', '> ', '| a | b |\n|--|--|\n', '[x](', 'http://a.b', 'https://c/d', 'javascript:alert(1)', 'data:text/html,x', '_', '~~',
    '\\', '# ', 'a ', '  ', 'word', '<', '<script>', '<img src=x onerror=alert(1)>', '![', '[', ']', '](', ')', '---\n', '- [x] ', '"'];
  const tags = new Set(), attributes = new Set(), schemes = new Set();
  let seed = 7;
  const below = (n) => { seed = (Math.imul(seed, 1664525) + 1013904223) >>> 0; return Math.floor(seed / 4294967296 * n); };
  for (let i = 0; i < 4000; i += 1) {
    const root = document.createElement('div');
    root.append(...render(Array.from({ length: 1 + below(30) }, () => parts[below(parts.length)]).join('')));
    for (const node of root.querySelectorAll('*')) {
      tags.add(node.localName);
      for (const { name } of node.attributes) attributes.add(name);
      if (node.localName === 'a') schemes.add(node.protocol);
    }
  }
  return { tags: [...tags], attributes: [...attributes], schemes: [...schemes] };
})"""


class WithFake(PageTest):
    def setUp(self):
        super().setUp()
        self.fake = FakeServer(page_of(serve_page_base.SERVER.url))
        self.addCleanup(self.fake.close)
        self.url = self.fake.url

    def test_text_comes_in_pieces_and_then_whole(self):
        page = self.ready()
        self.write(page, "hold it")
        page.wait(f"{LAST}?.querySelector('.answer').textContent === 'The first part'")
        self.assertTrue(page.value(f"{LAST}.classList.contains('running')"))
        self.assertEqual(page.value("document.getElementById('send').textContent"), "Stop")
        self.fake.state["hold"].set()
        page.wait(IDLE)
        self.assertEqual(page.value(f"{LAST}.querySelector('.answer').textContent"), "The first part and the second")
        facts = page.value(f"{LAST}.querySelector('.facts').textContent")
        self.assertIn("prompt 40, 32 from the cache", facts)
        self.assertIn("6 tokens", facts)

    def test_stop_ends_the_request_and_keeps_what_came(self):
        for stop in ("button", "Escape"):
            page = self.ready()
            page.value("document.getElementById('new').click()")
            self.write(page, "endless")
            page.wait(f"{LAST}?.textContent.includes(' 3')")
            gone = self.fake.state["gone"]
            page.value("document.getElementById('send').click()") if stop == "button" else page.press("Escape")
            page.wait(IDLE)
            self.assertIn("Stopped.", page.value(f"{LAST}.textContent"))
            end = time.monotonic() + 10
            while self.fake.state["gone"] == gone and time.monotonic() < end:
                time.sleep(0.02)
            self.assertEqual(self.fake.state["gone"], gone + 1, f"the server still writes after {stop}")

    def test_thinking_is_folded_and_opens_by_a_click(self):
        page = self.ready()
        self.send(page, "think about it")
        self.assertEqual(page.value(f"{LAST}.querySelector('summary').textContent"), "Thought: 5 words")
        self.assertFalse(page.value(f"{LAST}.querySelector('details').open"))
        self.assertEqual(page.value(f"{LAST}.querySelector('.answer').textContent"), "Then I answer")
        page.value(f"{LAST}.querySelector('summary').click()")
        self.assertTrue(page.value(f"{LAST}.querySelector('.thought .markdown').checkVisibility()"))
        self.assertIn("First I weigh it up", page.value(f"{LAST}.querySelector('.thought').textContent"))

    def test_calls_of_tools_are_shown_and_take_results(self):
        page = self.ready()
        self.send(page, "tool weather")
        self.assertEqual(page.value(f"[...{LAST}.querySelectorAll('.call-name code')].map((e) => e.textContent)"), ["get_weather"] * 2)
        self.assertIn('"place": "Oslo",\n', page.value(f"{LAST}.querySelector('.call pre').textContent"))
        page.value(f"{LAST}.querySelector('.call textarea').focus()")
        page.type("cold")
        self.click(page, "Send the results")
        page.wait(f"{IDLE} && {LAST}.textContent.includes('It is')")
        roles = [m["role"] for m in self.fake.state["requests"][-1]["messages"]]
        self.assertEqual(roles, ["user", "assistant", "tool", "tool"])
        answered = self.fake.state["requests"][-1]["messages"][2]
        self.assertEqual((answered["tool_call_id"], answered["content"]), ("call_0", "cold"))

    def test_probabilities_by_mouse_and_by_keyboard(self):
        page = self.ready()
        page.value("document.getElementById('shade').click()")
        self.send(page, "plain")
        self.assertEqual(self.fake.state["requests"][-1]["top_logprobs"], 5)
        self.assertEqual(page.value(f"[...{LAST}.querySelectorAll('.token')].map((e) => e.textContent)"), ["Hello", " there,", " reader"])
        x, y = page.value(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({LAST}.querySelectorAll('.token')[1].getBoundingClientRect())")
        page.move_mouse(x, y)
        page.wait("!document.getElementById('tip').hidden")
        tip = page.value("document.getElementById('tip').textContent")
        for part in ("there,", "60.0 %", "other", "30.0 %"):
            self.assertIn(part, tip)
        page.move_mouse(2, 2)
        page.wait("document.getElementById('tip').hidden")
        page.value(f"{LAST}.querySelector('.tokens').focus()")
        page.press("End")
        self.assertIn("reader", page.value("document.querySelector('.tip-head').textContent"))
        page.press("ArrowLeft", 2)
        self.assertIn("Hello", page.value("document.querySelector('.tip-head').textContent"))
        page.press("Escape")
        self.assertTrue(page.value("document.getElementById('tip').hidden"))

    def test_attacks_stay_text(self):
        page = self.ready()
        before = page.value("document.title")
        self.send(page, "attack")
        self.send(page, "think " + ATTACK)
        self.send(page, "tool " + ATTACK)
        self.click(page, "New conversation")
        self.send(page, ATTACK)
        self.assertIn(ATTACK[:50], page.value("document.querySelector('#list [aria-current]').textContent"))
        for _ in range(2):
            time.sleep(0.2)
            self.assertEqual(page.value("document.title"), before)
            self.assertEqual(page.value("document.querySelectorAll('main img, main script, nav img, nav script, a[href^=javascript]').length"), 0)
            page.value("document.querySelector('#list li:last-child .open').click()")
        self.assertGreaterEqual(page.value("document.querySelector('.turns').textContent.split('onerror=').length"), 4)

    def test_markdown_becomes_nodes(self):
        page = self.ready()
        self.send(page, "markdown")
        answer = f"{LAST}.querySelector('.answer')"
        for selector in ("h3", "strong", "em", "p > code", "a[href='https://example.com/a_b'][rel~=noopener]", "ul > li ol > li", "table td.right", "figure pre code", "blockquote"):
            self.assertTrue(page.value(f"!!{answer}.querySelector({json.dumps(selector)})"), selector)
        self.assertEqual(page.value(f"{answer}.querySelector('figure code').textContent"), "print('hello')")
        self.assertEqual(page.value(f"{answer}.querySelector('figcaption').textContent"), "pythonCopy")

    def test_no_text_makes_anything_but_text_of_itself(self):
        page = self.ready()
        made = page.value(FUZZ)
        allowed = "a blockquote br button code del em figcaption figure h3 h4 h5 h6 hr input li ol p pre span strong table tbody td th thead tr ul div"
        self.assertEqual(set(made["tags"]) - set(allowed.split()), set())
        self.assertEqual(set(made["attributes"]) - set("aria-label checked class disabled href rel role start tabindex target title type".split()), set())
        self.assertEqual(set(made["schemes"]), {"http:", "https:"})
        for tag in ("strong", "em", "a", "table", "ol", "figure", "blockquote"):
            self.assertIn(tag, made["tags"], "the texts reach too little")

    def test_a_reload_keeps_conversations_and_settings(self):
        page = self.ready()
        self.send(page, "one message")
        self.click(page, "New conversation")
        self.send(page, "another one")
        page.value("(f => { f.value = '0.25'; f.dispatchEvent(new Event('input')); })(document.getElementById('set-temperature'))")
        page.call("Page.reload")
        time.sleep(0.3)
        page.wait("document.readyState === 'complete' && document.querySelectorAll('#list li').length === 2")
        self.assertEqual(page.value("document.querySelector('.said').textContent"), "another one")
        self.assertIn("Hello there, reader", page.value("document.querySelector('.turn.assistant').textContent"))
        self.send(page, "with settings")
        self.assertEqual(self.fake.state["requests"][-1]["temperature"], 0.25)

    def test_two_tabs_do_not_lose_what_the_other_wrote(self):
        first, second = self.ready(), self.ready()
        self.click(second, "New conversation")
        self.send(first, "from the first")
        self.click(second, "New conversation")
        self.send(second, "from the second")
        titles = "[...document.querySelectorAll('#list .open')].map((e) => e.textContent).sort()"
        for page in (first, second):
            page.wait(f"{titles}.filter((t) => t.startsWith('from')).length === 2")
        third = self.ready()
        self.assertEqual([t for t in third.value(titles) if t.startswith("from")], ["from the first", "from the second"])

    def test_edit_regenerate_and_continue(self):
        page = self.ready()
        self.send(page, "first")
        self.send(page, "second")
        self.click(page, "Edit", "document.querySelector('.turn.user')")
        page.value("document.activeElement.select()")
        page.type("changed")
        page.press("Enter")
        page.wait(IDLE)
        self.assertEqual(page.value("[...document.querySelectorAll('.said')].map((e) => e.textContent)"), ["changed"])
        self.assertEqual(self.fake.state["requests"][-1]["messages"], [{"role": "user", "content": "changed"}])
        self.click(page, "Regenerate")
        page.wait(IDLE)
        self.assertEqual(page.value("document.querySelectorAll('.turn.assistant').length"), 1)
        self.click(page, "Continue")
        page.wait(IDLE)
        self.assertEqual(page.value(f"{LAST}.querySelector('.answer').textContent"), "Hello there, reader and it goes on")
        self.assertEqual(self.fake.state["requests"][-1]["messages"][-1], {"role": "assistant", "content": "Hello there, reader"})
        page.value("document.getElementById('shade').click()")
        self.click(page, "Continue")  # a text of which only the end would have probabilities stays a text
        page.wait(f"{IDLE} && {LAST}.querySelector('.answer').textContent.endsWith('on and it goes on')")
        self.assertNotIn("logprobs", self.fake.state["requests"][-1])
        self.assertTrue(page.value(f"{LAST}.querySelector('.answer').checkVisibility()"))

    def test_conversations_are_renamed_exported_imported_and_deleted(self):
        page = self.ready()
        self.send(page, "keep me")
        self.click(page, "Rename")
        page.value("document.activeElement.select()")
        page.type("A <b>title</b>")
        page.press("Enter")
        self.assertEqual(page.value("document.querySelector('#list .open').textContent"), "A <b>title</b>")
        page.value("URL.createObjectURL = ((old) => (blob) => { blob.text().then((t) => { window.exported = t; }); return old.call(URL, blob); })(URL.createObjectURL)")
        page.call("Browser.setDownloadBehavior", behavior="deny", browserContextId=self.context)
        self.click(page, "Export all")
        page.wait("!!window.exported")
        self.click(page, "Delete")
        self.click(page, "Delete?")
        self.assertEqual(page.value("document.querySelectorAll('.turn').length"), 0)
        page.value("""(() => { const files = new DataTransfer(); files.items.add(new File([window.exported], 'x.json'));
          const field = document.getElementById('import'); field.files = files.files; field.dispatchEvent(new Event('change')); })()""")
        page.wait("[...document.querySelectorAll('#list .open')].some((e) => e.textContent === 'A <b>title</b>')")
        self.assertEqual(page.value("document.querySelectorAll('.turn').length"), 2)
        page.value("""(() => { const files = new DataTransfer(); files.items.add(new File(['{"conversations": 3'], 'x.json'));
          const field = document.getElementById('import'); field.files = files.files; field.dispatchEvent(new Event('change')); })()""")
        page.wait("document.getElementById('notice').textContent.includes('x.json cannot be imported')")

    def test_no_chat_template_is_said_and_the_other_tab_is_shown(self):
        page = self.ready()
        self.fake.state["chat"] = False  # a model list that is out of date: the refusal itself must do
        self.expected = ("400",)
        self.write(page, "hello")
        page.wait("!document.getElementById('raw').hidden")
        self.assertIn("has no chat template", page.value("document.querySelector('.note').textContent"))
        page.value("document.getElementById('raw-text').focus()")
        page.type("Once upon")
        self.click(page, "Go on")
        page.wait("document.getElementById('raw-text').value === 'Once upon and so it went on'")
        page.wait("document.getElementById('raw-go').textContent === 'Go on'")
        self.click(page, "Undo")
        self.assertEqual(page.value("document.getElementById('raw-text').value"), "Once upon")

    def test_an_error_is_shown_where_it_happened_and_can_be_tried_again(self):
        page = self.ready()
        self.fake.state["fail_once"] = True
        self.expected = ("503",)
        self.write(page, "hello")
        page.wait(f"!!{LAST}?.querySelector('.error')")
        self.assertEqual(page.value(f"{LAST}.querySelector('.error p').textContent"), "the server is busy <b>now</b>")
        self.assertEqual(page.value(f"{LAST}.querySelector('.error code').textContent"), "overloaded")
        page.wait(IDLE)
        self.click(page, "Try again")
        page.wait(f"{IDLE} && {LAST}.textContent.includes('Hello there, reader')")
        self.assertEqual(page.value("document.querySelectorAll('.error').length"), 0)
        self.assertEqual(page.value("document.querySelectorAll('.turn').length"), 2)

    def test_wrong_settings_are_said_before_anything_is_sent(self):
        page = self.ready(width=1400)
        self.click(page, "Chat", "document.querySelector('.tabs')")
        page.value("document.getElementById('open-settings').click()")
        self.assertEqual(page.value("['temperature', 'seed'].map((name) => document.getElementById(`set-${name}`).placeholder)"), ["0.7", "random"])
        page.value("(f => { f.value = 'warm'; f.dispatchEvent(new Event('input')); })(document.getElementById('set-temperature'))")
        page.value("(f => { f.value = '[{]'; f.dispatchEvent(new Event('input')); })(document.getElementById('set-tools'))")
        self.write(page, "hello")
        self.assertIn("Temperature: expected a number", page.value("document.querySelector('.composer-problem').textContent"))
        self.assertEqual(page.value("document.getElementById('prompt').value"), "hello")
        page.value("(f => { f.value = '0'; f.dispatchEvent(new Event('input')); })(document.getElementById('set-temperature'))")
        page.value("document.getElementById('send').click()")
        self.assertIn("Tools: this is not JSON", page.value("document.querySelector('.composer-problem').textContent"))
        self.assertEqual(self.fake.state["requests"], [])
        self.click(page, "Example", "document.getElementById('set-tools').closest('.field')")
        page.value("(f => { f.value = 'json_schema'; f.dispatchEvent(new Event('input')); })(document.getElementById('set-format'))")
        self.click(page, "Example", "document.getElementById('set-schema').closest('.field')")
        page.value("document.getElementById('send').click()")
        page.wait(f"{IDLE} && document.querySelectorAll('.turn').length === 2")
        body = self.fake.state["requests"][-1]
        self.assertEqual(body["temperature"], 0)
        self.assertEqual(body["tools"][0]["function"]["name"], "get_weather")
        self.assertEqual(body["response_format"]["json_schema"]["schema"]["type"], "object")

    def test_a_key_is_asked_for_and_kept_for_the_tab_only(self):
        self.fake.state["key"] = True
        self.expected = ("401",)
        page = self.open()
        page.wait("!!document.getElementById('key')")
        page.type("wrong")
        page.press("Enter")
        page.wait("document.getElementById('notice').textContent.includes('does not know this key')")
        page.type(KEY)
        page.press("Enter")
        page.wait("document.getElementById('model').textContent === 'tiny'")
        self.assertTrue(page.value("document.getElementById('notice').hidden"))
        self.send(page, "hello")
        self.assertIn("Hello there, reader", page.value(f"{LAST}.textContent"))
        self.assertFalse(page.value(f"JSON.stringify(localStorage).includes({json.dumps(KEY)})"))

    def test_the_live_view_asks_only_while_it_is_seen(self):
        page = self.ready(width=1400)
        asked = lambda: sum(url.endswith("/v1/kv") for url in page.requests())
        self.assertEqual(asked(), 0)
        page.value("document.getElementById('open-live').click()")
        page.wait("document.querySelectorAll('#live canvas.pages').length === 2 && document.querySelectorAll('.sequence').length === 2")
        label = page.value("document.querySelector('canvas.pages').getAttribute('aria-label')")
        self.assertEqual(label, "Pages of the pool sliding: 264 of one running text, 96 shared by several, 120 kept for prompts to come")
        page.wait("[...document.querySelectorAll('.fact')].some((e) => /^Server\\d+\\.\\d tokens/.test(e.textContent))")
        painted = page.value("(c => [...c.getContext('2d').getImageData(2, 2, 1, 1).data])(document.querySelector('canvas.pages'))")
        self.assertEqual(painted, [0xC2, 0x57, 0x0C, 255])
        page.value("document.getElementById('open-live').click()")
        page.value("new Promise((done) => setTimeout(done, 300))")
        before = asked()
        page.value("new Promise((done) => setTimeout(done, 1600))")
        self.assertEqual(asked(), before)
        self.assertGreaterEqual(before, 2)

    def test_the_view_follows_only_at_the_end(self):
        page = self.ready(height=600)
        self.write(page, "long")
        page.wait(f"{LAST}?.querySelectorAll('p').length === 60")
        end = "(s => s.scrollHeight - s.scrollTop - s.clientHeight)(document.querySelector('.scroller'))"
        page.wait(f"{end} < 2")
        page.value("document.querySelector('.scroller').scrollTop = 100")
        page.wait("!document.querySelector('.down').hidden")
        self.fake.state["hold"].set()
        page.wait(IDLE)
        self.assertEqual(page.value("document.querySelector('.scroller').scrollTop"), 100)
        self.click(page, "To the end")
        page.wait(f"{end} < 2")

    def test_keyboard_alone_is_enough(self):
        page = self.ready()
        for _ in range(40):
            if page.value("document.activeElement.id") == "prompt":
                break
            page.press("Tab")
        page.type("line one")
        page.press("Enter", shift=True)
        page.type("line two")
        page.press("Enter")
        page.wait(f"{IDLE} && document.querySelectorAll('.turn').length === 2")
        self.assertEqual(page.value("document.querySelector('.said').textContent"), "line one\nline two")
        page.value("document.getElementById('tab-chat').focus()")
        page.press("ArrowRight")
        self.assertEqual(page.value("[document.activeElement.id, document.getElementById('raw').hidden]"), ["tab-raw", False])
        page.press("ArrowLeft")
        reached = set()
        page.value("document.activeElement.blur()")
        for _ in range(40):
            page.press("Tab")
            reached.add(page.value("document.activeElement.textContent.trim() || document.activeElement.id"))
        for wanted in ("Skip to the text", "New conversation", "Rename", "Edit", "Regenerate", "Continue", "prompt", "Send", "open-settings", "open-live"):
            self.assertIn(wanted, reached)

    def test_every_width_has_no_sideways_scroll_and_every_scheme_enough_contrast(self):
        for width, scheme in ((360, "light"), (360, "dark"), (900, "light"), (900, "dark"), (1400, "light"), (1400, "dark")):
            with self.subTest(width=width, scheme=scheme):
                page = self.ready(width=width, height=740, scheme=scheme)
                for text in ("markdown", "think", "attack", "tool", "unsure"):
                    page.value(f"document.getElementById('shade').checked = {json.dumps(text == 'unsure')}")
                    self.send(page, text)
                self.assertFalse(page.value(WIDE))
                self.assertEqual(page.value(CONTRAST), [])
                for panel in ("settings", "live"):
                    page.value(f"document.getElementById('open-{panel}').click()")
                    page.value("new Promise((done) => setTimeout(done, 200))")
                    self.assertFalse(page.value(WIDE), panel)
                    self.assertEqual(page.value(CONTRAST.replace("body *", f"#{panel} *")), [], panel)
                    page.press("Escape")
                dark = page.value("getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 26)"
                self.assertEqual(dark, scheme == "dark")
                page.value("localStorage.clear()")
                page.close()

    def test_everything_that_can_be_pressed_has_a_name(self):
        page = self.ready(width=1400)
        self.send(page, "tool")
        page.value("document.getElementById('open-settings').click()")
        nameless = page.value("""[...document.querySelectorAll('button, input, select, textarea, canvas, [role=img]')].filter((e) => e.checkVisibility()
          && !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.[0]?.textContent.trim())).map((e) => e.outerHTML.slice(0, 80))""")
        self.assertEqual(nameless, [])
