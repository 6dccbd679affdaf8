// The chat: messages of the current conversation, and the field to write the next one.
import { byId, button, element, grow, paced, say } from "./dom.js";
import { errorBox, viewOf } from "./message.js";
import { runChat } from "./run.js";
import { readFlag, writeFlag } from "./store.js";

const TOP = 5; // alternatives asked for each token
const NEAR = 48; // pixels from the end that still count as the end

// The messages as the server takes them. A last answer is its beginning: the model goes on with it.
function messagesOf(conversation) {
  const out = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  for (const message of conversation.messages) {
    if (message.role === "user") out.push({ role: "user", content: message.content });
    else if (message.role === "tool") out.push({ role: "tool", content: message.content, tool_call_id: message.tool_call_id, name: message.name });
    else if (message.calls.length) {
      const answer = { role: "assistant", content: message.content, tool_calls: message.calls };
      if (message.reasoning) answer.reasoning_content = message.reasoning; // a thought goes on after its call
      out.push(answer);
    } else if (message.content) out.push({ role: "assistant", content: message.content });
  }
  return out;
}

export class Chat {
  // onproblem(error): what concerns the whole page (a key, no template). onchange(): titles or order changed.
  constructor(store, settings, { onproblem, onchange }) {
    this.store = store;
    this.settings = settings;
    this.onproblem = onproblem;
    this.onchange = onchange;
    this.runs = new Map(); // conversation -> AbortController
    this.views = new Map(); // message -> view
    this.build();
    this.draw();
  }

