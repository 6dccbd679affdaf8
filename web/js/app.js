// The page put together: tabs, panels, the key, what concerns everything.
import { get, key } from "./api.js";
import { Chat } from "./chat.js";
import { button, byId, element } from "./dom.js";
import { List } from "./list.js";
import { Live } from "./live.js";
import { Raw } from "./raw.js";
import { Settings } from "./settings.js";
import { readFlag, Store, writeFlag } from "./store.js";

const WIDE = window.matchMedia("(min-width: 75rem)"); // room for a side panel beside the text
const MIDDLE = window.matchMedia("(min-width: 50rem)"); // room for the conversations beside the text

const store = new Store();
const settings = new Settings(() => store.current, (text) => {
  store.current.system = text;
  store.save(store.current);
});
const chat = new Chat(store, settings, { onproblem, onchange: () => list.draw() });
const raw = new Raw(settings, { onproblem });
const live = new Live({ onproblem });
const list = new List(store, {
  onchoose: () => {
    showTab("chat");
    chat.draw();
    settings.draw();
    if (!MIDDLE.matches) closeDrawers();
  },
  ondelete: (conversation) => chat.runs.get(conversation)?.abort(),
  onproblem,
});
for (const [box, other] of [[chat.shade, raw.shade], [raw.shade, chat.shade]]) {
  box.addEventListener("change", () => (other.checked = box.checked));
}
settings.onclose = () => panel("settings", false);
live.onclose = () => panel("live", false);
store.onFull = () => notice("full", "The browser's room for this page is full: export conversations, then delete some.");

// One line above everything; `id` tells whether it is shown already.
function notice(id, text, ...more) {
  const box = byId("notice");
  box.dataset.id = id;
  box.hidden = !id;
  box.setAttribute("role", "status");
  box.replaceChildren(...(id ? [element("p", { text }), ...more, button("Dismiss", () => notice(""), { class: "small" })] : []));
}

function askKey(wrong) {
  if (byId("notice").dataset.id === "key" && !wrong) return;
  const field = element("input", { type: "password", id: "key", autocomplete: "off", "aria-label": "API key", placeholder: "API key" });
  const keep = () => {
    key.set(field.value.trim());
    notice("");
    start(true);
  };
  const form = element("form", { class: "row", onsubmit: (event) => {
    event.preventDefault();
    keep();
  } }, field, element("button", { type: "submit", class: "strong" }, "Use this key"));
  notice("key", wrong ? "The server does not know this key." : "The server asks for an API key. It is kept until this tab closes.", form);
  field.focus();
}

function onproblem(error) {
  if (error.status === 401) return askKey(false);
  if (error.code === "no_chat_template") return noChat();
  if (error.setting) {
    panel("settings", true);
    byId(`set-${error.setting}`).focus();
    settings.mark(error.setting, error.message);
    return;
  }
  if (!error.code && error.status === undefined) notice("problem", error.message);
}

function noChat() {
  showTab("raw");
  raw.say(`${settings.model?.id ?? "This model"} has no chat template, so the server refuses chats. It can go on with a text.`);
}

function showTab(name) {
  for (const other of ["chat", "raw"]) {
    const tab = byId(`tab-${other}`);
    tab.setAttribute("aria-selected", String(other === name));
    tab.tabIndex = other === name ? 0 : -1;
    byId(other).hidden = other !== name;
  }
}

// Side panels: one at a time; beside the text where there is room, above it elsewhere.
function panel(name, open) {
  if (open && name === "settings") settings.draw();
  for (const other of ["settings", "live"]) {
    const show = other === name && open;
    byId(other).hidden = !show;
    byId(`open-${other}`).setAttribute("aria-expanded", String(show));
    writeFlag(`open.${other}`, show);
  }
  if (open && !WIDE.matches) byId(name).querySelector("button")?.focus();
  if (!open) byId(`open-${name}`).focus();
  veil();
  live.wake();
}

function showList(open) {
  document.body.classList.toggle("with-list", open);
  byId("open-list").setAttribute("aria-expanded", String(open));
  if (MIDDLE.matches) writeFlag("closed.list", !open);
  else if (open) byId("new").focus();
  veil();
}

const sideOpen = () => ["settings", "live"].find((name) => !byId(name).hidden);

function veil() {
  const listOver = document.body.classList.contains("with-list") && !MIDDLE.matches;
  byId("veil").hidden = !(listOver || (sideOpen() && !WIDE.matches));
}

function closeDrawers() {
  if (document.body.classList.contains("with-list") && !MIDDLE.matches) showList(false);
  if (sideOpen() && !WIDE.matches) panel(sideOpen(), false);
}

function onkeydown(event) {
  if (event.key !== "Escape") return;
  if (!byId("veil").hidden) closeDrawers();
  else if (chat.running() || raw.controller) {
    chat.stop();
    raw.stop();
  } else if (sideOpen() && byId(sideOpen()).contains(document.activeElement)) panel(sideOpen(), false);
}

function fitPanels() {
  document.body.classList.toggle("with-list", MIDDLE.matches && !readFlag("closed.list"));
  byId("open-list").setAttribute("aria-expanded", String(document.body.classList.contains("with-list")));
  const open = WIDE.matches ? ["settings", "live"].find((name) => readFlag(`open.${name}`)) : undefined;
  for (const name of ["settings", "live"]) {
    byId(name).hidden = name !== open;
    byId(`open-${name}`).setAttribute("aria-expanded", String(name === open));
  }
  veil();
  live.wake();
}

async function start(again) {
  try {
    const { data } = await get("v1/models");
    [settings.model] = data;
    byId("model").textContent = settings.model.id;
    document.title = `${settings.model.id} \u00b7 Lapidary`;
    settings.draw();
    if (settings.model.chat === false) noChat();
    if (byId("notice").dataset.id === "start") notice("");
    live.wake();
  } catch (error) {
    if (error.status === 401) askKey(again === true && key.get() !== "");
    else notice("start", error.message, button("Try again", () => start(), { class: "small" }));
  }
}

byId("open-list").addEventListener("click", () => showList(!document.body.classList.contains("with-list")));
for (const name of ["settings", "live"]) {
  byId(`open-${name}`).addEventListener("click", () => panel(name, byId(name).hidden));
}
for (const name of ["chat", "raw"]) {
  const tab = byId(`tab-${name}`);
  tab.addEventListener("click", () => showTab(name));
  tab.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const other = name === "chat" ? "raw" : "chat";
    showTab(other);
    byId(`tab-${other}`).focus();
  });
}
byId("veil").addEventListener("click", closeDrawers);
document.addEventListener("keydown", onkeydown);
window.addEventListener("storage", (event) => {
  if ([...chat.runs.keys()].some((one) => event.key?.endsWith(one.id))) return; // what comes here is newer
  const changed = store.takeOver(event.key);
  if (!changed) return;
  list.draw();
  if (changed === store.current) chat.draw();
});
WIDE.addEventListener("change", fitPanels);
MIDDLE.addEventListener("change", fitPanels);
settings.draw();
fitPanels();
if (MIDDLE.matches) byId("prompt").focus();
start();
