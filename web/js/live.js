// What the server does now: pages of the KV cache, texts that run, the prefix cache, how fast texts come.
// Asks once a second, while it can be seen.
import { get } from "./api.js";
import { button, bytes, byId, element, number, seconds } from "./dom.js";
import { pace } from "./run.js";

const EVERY = 1000; // ms
const CELL = 7; // pixels of a page on the map, its gap included
const MOST_CELLS = 1200; // of a pool; more pages share a cell
const HISTORY = 60;

const KINDS = [
  ["own", "of one running text"],
  ["shared", "shared by several"],
  ["cached", "kept for prompts to come"],
];

const fact = (name, value) => element("div", { class: "fact" }, element("dt", { text: name }), element("dd", { text: value }));

function mapOf(pool, canvas) {
  const cached = pool.pages_cached;
  const shared = Math.min(pool.pages_shared, pool.pages_in_use - cached);
  const counts = { own: pool.pages_in_use - shared - cached, shared, cached };
  const per = Math.max(1, Math.ceil(pool.pages_in_use / MOST_CELLS));
  const style = getComputedStyle(canvas);
  const width = Math.max(canvas.parentElement.clientWidth, 7 * CELL);
  const across = Math.floor(width / CELL);
  const cells = KINDS.flatMap(([kind]) => Array(Math.ceil(counts[kind] / per)).fill(kind));
  const rows = Math.max(3, Math.ceil(cells.length / across));
  const scale = window.devicePixelRatio || 1;
  canvas.width = across * CELL * scale;
  canvas.height = rows * CELL * scale;
  canvas.style.width = `${across * CELL}px`;
  canvas.style.height = `${rows * CELL}px`;
  const draw = canvas.getContext("2d");
  draw.scale(scale, scale);
  for (let i = 0; i < across * rows; i += 1) {
    draw.fillStyle = style.getPropertyValue(i < cells.length ? `--page-${cells[i]}` : "--page-none");
    draw.fillRect((i % across) * CELL, Math.floor(i / across) * CELL, CELL - 1, CELL - 1);
  }
  const words = KINDS.map(([kind, what]) => `${number(counts[kind])} ${what}`).join(", ");
  canvas.setAttribute("aria-label", `Pages of the pool ${pool.name}: ${words}`);
  return per;
}

// A bar of parts: [[class, share of the whole, title]].
function bar(parts, label) {
  return element("div", { class: "meter", role: "img", "aria-label": label, title: label },
    parts.map(([kind, share]) => {
      const part = element("span", { class: kind });
      part.style.flexBasis = `${(100 * Math.max(0, Math.min(1, share))).toFixed(2)}%`;
      return part;
    }));
}

