// Markdown to nodes: headings, paragraphs, lists, quotes, fenced code, tables, rules; emphasis, code, links.
// Nodes are built one by one and text enters as text, so that nothing in it can become markup. Pictures and
// HTML are shown as what they are: text.
import { button, copy, element } from "./dom.js";

const FENCE = /^( {0,3})(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])(\s+)(.*)$/;
const QUOTE = /^ {0,3}> ?/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const DEPTH = 8; // of lists and quotes in one another; deeper ones are text

const blank = (line) => line.trim() === "";
const isTable = (lines, at) =>
  lines[at].includes("|") && at + 1 < lines.length && lines[at + 1].includes("-") && TABLE_RULE.test(lines[at + 1]);
const begins = (lines, at) =>
  FENCE.test(lines[at]) || HEADING.test(lines[at]) || RULE.test(lines[at]) || QUOTE.test(lines[at]) || isTable(lines, at);

// Where the block that begins at `at` ends, and what it is.
function blockAt(lines, at) {
  const line = lines[at];
  let end = at + 1;
  const fence = FENCE.exec(line);
  if (fence) {
    const close = new RegExp(`^ {0,3}${fence[2][0]}{${fence[2].length},}\\s*$`);
    while (end < lines.length && !close.test(lines[end])) end += 1;
    return { kind: "code", end: Math.min(end + 1, lines.length) };
  }
  if (HEADING.test(line)) return { kind: "heading", end };
  if (RULE.test(line)) return { kind: "rule", end };
  if (QUOTE.test(line)) {
    while (end < lines.length && QUOTE.test(lines[end])) end += 1;
    return { kind: "quote", end };
  }
  if (isTable(lines, at)) {
    end += 1;
    while (end < lines.length && lines[end].includes("|") && !blank(lines[end])) end += 1;
    return { kind: "table", end };
  }
  if (ITEM.test(line)) {
    while (end < lines.length) {
      const more = ITEM.test(lines[end]) || /^\s{2,}\S/.test(lines[end]) || (!blank(lines[end]) && !begins(lines, end));
      const gap = blank(lines[end]) && end + 1 < lines.length && (ITEM.test(lines[end + 1]) || /^\s{2,}\S/.test(lines[end + 1]));
      if (!more && !gap) break;
      if (more && blank(lines[end - 1]) && !ITEM.test(lines[end]) && !/^\s{2,}\S/.test(lines[end])) break;
      end += 1;
    }
    return { kind: "list", end };
  }
  while (end < lines.length && !blank(lines[end]) && !begins(lines, end) && !ITEM.test(lines[end])) end += 1;
  return { kind: "paragraph", end };
}

// [{kind, source}]: what stays the same between two calls need not be drawn again.
export function blocks(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const out = [];
  for (let at = 0; at < lines.length; ) {
    if (blank(lines[at])) {
      at += 1;
      continue;
    }
    const { kind, end } = blockAt(lines, at);
    out.push({ kind, source: lines.slice(at, end).join("\n") });
    at = end;
  }
  return out;
}

const cells = (line) =>
  line
    .trim()
    .replace(/^\||(?<!\\)\|$/g, "")
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim().replaceAll("\\|", "|"));

function table(source) {
  const [head, rule, ...rows] = source.split("\n");
  const sides = cells(rule).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "middle" : "right") : ""));
  const names = cells(head);
  const row = (line, tag) => {
    const found = cells(line);
    return element("tr", {}, names.map((_, i) => element(tag, { class: sides[i] || undefined }, inline(found[i] ?? ""))));
  };
  return element(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" },
    element("table", {}, element("thead", {}, row(head, "th")), element("tbody", {}, rows.map((line) => row(line, "td")))),
  );
}

function code(source) {
  const lines = source.split("\n");
  const [, indent, fence, language] = FENCE.exec(lines[0]);
  const closed = lines.length > 1 && new RegExp(`^ {0,3}${fence[0]}{${fence.length},}\\s*$`).test(lines.at(-1));
  const body = lines.slice(1, closed ? -1 : undefined).map((line) => (line.startsWith(indent) ? line.slice(indent.length) : line));
  const text = body.join("\n");
  return element(
    "figure",
    { class: "code" },
    element(
      "figcaption",
      {},
      element("span", { text: language.trim().split(/\s/)[0] || "text" }),
      button("Copy", (event) => copy(text, event.currentTarget), { class: "small" }),
    ),
    element("pre", { tabindex: "0", class: "scroll" }, element("code", { text })),
  );
}

function list(source, depth) {
  const lines = source.split("\n");
  const first = ITEM.exec(lines[0]);
  const numbered = /\d/.test(first[2]);
  const items = [];
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && item[1].length <= first[1].length + 1) {
      items.push({ width: item[1].length + item[2].length + Math.min(item[3].length, 4), lines: [item[4]] });
    } else {
      const { width, lines: of } = items.at(-1);
      const spaces = /^\s*/.exec(line)[0].length;
      of.push(line.slice(Math.min(spaces, width)));
    }
  }
  const loose = lines.some(blank);
  const body = (item) => {
    const task = /^\[([ xX])\]\s+(.*)$/.exec(item.lines[0]);
    if (task) item.lines[0] = task[2];
    const nodes = render(item.lines.join("\n"), depth + 1);
    const inner = nodes.flatMap((node) => (node.tagName === "P" && !loose ? [...node.childNodes] : [node]));
    const box = task && element("input", { type: "checkbox", disabled: true, checked: task[1] !== " ", "aria-label": "Done" });
    return element("li", { class: task ? "task" : undefined }, box, inner);
  };
  const start = numbered ? parseInt(first[2], 10) : 1;
  return element(numbered ? "ol" : "ul", { start: numbered && start !== 1 ? start : undefined }, items.map(body));
}

