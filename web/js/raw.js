// Text that the model goes on with, as it is: no template, no roles.
import { byId, button, copy, element, paced, say } from "./dom.js";
import { errorBox } from "./message.js";
import { runText } from "./run.js";
import { readFlag, writeFlag } from "./store.js";
import { TokenView } from "./tokens.js";

const TEXT = "lapidary.raw";
const TOP = 5;

export class Raw {
  constructor(settings, { onproblem }) {
    this.settings = settings;
    this.onproblem = onproblem;
    this.before = []; // texts to go back to
    this.controller = null;
    this.build();
  }
  build() {
    this.note = element("p", { class: "note", hidden: true });
    this.field = element("textarea", { id: "raw-text", class: "mono", "aria-label": "Text", spellcheck: "false", placeholder: "Begin a text; the model goes on.", value: localStorage.getItem(TEXT) ?? "" });
    this.field.addEventListener("input", () => this.keep());
    this.field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
      event.preventDefault();
      if (!this.controller) this.run();
    });
    this.go = button("Go on", () => (this.controller ? this.controller.abort() : this.run()), { class: "strong", id: "raw-go" });
    this.back = button("Undo", () => this.undo(), { disabled: true });
    this.shade = element("input", { type: "checkbox", id: "raw-shade", checked: readFlag("shade") });
    this.shade.addEventListener("change", () => writeFlag("shade", this.shade.checked));
    this.outcome = element("div", { class: "raw-outcome" });
    this.tokens = new TokenView();
    this.tokens.node.hidden = true;
    byId("raw").replaceChildren(
      this.note,
      this.field,
      this.outcome,
      this.tokens.node,
      element("div", { class: "composer raw-bar" },
        element("div", { class: "row" }, this.go, this.back, button("Copy", (event) => copy(this.field.value, event.currentTarget)),
          button("Clear", () => this.replace("")),
          element("label", { class: "check" }, this.shade, "Token probabilities")),
        element("p", { class: "keys" }, "Ctrl+Enter goes on, Esc stops")),
    );
  }
  say(text) {
    this.note.textContent = text;
    this.note.hidden = !text;
  }
  keep() {
    try {
      localStorage.setItem(TEXT, this.field.value);
    } catch {
      // no room: the text stays in the field
    }
  }
  replace(text) {
    this.before.push(this.field.value);
    this.back.disabled = false;
    this.field.value = text;
    this.keep();
    this.field.focus();
  }
  undo() {
    if (this.before.length) this.field.value = this.before.pop();
    this.back.disabled = !this.before.length;
    this.keep();
  }
  stop() {
    this.controller?.abort();
  }
  async run() {
    const prompt = this.field.value;
    if (!prompt) return this.field.focus();
    let body;
    try {
      body = { ...this.settings.sampling("max_tokens"), prompt };
    } catch (error) {
      this.outcome.replaceChildren(errorBox({ message: error.message }));
      return this.onproblem(error);
    }
    if (this.shade.checked) body.logprobs = TOP;
    this.before.push(prompt);
    this.field.readOnly = true;
    this.controller = new AbortController();
    this.go.textContent = "Stop";
    const message = { content: "", tokens: [] };
    this.tokens.update([]);
    this.tokens.node.hidden = !this.shade.checked;
    const show = paced(() => {
      const end = this.field.scrollHeight - this.field.scrollTop - this.field.clientHeight < 48;
      this.field.value = prompt + message.content;
      if (end) this.field.scrollTop = this.field.scrollHeight;
      if (this.shade.checked) this.tokens.update(message.tokens);
    }, 40);
    this.outcome.replaceChildren();
    await runText(body, message, this.controller.signal, show);
    show.flush();
    this.controller = null;
    this.field.readOnly = false;
    this.go.textContent = "Go on";
    this.back.disabled = false;
    this.keep();
    if (message.error) {
      this.outcome.replaceChildren(errorBox(message.error, () => this.run()));
      this.onproblem(message.error);
    }
    say(message.error ? "The text failed" : "The text is complete");
  }
}