export class Live {
  constructor({ onproblem }) {
    this.onproblem = onproblem;
    this.pools = new Map(); // name -> {box, canvas, note}
    this.rates = [];
    this.before = null;
    this.timer = null;
    this.build();
    document.addEventListener("visibilitychange", () => this.wake());
  }
  build() {
    this.now = element("dl", { class: "facts-grid" });
    this.chart = element("canvas", { class: "rate", role: "img", "aria-label": "Tokens per second" });
    this.room = element("div");
    this.maps = element("div");
    this.legend = element("ul", { class: "legend" }, KINDS.map(([kind, what]) => element("li", {}, element("span", { class: `swatch ${kind}` }), what)));
    this.texts = element("div");
    this.cache = element("div");
    this.problem = element("p", { class: "problem", role: "status" });
    byId("live").replaceChildren(
      element("header", { class: "side-head" }, element("h2", { text: "Live" }), button("Close", () => this.onclose(), { class: "small" })),
      element("div", { class: "side-body" }, this.problem, this.now, this.chart,
        element("h3", { text: "KV pages" }), this.room, this.maps, this.legend,
        element("h3", { text: "Texts" }), this.texts,
        element("h3", { text: "Prefix cache" }), this.cache),
    );
  }
  visible() {
    return !byId("live").hidden && !document.hidden;
  }
  wake() {
    clearTimeout(this.timer);
    this.timer = null;
    if (this.visible()) this.ask();
  }
  async ask() {
    if (this.asking) return;
    this.asking = true;
    try {
      const view = await get("v1/kv");
      this.problem.textContent = "";
      this.show(view);
    } catch (error) {
      this.problem.textContent = error.message;
      this.before = null;
      if (error.status === 401) this.onproblem(error);
    }
    this.asking = false;
    clearTimeout(this.timer);
    if (this.visible()) this.timer = setTimeout(() => this.ask(), EVERY);
  }
  show(view) {
    this.showNow(view);
    this.showRoom(view);
    this.showPools(view.pools);
    this.showTexts(view);
    this.showCache(view.cache);
  }
  showNow(view) {
    const time = performance.now();
    const rows = view.totals.decode_rows;
    let rate = null;
    if (this.before && rows >= this.before.rows) rate = (1000 * (rows - this.before.rows)) / (time - this.before.time);
    this.before = { rows, time };
    if (rate !== null) this.rates = [...this.rates, rate].slice(-HISTORY);
    const { last } = pace;
    this.now.replaceChildren(
      fact("Server", rate === null ? "\u2013" : `${number(rate, 1)} tokens/s`),
      fact("This page", `${number(pace.now(), 1)} tokens/s`),
      fact("Running", number(view.running)),
      fact("Queued", view.paused ? `${number(view.queued)}, ${number(view.paused)} paused` : number(view.queued)),
      fact("Last: first token", last?.first ? seconds(last.first) : "\u2013"),
      fact("Last: from the cache", last?.prompt ? `${number(last.cached)} of ${number(last.prompt)}` : "\u2013"),
      fact("Worst gap", view.gaps.worst_seconds ? seconds(view.gaps.worst_seconds) : "\u2013"),
      fact("Engine busy", seconds(view.totals.busy_seconds)),
    );
    this.drawRates();
  }
  drawRates() {
    const { chart } = this;
    const scale = window.devicePixelRatio || 1;
    const width = chart.clientWidth;
    const height = chart.clientHeight;
    chart.width = width * scale;
    chart.height = height * scale;
    const draw = chart.getContext("2d");
    draw.scale(scale, scale);
    const top = Math.max(...this.rates, 1);
    const style = getComputedStyle(chart);
    const step = width / HISTORY;
    draw.fillStyle = style.getPropertyValue("--page-own");
    this.rates.forEach((rate, i) => {
      const tall = (rate / top) * (height - 2);
      draw.fillRect(width - (this.rates.length - i) * step, height - tall, Math.max(1, step - 1), tall);
    });
    const text = `Tokens per second of the server, last minute; at most ${number(top, 1)}`;
    chart.setAttribute("aria-label", text);
    chart.title = text;
  }
  showRoom({ room }) {
    const label = `${bytes(room.used_bytes)} of ${bytes(room.total_bytes)} in use`;
    this.room.replaceChildren(bar([["own", room.used_bytes / Math.max(1, room.total_bytes)]], label), element("p", { class: "hint", text: label }));
  }
  showPools(pools) {
    for (const pool of pools) {
      if (!this.pools.has(pool.name)) {
        const canvas = element("canvas", { role: "img", class: "pages" });
        const note = element("p", { class: "hint" });
        const box = element("div", { class: "pool" }, element("h4", { text: pool.name }), canvas, note);
        this.maps.append(box);
        this.pools.set(pool.name, { box, canvas, note });
      }
      const { canvas, note } = this.pools.get(pool.name);
      const per = mapOf(pool, canvas);
      note.textContent = `${number(pool.pages_in_use)} pages of ${bytes(pool.page_bytes)}, ${bytes(pool.bytes_in_use)}${per > 1 ? `; a square is ${per} pages` : ""}`;
    }
    for (const [name, { box }] of this.pools) {
      if (pools.some((pool) => pool.name === name)) continue;
      box.remove();
      this.pools.delete(name);
    }
  }
  showTexts({ sequences, context }) {
    if (!sequences.length) return this.texts.replaceChildren(element("p", { class: "hint", text: "None runs." }));
    const whole = Math.max(...sequences.map((one) => one.prompt_tokens + one.generated_tokens), 1);
    this.texts.replaceChildren(...sequences.map((one) => {
      const computed = Math.max(0, Math.min(one.computed_tokens, one.prompt_tokens) - one.cached_tokens);
      const left = Math.max(0, one.prompt_tokens - one.cached_tokens - computed);
      const label = `${one.state}: prompt ${number(one.prompt_tokens)} (${number(one.cached_tokens)} from the cache), generated ${number(one.generated_tokens)}, ${bytes(one.bytes)}`;
      return element("div", { class: "sequence" },
        element("p", {}, element("span", { class: `state ${one.state}`, text: one.state }), " ", element("code", { text: one.index ? `${one.request} ${one.index}` : one.request })),
        bar([["cached", one.cached_tokens / whole], ["own", computed / whole], ["left", left / whole], ["made", one.generated_tokens / whole]], label),
        element("p", { class: "hint", text: `${number(one.prompt_tokens)} + ${number(one.generated_tokens)} of ${number(context)} tokens, ${bytes(one.bytes)}` }));
    }));
  }
  showCache({ entries, bytes: size, prompt_tokens: prompts, cached_tokens: cached, evictions }) {
    const share = prompts ? (100 * cached) / prompts : 0;
    const most = Math.max(...entries.map((entry) => entry.tokens), 1);
    this.cache.replaceChildren(
      element("p", { class: "hint", text: `${number(entries.length)} held, ${bytes(size)}; ${number(share, 1)} % of all prompt tokens came from it; ${number(evictions)} evicted` }),
      ...[...entries].sort((a, b) => a.idle_seconds - b.idle_seconds).slice(0, 24).map((entry) => {
        const label = `${number(entry.tokens)} tokens, ${bytes(entry.bytes)}, ${number(entry.hits)} ${entry.hits === 1 ? "hit" : "hits"}, idle ${seconds(entry.idle_seconds)}`;
        return element("div", { class: "entry" }, bar([["cached", entry.tokens / most]], label), element("span", { text: label }));
      }),
    );
  }
}
