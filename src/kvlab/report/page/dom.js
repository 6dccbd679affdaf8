// What all panels share: elements, numbers in words, tables, tabs.

const data = JSON.parse(document.getElementById("data").textContent);

// el("p", {class: "note", onclick: f}, "text", child, ...). Text is always text: nothing from a model or a prompt is ever markup.
function el(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}
function svg(name, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}
function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "style") node.style.cssText = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== undefined && child !== null && child !== false) node.append(child);
  }
  return node;
}
function replace(node, ...children) {
  node.replaceChildren(
    ...children.flat(Infinity).filter((c) => c !== undefined && c !== null && c !== false),
  );
}

// Numbers. Exact integers with commas; bytes in powers of 1024, always with the unit.
const MINUS = "\u2212";
const exact = (n) =>
  n === null || n === undefined ? "–" : Math.round(n).toLocaleString("en-US").replace("-", MINUS);
function digits(n, significant = 3) {
  if (n === null || n === undefined || !Number.isFinite(n)) return "–";
  if (n === 0) return "0";
  const size = Math.abs(n);
  if (size >= 1e15 || size < 1e-4) return n.toExponential(Math.max(0, significant - 1)).replace("-", MINUS);
  const places = Math.max(0, significant - 1 - Math.floor(Math.log10(size)));
  return n
    .toLocaleString("en-US", {maximumFractionDigits: places, minimumFractionDigits: 0})
    .replace("-", MINUS);
}
function scaled(n, base, units, significant) {
  if (n === null || n === undefined || !Number.isFinite(n)) return "–";
  let unit = 0;
  while (Math.abs(n) >= base && unit + 1 < units.length) {
    n /= base;
    ++unit;
  }
  return `${digits(n, significant)} ${units[unit]}`;
}
const bytes = (n) => scaled(n, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 4);
const exactBytes = (n) => `${exact(n)} B`;
const both = (n) => (Math.abs(n) < 1024 ? exactBytes(n) : `${bytes(n)} (${exactBytes(n)})`);
const rate = (n) => scaled(n, 1000, ["B/s", "kB/s", "MB/s", "GB/s", "TB/s"], 3);
function seconds(s) {
  if (s === null || s === undefined) return "–";
  const size = Math.abs(s);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${digits(s * 1e6)} µs`;
  if (size < 1) return `${digits(s * 1e3)} ms`;
  return `${digits(s)} s`;
}
// Cut to one decimal, not rounded: 100.0 is for what is wholly equal.
const percent = (p) =>
  p === null || p === undefined ? "–" : `${(Math.floor(p * 10 + 1e-6) / 10).toFixed(1)}\u00a0%`;
const plural = (n, one, many = `${one}s`) => `${exact(n)} ${n === 1 ? one : many}`;
const times = (f) => (f === null || f === undefined ? "–" : `${f < 10 ? f.toFixed(2) : digits(f)}×`);

// A token as text: spaces and control characters visible.
function visible(piece) {
  return piece
    .replace(/\n/g, "⏎")
    .replace(/\t/g, "⇥")
    .replace(/ /g, "·")
    .replace(
      /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g,
      (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`,
    );
}
const tokenText = (token) => (token.piece ? visible(token.piece) : `#${token.id}`);
const tokenName = (token) =>
  token.piece ? `${JSON.stringify(token.piece)} (${token.id})` : `token ${token.id}`;

// [0, 1, 2, 5] → "0–2, 5"
function ranges(numbers) {
  const parts = [];
  for (let i = 0; i < numbers.length; ) {
    let j = i;
    while (j + 1 < numbers.length && numbers[j + 1] === numbers[j] + 1) ++j;
    parts.push(j === i ? `${numbers[i]}` : `${numbers[i]}–${numbers[j]}`);
    i = j + 1;
  }
  return parts.join(", ");
}

