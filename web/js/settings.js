// What requests carry beside their text. An empty field is not sent: the server's and the model's own
// defaults hold.
import { button, byId, element, grow } from "./dom.js";
import { readSettings, writeSettings } from "./store.js";

const NUMBERS = [
  { name: "temperature", label: "Temperature", least: 0, most: 100, step: "0.05", hint: "0 takes the most probable token" },
  { name: "top_p", label: "Top p", least: 0, most: 1, step: "0.01" },
  { name: "top_k", label: "Top k", least: 0, most: 2147483647, whole: true, hint: "0 is all" },
  { name: "min_p", label: "Min p", least: 0, most: 1, step: "0.01" },
  { name: "max_tokens", label: "Most tokens", least: 1, most: 2147483647, whole: true },
  { name: "seed", label: "Seed", least: -9007199254740991, most: 9007199254740991, whole: true, standard: "random", hint: "the same seed, the same text" },
  { name: "repetition_penalty", label: "Repetition penalty", least: 0.01, most: 100, step: "0.05" },
  { name: "frequency_penalty", label: "Frequency penalty", standard: "0", least: -2, most: 2, step: "0.1" },
  { name: "presence_penalty", label: "Presence penalty", standard: "0", least: -2, most: 2, step: "0.1" },
];
const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh"];
const EXAMPLE_TOOLS = JSON.stringify(
  [{ type: "function", function: { name: "get_weather", description: "The weather at a place, now", parameters: { type: "object", properties: { place: { type: "string" } }, required: ["place"] } } }],
  null,
  2,
);
const EXAMPLE_SCHEMA = JSON.stringify({ type: "object", properties: { answer: { type: "string" }, sure: { type: "boolean" } }, required: ["answer", "sure"] }, null, 2);

function readNumber({ label, least, most, whole }, source) {
  const value = Number(source);
  if (!Number.isFinite(value) || (whole && !Number.isInteger(value))) throw new Error(`${label}: expected ${whole ? "a whole number" : "a number"}`);
  if (value < least || value > most) throw new Error(`${label}: expected ${least} to ${most}`);
  return value;
}

function readJson(label, source) {
  try {
    return JSON.parse(source);
  } catch (error) {
    throw new Error(`${label}: this is not JSON (${error.message})`);
  }
}

// A list of tools as requests have them; bare functions are wrapped.
function readTools(source) {
  const list = readJson("Tools", source);
  if (!Array.isArray(list)) throw new Error("Tools: expected a list: [{\"type\": \"function\", ...}]");
  return list.map((tool, i) => {
    const whole = tool?.function ? tool : { type: "function", function: tool };
    if (typeof whole.function?.name !== "string") throw new Error(`Tools: number ${i + 1} has no name`);
    return whole;
  });
}

function readSchema(source) {
  const schema = readJson("Schema", source);
  if (typeof schema !== "object" || schema === null || Array.isArray(schema)) throw new Error("Schema: expected an object");
  return schema;
}

export class Settings {
  constructor(conversationOf, onsystem) {
    this.values = readSettings();
    this.conversationOf = conversationOf;
    this.onsystem = onsystem;
    this.problems = new Map(); // of a field: its element
    this.model = null;
  }

  // Of both kinds of requests. Error naming the field that is wrong.
  sampling(limitName) {
    const out = {};
    for (const field of NUMBERS) {
      const source = this.get(field.name).trim();
      if (source) out[field.name === "max_tokens" ? limitName : field.name] = this.check(field.name, () => readNumber(field, source));
    }
    const stops = this.get("stop").split("\n").filter(Boolean).map((stop) => stop.replaceAll("\\n", "\n"));
    if (stops.length) out.stop = stops;
    return out;
  }
  chat() {
    const out = this.sampling("max_completion_tokens");
    if (this.get("reasoning_effort")) out.reasoning_effort = this.get("reasoning_effort");
    if (this.get("tools").trim()) {
      const tools = this.check("tools", () => readTools(this.get("tools")));
      if (tools.length) {
        out.tools = tools;
        if (this.get("tool_choice")) out.tool_choice = this.get("tool_choice");
        if (this.get("parallel") === "no") out.parallel_tool_calls = false;
      }
    }
    const format = this.get("format");
    if (format === "json_object") out.response_format = { type: "json_object" };
    if (format === "json_schema") {
      const schema = this.check("schema", () => readSchema(this.get("schema")));
      out.response_format = { type: "json_schema", json_schema: { name: "answer", schema, strict: true } };
    }
    return out;
  }
  get(name) {
    return typeof this.values[name] === "string" ? this.values[name] : "";
  }
  set(name, value) {
    this.values[name] = value;
    writeSettings(this.values);
    this.mark(name, "");
  }
  check(name, read) {
    try {
      return read();
    } catch (error) {
      this.mark(name, error.message);
      error.setting = name;
      throw error;
    }
  }
  mark(name, problem) {
    const box = this.problems.get(name);
    if (!box) return;
    box.textContent = problem;
    byId(`set-${name}`)?.setAttribute("aria-invalid", String(problem !== ""));
  }

