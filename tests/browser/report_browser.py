#!/usr/bin/env python3
"""The page of `lapidary kv report` in a real Chromium: what it shows, and that it shows it to keyboards, phones and dark rooms.

    tests/browser/report_browser.py LAPIDARY MODEL [-v]     without a browser it fails; it never skips
"""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import made_report
from devtools import Browser

HOSTILE = "</script><script>document.title = 'broken'</script>\u2028 <b>a</b> &amp; {{js}} `x` ${1}"
OPENING = '<script type="application/json" id="data">'
READY = "document.documentElement.dataset.ready === 'yes'"
PANELS = ["calls", "map", "growth", "recompute", "roofline", "offload", "plan", "repro"]

# Text whose contrast to what lies behind it is less than WCAG's AA asks for: [[text, ratio], ...].
CONTRAST = """(() => {
  const parse = (c) => { const n = c.match(/[\\d.]+(?:e-?\\d+)?/g).map(Number); const unit = c.startsWith('color(') ? 255 : 1;
    return [n[0] * unit, n[1] * unit, n[2] * unit, n.length > 3 ? n[3] : 1]; };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3])).concat(1);
  const behind = (e) => { const chain = []; for (let p = e; p; p = p.parentElement) chain.unshift(parse(getComputedStyle(p).backgroundColor));
    return chain.reduce((under, top) => over(top, under), [255, 255, 255, 1]); };
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const bad = [];
  for (const e of document.querySelectorAll('body *')) {
    if (['SCRIPT', 'NOSCRIPT', 'STYLE'].includes(e.tagName) || !e.checkVisibility() || e.closest(':disabled')) continue;
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own) continue;
    const style = getComputedStyle(e), under = behind(e), svg = e instanceof SVGElement;
    const ink = over(parse(svg ? style.fill : style.color), under);
    const [a, b] = [light(ink), light(under)], ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) bad.push([e.textContent.slice(0, 30), Math.round(ratio * 100) / 100, e.className.baseVal ?? e.className]);
  }
  return bad;
})()"""

# What sticks out of the page to the right, but for what scrolls in a box of its own.
TOO_WIDE = """[...document.querySelectorAll('main *, header *, footer *')].filter((e) => e.checkVisibility() && !e.closest('.scroll, .tokens li, .prompt')
  && e.getBoundingClientRect().right > document.documentElement.clientWidth + 1).map((e) => e.tagName + '.' + (e.className.baseVal ?? e.className))"""


def grouped(n):
    return f"{n:,}"


def report_folder(folder, name, *more):
    """Runs the program; the folder that it wrote."""
    out = folder / name
    environment = {"HOME": str(folder), "PATH": os.environ["PATH"]}
    command = [PROGRAM, "kv", "report", MODEL, HOSTILE, "-n", "24", "--ignore-eos", "-o", str(out), *more]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment, cwd=folder)
    return out


def page_with(html, data):
    """The page with other data in it, escaped as the program does."""
    text = json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    start = html.index(OPENING) + len(OPENING)
    return html[:start] + text + html[html.index("</script>", start) :]


