// What the browser keeps: conversations and settings. Everything is read as if somebody else had written it.

const PREFIX = "lapidary.";
const TOKENS_KEPT = 4000; // tokens with probabilities of one conversation; older ones lose theirs

export const newId = () => crypto.getRandomValues(new Uint32Array(2)).join("-");

const text = (value) => (typeof value === "string" ? value : "");
const finite = (value) => (typeof value === "number" && Number.isFinite(value) ? value : 0);

function cleanCalls(list) {
  if (!Array.isArray(list)) return [];
  return list.map((call) => ({
    id: text(call?.id),
    type: "function",
    function: { name: text(call?.function?.name), arguments: text(call?.function?.arguments) },
  }));
}

function cleanTokens(list) {
  if (!Array.isArray(list)) return [];
  return list.map((token) => ({
    text: text(token?.text),
    logprob: finite(token?.logprob),
    thought: token?.thought === true,
    best: (Array.isArray(token?.best) ? token.best : []).map((one) => [text(one?.[0]), finite(one?.[1])]),
  }));
}

function cleanMessage(message) {
  const role = message?.role;
  if (role === "user") return { role, content: text(message.content) };
  if (role === "tool") {
    return { role, content: text(message.content), tool_call_id: text(message.tool_call_id), name: text(message.name) };
  }
  if (role !== "assistant") return null;
  const out = { role, content: text(message.content), reasoning: text(message.reasoning) };
  out.calls = cleanCalls(message.calls);
  out.tokens = cleanTokens(message.tokens);
  out.finish = text(message.finish);
  if (message.error) out.error = { message: text(message.error.message), code: text(message.error.code) };
  if (message.stats && typeof message.stats === "object") {
    out.stats = Object.fromEntries(Object.entries(message.stats).map(([name, value]) => [name, finite(value)]));
  }
  return out;
}

export function cleanConversation(value) {
  if (typeof value !== "object" || value === null || !Array.isArray(value.messages)) return null;
  return {
    id: text(value.id) || newId(),
    title: text(value.title).slice(0, 200),
    named: value.named === true,
    system: text(value.system),
    updated: finite(value.updated) || Date.now(),
    messages: value.messages.map(cleanMessage).filter(Boolean),
  };
}

function read(name) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name));
  } catch {
    return null; // somebody else's bytes under our name, or no storage
  }
}

function write(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
    return true;
  } catch {
    return false; // full, or forbidden
  }
}

function forgetTokens(conversation, kept) {
  for (const message of [...conversation.messages].reverse()) {
    if (!message.tokens?.length) continue;
    kept -= message.tokens.length;
    if (kept < 0) message.tokens = [];
  }
}

const ONE = "conversation.";

function storedIds() {
  try {
    const head = PREFIX + ONE;
    return Object.keys(localStorage).filter((name) => name.startsWith(head)).map((name) => name.slice(head.length));
  } catch {
    return []; // storage is forbidden here
  }
}

export class Store {
  constructor() {
    this.conversations = storedIds().map((id) => cleanConversation(read(ONE + id))).filter(Boolean);
    this.sort();
    this.current = this.find(read("current")) ?? this.conversations[0] ?? this.add();
    this.onFull = () => {};
  }
  find(id) {
    return this.conversations.find((conversation) => conversation.id === id);
  }
  add(conversation = { id: newId(), title: "", named: false, system: "", updated: Date.now(), messages: [] }) {
    if (this.find(conversation.id)) conversation.id = newId();
    this.conversations.unshift(conversation);
    this.save(conversation);
    return conversation;
  }
  choose(conversation) {
    this.current = conversation;
    write("current", conversation.id);
  }
  remove(conversation) {
    this.conversations = this.conversations.filter((other) => other !== conversation);
    localStorage.removeItem(PREFIX + ONE + conversation.id);
    if (this.current === conversation) this.choose(this.conversations[0] ?? this.add());
  }
  // Probabilities are the first to go when the browser's room is full.
  save(conversation) {
    if (!this.find(conversation.id)) return; // it was deleted while its answer came
    forgetTokens(conversation, TOKENS_KEPT);
    if (write(ONE + conversation.id, conversation)) return;
    for (const other of this.conversations) {
      forgetTokens(other, 0);
      write(ONE + other.id, other);
    }
    if (!write(ONE + conversation.id, conversation)) this.onFull();
  }
  touch(conversation) {
    conversation.updated = Date.now();
    this.sort();
    this.save(conversation);
  }
  sort() {
    this.conversations.sort((a, b) => b.updated - a.updated);
  }
  // Another tab wrote or deleted a conversation: the one that was changed, or nothing when none was.
  takeOver(name) {
    if (!name?.startsWith(PREFIX + ONE)) return null;
    const id = name.slice((PREFIX + ONE).length);
    const theirs = cleanConversation(read(ONE + id));
    const ours = this.find(id);
    if (theirs && ours) Object.assign(ours, theirs);
    else if (theirs) this.conversations.push(theirs);
    else if (ours && ours !== this.current) this.conversations = this.conversations.filter((other) => other !== ours);
    this.sort();
    return ours ?? theirs;
  }
}

export const readSettings = () => read("settings") ?? {};
export const writeSettings = (settings) => write("settings", settings);
export const readFlag = (name) => read(name) === true;
export const writeFlag = (name, value) => write(name, value);