  // What holds where a field is empty, as far as the server says it.
  standard(name) {
    const value = this.model?.defaults?.[name];
    return typeof value === "number" ? String(Number(value.toPrecision(6))) : "default";
  }
  field(name, label, input, hint) {
    const problem = element("p", { class: "problem", id: `problem-${name}`, role: "alert" });
    this.problems.set(name, problem);
    input.id = `set-${name}`;
    input.setAttribute("aria-describedby", `problem-${name}`);
    input.addEventListener("input", () => this.set(name, input.value));
    return element("div", { class: "field" }, element("label", { for: input.id, text: label }), input, hint && element("p", { class: "hint", text: hint }), problem);
  }
  select(name, label, options, hint) {
    const input = element("select", {}, options.map(([value, text]) => element("option", { value, text })));
    input.value = this.get(name);
    return this.field(name, label, input, hint);
  }
  editor(name, label, example, placeholder, read) {
    const area = element("textarea", { rows: "4", spellcheck: "false", class: "mono", placeholder, value: this.get(name) });
    const fit = grow(area);
    area.addEventListener("change", () => {
      try {
        if (area.value.trim()) this.check(name, () => read(area.value));
      } catch {
        // the field says it
      }
    });
    const fill = button("Example", () => {
      area.value = example;
      area.dispatchEvent(new Event("input"));
      fit();
    }, { class: "small" });
    const tidy = button("Tidy", () => {
      try {
        area.value = JSON.stringify(this.check(name, () => readJson(label, area.value)), null, 2);
        this.set(name, area.value);
        fit();
      } catch {
        // the field says it
      }
    }, { class: "small" });
    const box = this.field(name, label, area);
    box.append(element("div", { class: "row" }, fill, tidy));
    return box;
  }

  draw() {
    const panel = byId("settings");
    const system = element("textarea", { rows: "3", id: "system", placeholder: "None", value: this.conversationOf().system });
    system.addEventListener("input", () => this.onsystem(system.value));
    grow(system);
    const numbers = NUMBERS.map((field) => {
      const input = element("input", { inputmode: field.whole ? "numeric" : "decimal", autocomplete: "off", placeholder: field.standard ?? this.standard(field.name), value: this.get(field.name) });
      input.addEventListener("change", () => {
        try {
          if (input.value.trim()) this.check(field.name, () => readNumber(field, input.value));
        } catch {
          // the field says it
        }
      });
      return this.field(field.name, field.label, input, field.hint);
    });
    const stop = element("textarea", { rows: "2", class: "mono", placeholder: "One text per line; \\n is a line end", value: this.get("stop") });
    const lacks = (what, has) => (this.model && this.model[has] === false ? `${this.model.id} has no ${what}: the server refuses them` : undefined);
    panel.replaceChildren(
      element("header", { class: "side-head" }, element("h2", { text: "Settings" }), button("Close", () => this.onclose(), { class: "small" })),
      element("div", { class: "side-body" },
        element("div", { class: "field" }, element("label", { for: "system", text: "System message of this conversation" }), system),
        element("h3", { text: "Sampling" }),
        element("p", { class: "hint", text: "Empty fields are left to the server and the model." }),
        element("div", { class: "grid" }, numbers),
        this.field("stop", "Stop texts", stop),
        element("h3", { text: "Thinking" }),
        this.select("reasoning_effort", "Reasoning effort", [["", "default"], ...EFFORTS.map((word) => [word, word])], lacks("thinking that can be set", "reasoning")),
        element("h3", { text: "Tools" }),
        this.editor("tools", "Tools", EXAMPLE_TOOLS, "[]", readTools),
        lacks("tools", "tools") && element("p", { class: "hint", text: lacks("tools", "tools") }),
        element("div", { class: "grid" },
          this.select("tool_choice", "Choice", [["", "auto"], ["none", "none"], ["required", "required"]]),
          this.select("parallel", "Several at once", [["", "yes"], ["no", "no"]])),
        element("h3", { text: "Form of the answer" }),
        this.select("format", "Answers are", [["", "text"], ["json_object", "any JSON object"], ["json_schema", "JSON by a schema"]]),
        this.editor("schema", "Schema", EXAMPLE_SCHEMA, "{}", readSchema),
        button("Back to the defaults", () => {
          this.values = {};
          writeSettings(this.values);
          this.draw();
        }, { class: "small" })),
    );
  }
}