class ReportPage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        path = pathlib.Path(cls.folder.name)
        quick = ["--roofline-lengths", "8,16,32", "--roofline-steps", "2", "--curve", "4,16", "--probe-mb", "4"]
        full = report_folder(path, "full", *quick)
        cls.html = (full / "report.html").read_text(encoding="utf-8")
        cls.data = json.loads((full / "report.json").read_text(encoding="utf-8"))
        cls.full = (full / "report.html").as_uri()
        parts = [f"--no-{part}" for part in ("bytes", "plan", "recompute", "roofline", "offload")]
        cls.bare = (report_folder(path, "bare", *parts) / "report.html").as_uri()
        big = path / "big.html"
        big.write_text(page_with(cls.html, made_report.make(made_report.hybrid(60, 1024, 60), 4000, 96)), encoding="utf-8")
        cls.big = big.as_uri()
        cls.browser = cls.enterClassContext(Browser())

    def open(self, url, **how):
        page = self.browser.open(url, **how)
        self.addCleanup(page.close)
        page.wait(READY)
        page.wait("document.querySelectorAll('.chart svg').length > 0")
        return page

    def assert_quiet(self, page, url):
        self.assertEqual(page.complaints(), [])
        self.assertEqual([r for r in page.requests() if not r.startswith("data:")], [url])

    def assert_shows_call(self, page, call):
        trace = self.data["trace"]
        shown = page.value(
            """({before: document.querySelector('[data-value=before]').textContent, after: document.querySelector('[data-value=after]').textContent,
            title: document.getElementById('call-title').textContent, slider: Number(document.getElementById('call').value),
            fed: [...document.querySelectorAll('#fed li')].map((e) => e.title), computed: document.querySelectorAll('#cache .computed').length,
            reused: document.querySelectorAll('#cache .reused').length, picked: document.querySelector('#picked li')?.title})"""
        )
        self.assertEqual(shown["slider"], call["index"])
        self.assertEqual((shown["before"], shown["after"]), (grouped(call["before"]), grouped(call["after"])))
        self.assertIn(f"(+{grouped(call['kv_written_bytes'])} B)", shown["title"])
        self.assertEqual(shown["fed"], [f"position {call['first_position'] + i}, id {t['id']}" for i, t in enumerate(call["fed"])])
        self.assertLess(trace["summary"]["cached_positions"], 120)  # so that every token has its chip
        self.assertEqual((shown["computed"], shown["reused"]), (call["after"] - call["before"], call["before"]))
        self.assertEqual(shown["picked"], f"id {call['picked']['id']}")

    def test_the_slider_moves_and_shows_the_numbers_of_the_json(self):
        page = self.open(self.full)
        calls = self.data["trace"]["calls"]
        self.assertEqual(len(calls), 25)
        self.assert_shows_call(page, calls[-1])
        page.value("document.getElementById('call').focus()")
        page.press("Home")
        for call in calls:
            self.assert_shows_call(page, call)
            page.press("ArrowRight")
        page.press("ArrowLeft", times=3)
        self.assert_shows_call(page, calls[-4])
        page.value("document.getElementById('back').focus()")  # elsewhere in the panel the arrow keys do the same
        page.press("ArrowLeft")
        self.assert_shows_call(page, calls[-5])
        page.press("Enter")
        self.assert_shows_call(page, calls[-6])
        self.assert_quiet(page, self.full)

    def test_play_runs_to_the_end_and_pauses(self):
        page = self.open(self.full)
        page.value("document.getElementById('play').focus()")
        page.press("Enter")
        self.assertEqual(page.value("document.getElementById('play').textContent"), "Pause")
        page.wait("Number(document.getElementById('call').value) === 2")
        page.press("Enter")
        self.assertEqual(page.value("document.getElementById('play').textContent"), "Play")
        self.assert_shows_call(page, self.data["trace"]["calls"][2])

    def test_the_map_answers_to_keys_and_mouse(self):
        page = self.open(self.full)
        trace = self.data["trace"]
        layers = [layer for layer in trace["layers"] if layer["role"] != "none"]
        page.value("document.querySelector('#map [role=application]').focus()")
        readout = "document.querySelector('#map .readout').textContent"
        page.press("Home")
        page.press("End")
        last = trace["summary"]["cached_positions"] - 1
        for layer in layers:
            text = page.value(readout)
            self.assertIn(f"Layer {layer['layer']}, position {last}", text)
            owner = layers[layer["owner"]]
            stored = next(p for p in trace["pages"] if p["layer"] == layer["owner"] and p["first"] <= last < p["first"] + p["positions"])
            self.assertIn(f"{grouped(owner['position_bytes'])} B", text)
            self.assertIn(f"+{grouped(stored['pool_offset'])},", text)
            self.assertIn(stored["xxh3"], text)
            self.assertIn("borrow" if layer["role"] == "borrower" else "computed in this call", text.replace("from the owner", "borrow"))
            page.press("ArrowDown")
        self.assertTrue(any(layer["role"] == "borrower" for layer in layers))
        page.press("PageUp", times=12)  # to the first position, which a window has let go
        sliding = next(i for i, layer in enumerate(layers) if layer["window"] and layer["role"] == "owner")
        page.press("ArrowUp", times=len(layers))
        page.press("ArrowDown", times=sliding)
        self.assertIn("out of the window", page.value(readout))
        middle = (last + 1) // 2
        expected = f"Layer {layers[-1]['layer']}, position {middle}"
        for _ in range(100):  # the page scrolls smoothly: the map may still be on its way
            page.value("document.querySelector('#map canvas').scrollIntoView({block: 'center', behavior: 'instant'})")
            box = "(r => [r.x, r.y, r.width, r.height])(document.querySelector('#map canvas').getBoundingClientRect())"
            x, y, width, height = page.value(box)
            page.move_mouse(x + width * (middle + 0.5) / (last + 1), y + height - 2)
            if page.value(readout).startswith(expected):
                break
            time.sleep(0.05)
        self.assertIn(expected, page.value(readout))
        self.assert_quiet(page, self.full)

    def test_the_difference_map_and_the_gaps_say_what_the_json_says(self):
        page = self.open(self.full)
        runs = self.data["recompute"]["runs"]
        choices = [again for run in runs for again in run["recomputations"]]
        names = page.value("[...document.querySelectorAll('#recompute [role=radiogroup]')].map((g) => g.getAttribute('aria-label'))")
        self.assertIn("Recomputation", names)
        page.value("document.querySelector('#recompute [role=radio]').focus()")
        page.press("Home")
        for again in choices:
            share = again["kv"]["equal_percent"]
            shown = page.value("document.querySelector('#recompute [data-value=equal-percent]').textContent")
            self.assertEqual(shown, f"{math.floor(share * 10 + 1e-6) / 10:.1f}\u00a0%")
            page.press("ArrowRight")
        generated = runs[0]["generated"]
        page.value("document.querySelector('#recompute .chart[role=application]').focus()")
        page.press("Home")
        for token in generated[:5]:
            self.assertIn(
                f"Token {token['index']} ", page.value("[...document.querySelectorAll('#recompute .readout')].at(-1).textContent")
            )
            self.assertIn(
                f"{grouped(token['gap_ulps'])} ulp", page.value("[...document.querySelectorAll('#recompute .readout')].at(-1).textContent")
            )
            page.press("ArrowRight")

    def test_every_panel_has_its_text_equivalent(self):
        page = self.open(self.full)
        self.assertEqual(page.value("[...document.querySelectorAll('section.panel')].map((s) => s.id)"), PANELS)
        for panel in PANELS:
            at = f"document.getElementById('{panel}')"
            self.assertGreater(page.value(f"{at}.querySelectorAll('details.equivalent').length"), 0, panel)
            self.assertEqual(page.value(f"{at}.querySelector('h2').id"), page.value(f"{at}.getAttribute('aria-labelledby')"))
        page.value("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        page.wait("[...document.querySelectorAll('details.equivalent')].every((d) => d.querySelectorAll('tbody tr').length > 0)")
        unnamed = """[...document.querySelectorAll('svg[role=img], [role=application], [role=radiogroup], [role=region], input, button')]
          .filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim())).length"""
        self.assertEqual(page.value(unnamed), 0)
        self.assertEqual(
            page.value(
                "[...document.querySelectorAll('svg')].filter((e) => !e.hasAttribute('role') && !e.hasAttribute('aria-hidden')).length"
            ),
            0,
        )
        rows = page.value(
            "[...document.querySelectorAll('#calls details tbody tr')].map((r) => [...r.cells].slice(0, 8).map((c) => c.textContent))"
        )
        fields = ("before", "after", "kv_written_bytes", "kv_read_bytes", "weights_read_bytes")
        expected = [
            [grouped(c["index"]), c["kind"], grouped(len(c["fed"])), *(grouped(c[f]) for f in fields)] for c in self.data["trace"]["calls"]
        ]
        self.assertEqual(rows, expected)
        self.assert_quiet(page, self.full)

    def test_numbers_of_the_other_panels_equal_the_json(self):
        page = self.open(self.full)
        page.value("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        page.wait("[...document.querySelectorAll('details.equivalent')].every((d) => d.querySelectorAll('tbody tr').length > 0)")
        tables = page.value(
            "Object.fromEntries([...document.querySelectorAll('table')].map((t) => [t.caption.textContent, [...t.tBodies[0].rows].map((r) => [...r.cells].map((c) => c.textContent))]))"
        )
        keys = ("needed_bytes", "page_rounding_bytes", "stored_bytes", "allocated_bytes", "touched_bytes")
        minus = lambda n: grouped(n).replace("-", "\u2212")
        self.assertEqual(
            [row[2:7] for row in tables["Bytes at each length"]], [[minus(line[k]) for k in keys] for line in self.data["bytes"]["lengths"]]
        )
        views = self.data["plan"]["lengths"]
        self.assertEqual(
            [row[:3] for row in tables["Bytes at each length, exact"]],
            [[grouped(v["length"]), grouped(v["read_bytes"]), grouped(v["needed_bytes"])] for v in views],
        )
        self.assertEqual(
            [row[1:3] for row in tables["Ways of keeping the state"]],
            [[grouped(t["stored_bytes"]), grouped(t["kv_bytes_restored"])] for t in self.data["offload"]["tiers"]],
        )
        lengths = [line for run in self.data["roofline"]["runs"][:1] for line in run["lengths"]]
        shown = next(rows for caption, rows in tables.items() if caption.startswith("Decode calls, "))
        self.assertEqual([row[0] for row in shown], [grouped(line["length"]) for line in lengths])
        self.assertEqual([row[1] for row in shown], [grouped(round(line["kv_bytes_per_step"])) for line in lengths])
        pages = tables["Pages at the end of the run"]
        self.assertEqual([row[-1] for row in pages], [p["xxh3"] for p in self.data["trace"]["pages"]])

    def test_the_checks_are_those_of_the_json(self):
        page = self.open(self.full)
        checks = self.data["checks"]
        self.assertGreater(len(checks), 20)
        page.value("document.querySelector('#repro details').open = true")
        page.wait("document.querySelectorAll('#repro tbody tr').length > 0")
        rows = page.value("[...document.querySelectorAll('#repro tbody tr')].map((r) => r.cells[1].textContent)")
        self.assertEqual(rows, ["passed" if check["passed"] else "failed" for check in checks])
        self.assertIn(f"{len(checks)} passed", page.value("document.querySelector('#top .facts').textContent"))

    def test_a_hostile_prompt_is_text(self):
        page = self.open(self.full)
        self.assertNotEqual(page.value("document.title"), "broken")
        self.assertEqual(page.value("document.scripts.length"), 2)
        self.assertEqual(page.value("document.querySelectorAll('main b b, .prompt b').length"), 0)
        self.assertIn("</script><script>document.title", page.value("document.querySelector('.prompt').textContent"))

    def test_a_phone_in_the_dark_can_read_it(self):
        page = self.open(self.full, width=360, height=740, scheme="dark")
        page.value("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        page.wait("[...document.querySelectorAll('details.equivalent')].every((d) => d.querySelectorAll('tbody tr').length > 0)")
        self.assertEqual(page.value("document.documentElement.scrollWidth"), 360)
        self.assertEqual(page.value(TOO_WIDE), [])
        self.assertEqual(page.value(CONTRAST), [])
        dark = page.value("getComputedStyle(document.body).backgroundColor")
        page.set_scheme("light")
        self.assertNotEqual(page.value("getComputedStyle(document.body).backgroundColor"), dark)
        self.assertEqual(page.value(CONTRAST), [])
        small = """[...document.querySelectorAll('button, input')].filter((e) => e.checkVisibility() && Math.min(e.offsetWidth, e.offsetHeight) < 24).length"""
        self.assertEqual(page.value(small), 0)
        self.assert_quiet(page, self.full)

    def test_the_tab_key_reaches_everything_and_shows_where_it_is(self):
        page = self.open(self.full)
        seen = []
        for _ in range(120):
            page.press("Tab")
            name, outline = page.value(
                "[document.activeElement.id || document.activeElement.className || document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle]"
            )
            if name == "BODY":
                break
            self.assertEqual(outline, "solid", name)
            seen.append(name)
        for wanted in ("skip", "back", "call", "play", "canvas", "chart"):
            self.assertTrue(any(wanted in name.split() for name in seen), f"{wanted} in {seen}")

    def test_parts_left_out_say_so(self):
        page = self.open(self.bare)
        self.assertEqual(page.value("[...document.querySelectorAll('section.panel')].map((s) => s.id)"), PANELS)
        for panel in ("recompute", "roofline", "offload", "plan"):
            self.assertIn(f"--no-{panel} left it out", page.value(f"document.querySelector('#{panel} .missing').textContent"))
        self.assertIn("--no-bytes left it out", page.value("document.querySelector('#growth .missing').textContent"))
        self.assertGreater(page.value("document.querySelectorAll('#recompute .chart rect').length"), 0)  # gaps are in the trace
        self.assert_quiet(page, self.bare)

    def test_sixty_layers_and_four_thousand_positions_stay_usable(self):
        page = self.open(self.big, width=360, height=740, scheme="dark")
        self.assertEqual(page.value("document.documentElement.scrollWidth"), 360)
        page.value("document.getElementById('call').focus()")
        start = time.monotonic()
        page.press("ArrowLeft", times=10)
        page.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        self.assertLess(time.monotonic() - start, 10)  # a second a step would not be usable; a tenth is usual
        page.value("document.querySelector('#map [role=application]').focus()")
        page.press("End")
        self.assertIn("position 4095", page.value("document.querySelector('#map .readout').textContent"))
        self.assertLess(page.value("document.querySelectorAll('*').length"), 6000)  # cells are pixels, not elements
        self.assert_quiet(page, self.big)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    PROGRAM, MODEL = (str(pathlib.Path(argument).resolve()) for argument in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