  build() {
    this.turns = element("div", { class: "turns", role: "log", "aria-label": "Messages", "aria-live": "off" });
    this.scroller = element("div", { class: "scroller", tabindex: "-1" }, this.turns);
    this.field = element("textarea", { id: "prompt", rows: "1", placeholder: "Write a message", "aria-label": "Message", enterkeyhint: "send" });
    this.fit = grow(this.field);
    this.problem = element("div", { class: "composer-problem" });
    this.go = button("Send", () => (this.running() ? this.stop() : this.send()), { id: "send", class: "strong" });
    this.shade = element("input", { type: "checkbox", id: "shade", checked: readFlag("shade") });
    this.shade.addEventListener("change", () => writeFlag("shade", this.shade.checked));
    this.down = button("To the end", () => this.toEnd(), { class: "small down", hidden: true });
    this.scroller.addEventListener("scroll", () => (this.down.hidden = this.atEnd()), { passive: true });
    this.field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.running()) this.send();
    });
    byId("chat").replaceChildren(
      this.scroller,
      element("div", { class: "down-place" }, this.down),
      element("div", { class: "composer-frame" },
        element("div", { class: "composer" }, this.problem,
          element("div", { class: "composer-box" }, this.field, this.go),
          element("div", { class: "composer-foot" },
            element("label", { class: "check" }, this.shade, "Token probabilities"),
            element("span", { class: "keys" }, "Enter sends, Shift+Enter is a new line, Esc stops")))),
    );
  }

  get conversation() {
    return this.store.current;
  }
  running() {
    return this.runs.has(this.conversation);
  }

  // The views ask the chat for what they need to know and to do.
  actions() {
    const { conversation } = this;
    const last = () => conversation.messages.at(-1);
    return {
      showTokens: () => this.shade.checked,
      isLast: (message) => last() === message && !this.runs.has(conversation),
      waitsForResults: (message) => last() === message && message.calls.length > 0 && message.finish !== "stopped" && !message.error,
      edit: (message, text) => this.cutAndSend(message, text),
      retry: (message) => (message.content && !message.calls.length ? this.goOn(message) : this.again(message)),
      again: (message) => this.again(message),
      goOn: (message) => this.goOn(message),
      results: (message, texts) => this.results(message, texts),
    };
  }

  draw() {
    const actions = this.actions();
    this.views.clear();
    for (const message of this.conversation.messages) this.views.set(message, viewOf(message, actions));
    const empty = element("div", { class: "empty" }, element("p", { text: "Ask something." }),
      element("p", { class: "hint", text: "Conversations stay in this browser." }));
    this.turns.replaceChildren(...(this.views.size ? [...this.views.values()].map((view) => view.node) : [empty]));
    this.problem.replaceChildren();
    this.drawState();
    this.toEnd();
  }
  drawState() {
    const running = this.running();
    this.go.textContent = running ? "Stop" : "Send";
    this.go.setAttribute("aria-label", running ? "Stop the answer" : "Send the message");
    this.go.classList.toggle("stop", running);
  }
  atEnd() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    return scrollHeight - scrollTop - clientHeight < NEAR;
  }
  toEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  send() {
    const text = this.field.value;
    if (!text.trim()) return;
    if (!this.request()) return;
    this.field.value = "";
    this.fit();
    this.conversation.messages.push({ role: "user", content: text });
    if (!this.conversation.named && !this.conversation.title) this.conversation.title = text.trim().split("\n")[0].slice(0, 60);
    this.answer();
  }
  cutAndSend(message, text) {
    const { messages } = this.conversation;
    if (!text.trim() || !this.request()) return;
    this.stop();
    messages.splice(messages.indexOf(message), Infinity, { role: "user", content: text });
    this.answer();
  }
  again(message) {
    if (!this.request()) return;
    const { messages } = this.conversation;
    messages.splice(messages.indexOf(message), Infinity);
    this.answer();
  }
  goOn(message) {
    if (this.request()) this.answer(message);
  }
  results(message, texts) {
    if (!this.request()) return;
    message.calls.forEach((call, i) => {
      this.conversation.messages.push({ role: "tool", content: texts[i], tool_call_id: call.id, name: call.function.name });
    });
    this.answer();
  }
  stop() {
    this.runs.get(this.conversation)?.abort();
  }

  // The request but for its messages; nothing, and a word where it is wrong, when the settings are wrong.
  request() {
    this.problem.replaceChildren();
    try {
      const body = this.settings.chat();
      if (this.shade.checked) Object.assign(body, { logprobs: true, top_logprobs: TOP });
      return body;
    } catch (error) {
      const show = button("Show", () => this.onproblem(error), { class: "small" });
      const box = errorBox({ message: error.message });
      box.append(show);
      this.problem.replaceChildren(box);
      return null;
    }
  }

  // Asks for an answer to the conversation, or for more of `begun`.
  async answer(begun) {
    const { conversation, store } = this;
    const body = { ...this.request(), messages: messagesOf(conversation) };
    if (begun && !(body.logprobs && begun.tokens.length)) { // all of a message's tokens are known, or none
      delete body.logprobs;
      delete body.top_logprobs;
      begun.tokens = [];
    }
    const message = begun ?? { role: "assistant", content: "", reasoning: "", calls: [], tokens: [], finish: "" };
    if (!begun) conversation.messages.push(message);
    message.running = true;
    const controller = new AbortController();
    this.runs.get(conversation)?.abort();
    this.runs.set(conversation, controller);
    store.touch(conversation);
    this.draw();
    this.onchange();
    const show = paced(() => {
      if (this.conversation !== conversation) return;
      const follow = this.atEnd();
      this.views.get(message)?.update();
      if (follow) this.toEnd();
    }, 40);
    const save = paced(() => store.save(conversation), 1000);
    await runChat(body, message, controller.signal, () => {
      show();
      save();
    });
    if (this.runs.get(conversation) === controller) this.runs.delete(conversation);
    show.flush();
    save.flush();
    this.after(conversation, message);
  }
  after(conversation, message) {
    if (message.error) this.onproblem(message.error);
    if (this.conversation !== conversation) return;
    say(message.error ? "The answer failed" : message.finish === "stopped" ? "Stopped" : "The answer is complete");
    this.drawState();
  }
}