// A table: columns are [heading, "text" | "wrap" | undefined]; a cell is text or an element.
function table(caption, columns, rows, total) {
  const cell = (value, c, name = "td") =>
    el(name, {class: columns[c][1], scope: name === "th" ? "row" : undefined}, value);
  const line = (row, attributes) =>
    el(
      "tr",
      attributes,
      row.map((v, c) => cell(v, c, c === 0 ? "th" : "td")),
    );
  return el(
    "div",
    {class: "scroll", tabindex: 0, role: "region", "aria-label": caption},
    el(
      "table",
      null,
      el("caption", null, el("span", null, caption)),
      el(
        "thead",
        null,
        el(
          "tr",
          null,
          columns.map(([heading, kind]) => el("th", {scope: "col", class: kind && "text"}, heading)),
        ),
      ),
      el(
        "tbody",
        null,
        rows.map((row) => line(row)),
        total && line(total, {class: "total"}),
      ),
    ),
  );
}
// The text equivalent of a chart, made when it is first opened: some have thousands of rows.
function asTable(summary, make) {
  const details = el("details", {class: "equivalent"}, el("summary", null, summary));
  details.addEventListener("toggle", () => {
    if (details.open && !details.dataset.made) {
      details.dataset.made = "yes";
      details.append(make());
    }
  });
  return details;
}
function legend(items) {
  return el(
    "ul",
    {class: "legend"},
    items.map(([style, text]) =>
      el(
        "li",
        null,
        el("i", {
          class: style.startsWith("bar ") ? "bar" : style.startsWith("scale ") ? "scale" : undefined,
          style: style.replace(/^(bar|scale) /, ""),
        }),
        text,
      ),
    ),
  );
}
function verdict(text, good) {
  return el("p", {class: `verdict ${good === undefined ? "" : good ? "good" : "bad"}`}, text);
}
function checksTable(caption, checks) {
  return table(
    caption,
    [
      ["Check", "text"],
      ["Result", "text"],
      ["Detail", "wrap"],
    ],
    checks.map((c) => [
      c.name,
      el("span", {class: c.passed ? "good-text" : "bad-text"}, c.passed ? "passed" : "failed"),
      c.detail || c.failure || "",
    ]),
  );
}

// Tabs over one drawing: names → onchange(index). One stop for the tab key; arrow keys choose.
function tabs(label, names, onchange) {
  let chosen = 0;
  const buttons = names.map((name, i) =>
    el("button", {type: "button", role: "radio", onclick: () => choose(i)}, name),
  );
  function choose(i, focus) {
    chosen = i;
    buttons.forEach((b, k) => {
      b.setAttribute("aria-checked", k === i);
      b.tabIndex = k === i ? 0 : -1;
    });
    if (focus) buttons[i].focus();
    onchange(i);
  }
  const list = el(
    "div",
    {
      class: "tabs",
      role: "radiogroup",
      "aria-label": label,
      onkeydown: (event) => {
        const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
        const to =
          event.key === "Home"
            ? 0
            : event.key === "End"
              ? names.length - 1
              : step && (chosen + step + names.length) % names.length;
        if (to === undefined) return;
        event.preventDefault();
        choose(to, true);
      },
    },
    buttons,
  );
  list.choose = choose;
  return list;
}

// Redraws when the width or the colour scheme changes; draw(width) makes the contents.
function drawn(node, draw) {
  let width = 0;
  const again = () => {
    if (width > 0) draw(width);
  };
  new ResizeObserver((entries) => {
    const now = Math.floor(entries[0].contentRect.width);
    if (now > 0 && now !== width) {
      width = now;
      again();
    }
  }).observe(node);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
  return again;
}
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// Panels register themselves; page.js shows them in this order.
const panels = [];
function panel(id, title, about, build) {
  panels.push({id, title, about, build});
}
function missing(what, how) {
  return el("p", {class: "missing"}, `${what} is not part of this report${how ? `: ${how}` : ""}.`);
}
