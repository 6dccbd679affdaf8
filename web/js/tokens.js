// A text as its tokens, each shaded by how unsure the model was; what else it thought of is in a tip, for the
// mouse and for the keyboard (arrows move from token to token).
import { byId, element, number } from "./dom.js";

export const percent = (logprob) => {
  const value = 100 * Math.exp(logprob);
  return value >= 0.1 || value === 0 ? `${number(value, value < 99.95 ? 1 : 0)} %` : "< 0.1 %";
};

// Spaces and line ends as something that can be seen.
const visible = (text) => text.replaceAll(" ", "\u00b7").replaceAll("\n", "\u21b5").replaceAll("\t", "\u21e5") || "(nothing)";

// The entries of a chat's logprobs.content, as they are kept.
export function tokensOf(content, thought) {
  return content.map((entry) => ({
    text: entry.token,
    logprob: entry.logprob,
    thought,
    best: (entry.top_logprobs ?? []).map((one) => [one.token, one.logprob]),
  }));
}

// The same of a raw completion's logprobs.
export function tokensOfCompletion({ tokens, token_logprobs: scores, top_logprobs: best }) {
  return tokens.map((text, i) => ({
    text,
    logprob: scores[i] ?? 0,
    thought: false,
    best: Object.entries(best?.[i] ?? {}).sort((a, b) => b[1] - a[1]),
  }));
}

function tipContent(token) {
  const known = token.best.some(([text]) => text === token.text);
  const rows = known ? token.best : [...token.best, [token.text, token.logprob]];
  return [
    element("p", { class: "tip-head" }, element("code", { text: visible(token.text) }), ` ${percent(token.logprob)}`),
    element(
      "table",
      {},
      rows.map(([text, logprob]) => {
        const bar = element("span", { class: "tip-bar" });
        bar.style.setProperty("--share", Math.exp(logprob));
        return element(
          "tr",
          { class: text === token.text ? "chosen" : undefined },
          element("td", {}, element("code", { text: visible(text) })),
          element("td", { class: "tip-number", text: percent(logprob) }),
          element("td", {}, bar),
        );
      }),
    ),
    element("p", { class: "tip-foot", text: `log probability ${number(token.logprob, 4)}` }),
  ];
}

function hideTip() {
  byId("tip").hidden = true;
}

function showTip(span, token) {
  const tip = byId("tip");
  tip.replaceChildren(...tipContent(token));
  tip.hidden = false;
  const at = span.getClientRects()[0] ?? span.getBoundingClientRect();
  const { width, height } = tip.getBoundingClientRect();
  const left = Math.max(8, Math.min(at.left, document.documentElement.clientWidth - width - 8));
  const below = at.bottom + 6 + height < window.innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? at.bottom + 6 : Math.max(8, at.top - height - 6)}px`;
}

export class TokenView {
  constructor() {
    this.tokens = [];
    this.current = -1;
    this.node = element("div", {
      class: "tokens",
      tabindex: "0",
      role: "group",
      "aria-label": "Tokens and their probabilities; the arrow keys go from one to the next",
      "aria-describedby": "tip",
      onkeydown: (event) => this.key(event),
      onfocus: () => this.show(Math.max(this.current, 0)),
      onblur: () => this.leave(),
      onpointerover: (event) => event.target.dataset.token && this.show(Number(event.target.dataset.token)),
      onpointerleave: () => this.leave(),
    });
  }
  // REQUIRES: what was shown before is the beginning of `tokens`.
  update(tokens) {
    if (tokens.length < this.tokens.length) this.node.replaceChildren();
    const shown = tokens.length < this.tokens.length ? 0 : this.tokens.length;
    this.node.append(
      ...tokens.slice(shown).map((token, i) => {
        const span = element("span", {
          class: token.thought ? "token thought" : "token",
          "data-token": String(shown + i),
          text: token.text.replaceAll("\n", "\u21b5\n"),
        });
        span.style.setProperty("--doubt", (1 - Math.exp(Math.min(0, token.logprob))).toFixed(3));
        return span;
      }),
    );
    this.tokens = tokens.slice();
  }
  show(at) {
    if (!this.tokens[at]) return;
    this.node.children[this.current]?.classList.remove("at");
    this.current = at;
    const span = this.node.children[at];
    span.classList.add("at");
    if (document.activeElement === this.node) span.scrollIntoView({ block: "nearest" });
    showTip(span, this.tokens[at]);
  }
  leave() {
    this.node.children[this.current]?.classList.remove("at");
    hideTip();
  }
  key(event) {
    const steps = { ArrowLeft: this.current - 1, ArrowRight: this.current + 1, Home: 0, End: this.tokens.length - 1 };
    if (event.key === "Escape" && !byId("tip").hidden) {
      event.stopPropagation();
      hideTip();
    } else if (event.key in steps) {
      event.preventDefault();
      this.show(Math.max(0, Math.min(steps[event.key], this.tokens.length - 1)));
    }
  }
}

window.addEventListener("scroll", hideTip, { capture: true, passive: true });
