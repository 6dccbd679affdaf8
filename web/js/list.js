// The conversations: choose, rename, delete, export, import.
import { button, byId, element } from "./dom.js";
import { cleanConversation, newId } from "./store.js";

export const titleOf = (conversation) => conversation.title || "New conversation";

function download(name, value) {
  const address = URL.createObjectURL(new Blob([JSON.stringify(value, null, 2)], { type: "application/json" }));
  element("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

export class List {
  // onchoose(conversation): it is the current one from now on. ondelete(conversation): it is about to go.
  constructor(store, { onchoose, ondelete, onproblem }) {
    this.store = store;
    this.onchoose = onchoose;
    this.ondelete = ondelete;
    this.onproblem = onproblem;
    this.file = element("input", { type: "file", accept: "application/json,.json", id: "import", hidden: true });
    this.file.addEventListener("change", () => this.import());
    this.draw();
  }
  draw() {
    byId("list").replaceChildren(
      element("div", { class: "list-head" }, button("New conversation", () => this.create(), { class: "strong", id: "new" })),
      element("ul", {}, this.store.conversations.map((conversation) => this.item(conversation))),
      element("div", { class: "list-foot row" },
        button("Export all", () => download("conversations.json", { version: 1, conversations: this.store.conversations }), { class: "small" }),
        button("Import", () => this.file.click(), { class: "small" }), this.file),
    );
  }
  item(conversation) {
    const current = conversation === this.store.current;
    const open = button(titleOf(conversation), () => this.choose(conversation), { class: "open", "aria-current": current ? "true" : undefined });
    const li = element("li", { class: current ? "current" : undefined }, open);
    open.addEventListener("dblclick", () => this.rename(conversation, li));
    li.append(
      button("Rename", () => this.rename(conversation, li), { class: "small quiet", "aria-label": `Rename ${titleOf(conversation)}` }),
      button("Export", () => download("conversation.json", { version: 1, conversations: [conversation] }), { class: "small quiet", "aria-label": `Export ${titleOf(conversation)}` }),
      this.deleter(conversation),
    );
    return li;
  }
  // The first press asks, the second deletes.
  deleter(conversation) {
    const out = button("Delete", () => {
      if (out.classList.contains("sure")) {
        this.ondelete(conversation);
        this.store.remove(conversation);
        this.choose(this.store.current);
        byId("new").focus();
        return;
      }
      out.classList.add("sure");
      out.textContent = "Delete?";
    }, { class: "small quiet", "aria-label": `Delete ${titleOf(conversation)}` });
    out.addEventListener("blur", () => {
      out.classList.remove("sure");
      out.textContent = "Delete";
    });
    return out;
  }
  rename(conversation, li) {
    const field = element("input", { value: titleOf(conversation), "aria-label": "Title", maxlength: "200" });
    const end = (keep) => {
      if (!field.isConnected) return;
      if (keep && field.value.trim()) {
        conversation.title = field.value.trim();
        conversation.named = true;
        this.store.save(conversation);
      }
      this.draw();
      byId("list").querySelector("[aria-current]")?.focus();
    };
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") end(true);
      if (event.key === "Escape") {
        event.stopPropagation();
        end(false);
      }
    });
    field.addEventListener("blur", () => end(true));
    li.replaceChildren(field);
    field.focus();
    field.select();
  }
  create() {
    const empty = this.store.conversations.find((conversation) => !conversation.messages.length && !conversation.named);
    this.choose(empty ?? this.store.add());
    byId("prompt")?.focus();
  }
  choose(conversation) {
    this.store.choose(conversation);
    this.draw();
    this.onchoose(conversation);
  }
  async import() {
    const [file] = this.file.files;
    this.file.value = "";
    if (!file) return;
    try {
      const value = JSON.parse(await file.text());
      const list = (Array.isArray(value?.conversations) ? value.conversations : []).map(cleanConversation).filter(Boolean);
      if (!list.length) throw new Error("it holds no conversations");
      for (const conversation of list) this.store.add({ ...conversation, id: newId() });
      this.choose(this.store.conversations[0]);
    } catch (error) {
      this.onproblem(new Error(`${file.name} cannot be imported: ${error.message}`));
    }
  }
}