const shortened = (href) => {
  try {
    const url = new URL(href);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
};

function link(label, href) {
  const safe = shortened(href);
  if (!safe) return null;
  return element("a", { href: safe, rel: "noopener noreferrer nofollow", target: "_blank", title: safe }, label);
}

// Each rule: an expression that is tried at the text's next interesting place, and what to make of it.
const RULES = [
  [/^\\([\\`*_{}[\]()#+\-.!|~<>$])/, (m) => m[1]],
  [/^(`+)(?!`)([\s\S]*?[^`])\1(?!`)/, (m) => element("code", { text: m[2].replace(/^ (.*) $/, "$1") })],
  [/^!?\[((?:[^[\]\\]|\\.){0,500})\]\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+"[^"]*")?\s*\)/,
    (m, depth) => link(m[0][0] === "!" ? [m[1] || m[2]] : inline(m[1], depth + 1), m[2])],
  [/^<(https?:\/\/[^\s<>]+)>/, (m) => link([m[1]], m[1])],
  [/^https?:\/\/[^\s<>"'`]*[^\s<>"'`.,;:!?)\]}*_]/, (m) => link([m[0]], m[0])],
  [/^\*\*\*(?=\S)([\s\S]*?\S)\*\*\*/, (m, d) => element("strong", {}, element("em", {}, inline(m[1], d + 1)))],
  [/^(\*\*)(?=\S)([\s\S]*?\S)\1(?!\*)/, (m, d) => element("strong", {}, inline(m[2], d + 1))],
  [/^(__)(?=\S)([\s\S]*?\S)\1(?![\w])/, (m, d) => element("strong", {}, inline(m[2], d + 1))],
  [/^\*(?=[^\s*])((?:[^*]|\*\*[^*]*\*\*)*?[^\s*]|[^\s*])\*(?!\*)/, (m, d) => element("em", {}, inline(m[1], d + 1))],
  [/^_(?=[^\s_])([^_]*[^\s_]|[^\s_])_(?![\w])/, (m, d) => element("em", {}, inline(m[1], d + 1))],
  [/^~~(?=\S)([\s\S]*?\S)~~/, (m, d) => element("del", {}, inline(m[1], d + 1))],
];
const INTERESTING = /[\\`!*_~<[]|https?:/g;
const REACH = 2000; // characters that one emphasis or code may span: bounds the work on hostile texts

function inline(text, depth = 0) {
  const out = [];
  let plain = "";
  const flush = () => {
    plain.split("\n").forEach((line, i, all) => {
      const hard = i + 1 < all.length && line.endsWith("  ");
      out.push(hard ? line.trimEnd() : line);
      if (i + 1 < all.length) out.push(hard ? element("br") : "\n");
    });
    plain = "";
  };
  for (let at = 0; at < text.length; ) {
    INTERESTING.lastIndex = at;
    const next = depth < DEPTH ? INTERESTING.exec(text) : null;
    if (!next) {
      plain += text.slice(at);
      break;
    }
    plain += text.slice(at, next.index);
    at = next.index;
    const word = text[at] === "_" && /\w/.test(text[at - 1] ?? ""); // snake_case is no emphasis
    const ahead = text.slice(at, at + REACH);
    let taken = null;
    for (const [expression, make] of word ? [] : RULES) {
      const match = expression.exec(ahead);
      const node = match && make(match, depth);
      if (node !== null && node !== undefined && node !== false) {
        taken = { node, length: match[0].length };
        break;
      }
    }
    if (!taken) {
      const run = /^([*_~`])\1*/.exec(ahead); // markers that open nothing, all at once
      plain += run ? run[0] : text[at];
      at += run ? run[0].length : 1;
    } else {
      if (typeof taken.node === "string") plain += taken.node;
      else {
        flush();
        out.push(taken.node);
      }
      at += taken.length;
    }
  }
  flush();
  return out.filter((part) => part !== "");
}

export function renderBlock({ kind, source }, depth = 0) {
  if (kind === "code") return code(source);
  if (kind === "heading") {
    const [, marks, text] = HEADING.exec(source);
    return element(`h${Math.min(marks.length + 2, 6)}`, {}, inline(text)); // the page has the first two levels
  }
  if (kind === "rule") return element("hr");
  if (kind === "table") return table(source);
  if (kind === "quote" && depth < DEPTH) {
    const inner = source.split("\n").map((line) => line.replace(QUOTE, ""));
    return element("blockquote", {}, render(inner.join("\n"), depth + 1));
  }
  if (kind === "list" && depth < DEPTH) return list(source, depth);
  return element("p", {}, inline(source));
}

export function render(text, depth = 0) {
  return blocks(text).map((block) => renderBlock(block, depth));
}

// Makes `parent` show `text`, leaving alone the blocks that it shows already.
export function update(parent, text) {
  const wanted = blocks(text);
  const had = parent.blocks ?? [];
  let same = 0;
  while (same < had.length && same < wanted.length && had[same].source === wanted[same].source && had[same].kind === wanted[same].kind) same += 1;
  while (parent.childNodes.length > same) parent.lastChild.remove();
  parent.append(...wanted.slice(same).map((block) => renderBlock(block)));
  parent.blocks = wanted;
}
