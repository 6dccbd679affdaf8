// One message of a conversation on the page. `actions` are the chat's: edit, retry, again, goOn, results.
import { button, copy, element, grow, number, seconds } from "./dom.js";
import { update as updateMarkdown } from "./markdown.js";
import { TokenView } from "./tokens.js";

function pretty(source) {
  try {
    return JSON.stringify(JSON.parse(source), null, 2);
  } catch {
    return source; // not complete, or not JSON: as it came
  }
}

function statsText({ tokens, seconds: time, first, prompt, cached }) {
  const parts = [];
  if (tokens) parts.push(`${number(tokens)} tokens`);
  if (tokens > 1 && time > first) parts.push(`${number((tokens - 1) / (time - first), 1)} tokens/s`);
  if (first) parts.push(`first after ${seconds(first)}`);
  if (prompt) parts.push(`prompt ${number(prompt)}${cached ? `, ${number(cached)} from the cache` : ""}`);
  return parts.join(" \u00b7 ");
}

const FINISHES = {
  length: "Ended by the token limit.",
  stopped: "Stopped.",
  content_filter: "Ended by the server.",
};

export function errorBox(error, onretry) {
  return element(
    "div",
    { class: "error", role: "alert" },
    element("p", { text: error.message }),
    error.code ? element("code", { class: "code-name", text: error.code }) : null,
    onretry ? button("Try again", onretry, { class: "small" }) : null,
  );
}

class UserView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.node = element("article", { class: "turn user", "aria-label": "You" });
    this.draw();
  }
  draw() {
    this.node.replaceChildren(
      element("div", { class: "said", text: this.message.content }),
      element(
        "div",
        { class: "tools" },
        button("Edit", () => this.edit(), { class: "small quiet" }),
        button("Copy", (event) => copy(this.message.content, event.currentTarget), { class: "small quiet" }),
      ),
    );
  }
  edit() {
    const area = element("textarea", { "aria-label": "Edit the message", rows: "2", value: this.message.content });
    const send = () => this.actions.edit(this.message, area.value);
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        this.draw();
        this.node.querySelector("button").focus();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    this.node.replaceChildren(
      element("div", { class: "editor" }, area),
      element("div", { class: "tools shown" }, button("Send", send, { class: "small strong" }), button("Cancel", () => this.draw(), { class: "small" })),
    );
    grow(area)();
    area.focus();
  }
  update() {}
}

class ToolView {
  constructor(message) {
    this.node = element(
      "article",
      { class: "turn tool", "aria-label": "Result of a tool" },
      element("div", { class: "call" }, element("p", { class: "call-name" }, "Result of ", element("code", { text: message.name })),
        element("pre", { class: "scroll", tabindex: "0", text: pretty(message.content) })),
    );
  }
  update() {}
}

class AssistantView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.summary = element("summary");
    this.thoughts = element("div", { class: "markdown" });
    this.thought = element("details", { class: "thought", hidden: true }, this.summary, this.thoughts);
    this.text = element("div", { class: "markdown answer" });
    this.tokens = new TokenView();
    this.byToken = actions.showTokens() && (message.tokens?.length > 0 || message.running === true);
    this.calls = element("div", { class: "calls" });
    this.foot = element("div", { class: "foot" });
    this.node = element(
      "article",
      { class: "turn assistant", "aria-label": "The model" },
      this.thought, this.text, this.tokens.node, this.calls, this.foot,
    );
    this.update();
  }
  update() {
    const { message } = this;
    const running = message.running === true;
    this.node.classList.toggle("running", running);
    this.node.setAttribute("aria-busy", String(running));
    this.drawThought(running);
    const tokens = message.tokens ?? [];
    const byToken = this.byToken && (tokens.length > 0 || running);
    this.text.hidden = byToken;
    this.tokens.node.hidden = !byToken;
    if (byToken) this.tokens.update(tokens);
    else updateMarkdown(this.text, message.content);
    this.drawCalls();
    this.drawFoot(running);
  }
  drawThought(running) {
    const { reasoning, content, calls } = this.message;
    this.thought.hidden = !reasoning;
    if (!reasoning) return;
    const busy = running && !content && !calls.length;
    const words = reasoning.split(/\s+/).filter(Boolean).length;
    const title = `${busy ? "Thinking" : "Thought"}: ${number(words)} ${words === 1 ? "word" : "words"}`;
    if (this.summary.textContent !== title) this.summary.textContent = title;
    this.summary.classList.toggle("busy", busy);
    updateMarkdown(this.thoughts, reasoning);
  }
  drawCalls() {
    const { calls } = this.message;
    const waiting = !this.message.running && this.actions.waitsForResults(this.message);
    const state = `${JSON.stringify(calls)} ${waiting}`;
    if (state === this.drawnCalls) return;
    this.drawnCalls = state;
    const areas = [];
    const boxes = calls.map((call) => {
      const box = element(
        "section",
        { class: "call", "aria-label": `Call of ${call.function.name}` },
        element("p", { class: "call-name" }, "Calls ", element("code", { text: call.function.name })),
        element("pre", { class: "scroll", tabindex: "0", text: pretty(call.function.arguments) }),
      );
      if (waiting) {
        const area = element("textarea", { rows: "2", placeholder: "What the tool answers", "aria-label": `Result of ${call.function.name}` });
        grow(area);
        areas.push(area);
        box.append(area);
      }
      return box;
    });
    const send = () => this.actions.results(this.message, areas.map((area) => area.value));
    const go = waiting && button(calls.length > 1 ? "Send the results" : "Send the result", send, { class: "strong" });
    this.calls.replaceChildren(...boxes, ...(go ? [go] : []));
  }
  drawFoot(running) {
    const { message, actions } = this;
    const state = JSON.stringify([running, message.error, message.finish, message.stats, message.tokens?.length > 0, this.byToken, actions.isLast(message)]);
    if (state === this.drawnFoot) return;
    this.drawnFoot = state;
    if (running) {
      this.foot.replaceChildren(element("span", { class: "pulse", "aria-hidden": "true" }));
      return;
    }
    const parts = [];
    if (message.error) parts.push(errorBox(message.error, actions.isLast(message) ? () => actions.retry(message) : null));
    const tools = element("div", { class: "tools" });
    if (message.content) tools.append(button("Copy", (event) => copy(message.content, event.currentTarget), { class: "small quiet" }));
    if (actions.isLast(message)) {
      tools.append(button("Regenerate", () => actions.again(message), { class: "small quiet" }));
      if (message.content && !message.calls.length) {
        tools.append(button("Continue", () => actions.goOn(message), { class: "small quiet" }));
      }
    }
    if (message.tokens?.length) {
      const toggle = button("Probabilities", () => {
        this.byToken = !this.byToken;
        this.update();
        this.foot.querySelector("[aria-pressed]")?.focus();
      }, { class: "small quiet", "aria-pressed": String(this.byToken) });
      tools.append(toggle);
    }
    const facts = [FINISHES[message.finish], message.stats && statsText(message.stats)].filter(Boolean).join(" ");
    if (facts) parts.push(element("p", { class: "facts", text: facts }));
    this.foot.replaceChildren(...parts, tools);
  }
}

export function viewOf(message, actions) {
  if (message.role === "user") return new UserView(message, actions);
  if (message.role === "tool") return new ToolView(message);
  return new AssistantView(message, actions);
}
