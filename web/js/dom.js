// Small things that build and change the document. Text of models and users goes in as text nodes only.

// element("button", {class: "x", "aria-label": "y", onclick: f, text: "z"}, child, ...): properties that begin
// with "on" are listeners; false and undefined leave an attribute away; children may be strings.
export function element(tag, properties = {}, ...children) {
  const out = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) out.addEventListener(name.slice(2), value);
    else if (name === "text") out.textContent = value;
    else if (name === "value") out.value = value;
    else out.setAttribute(name, value === true ? "" : value);
  }
  out.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return out;
}

export const byId = (id) => document.getElementById(id);

export function button(text, onclick, properties = {}) {
  return element("button", { type: "button", onclick, ...properties }, text);
}

// Says something to those who hear the page.
export function say(text) {
  const said = byId("said");
  said.textContent = "";
  said.textContent = text;
}

// Calls `work` soon, and not more often than every `every` milliseconds; flush() does what is due at once.
export function paced(work, every) {
  let timer = null;
  const run = () => {
    timer = null;
    work();
  };
  const call = () => {
    timer ??= setTimeout(run, every);
  };
  call.flush = () => {
    clearTimeout(timer);
    run();
  };
  return call;
}

// A text field that is as high as its text, up to the limit that its style sets.
export function grow(area) {
  const fit = () => {
    if (!area.checkVisibility()) return; // it has no height yet
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight + area.offsetHeight - area.clientHeight}px`;
  };
  area.addEventListener("input", fit);
  requestAnimationFrame(fit);
  return fit;
}

export async function copy(text, from) {
  const before = from.textContent;
  try {
    await navigator.clipboard.writeText(text);
    from.textContent = "Copied";
  } catch {
    from.textContent = "Not allowed";
  }
  say(from.textContent);
  setTimeout(() => (from.textContent = before), 1500);
}

export const number = (value, digits = 0) =>
  Number(value).toLocaleString("en-GB", { minimumFractionDigits: digits, maximumFractionDigits: digits });

export function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    unit += 1;
  }
  return `${number(value, unit > 0 && value < 100 ? 1 : 0)} ${units[unit]}`;
}

export function seconds(value) {
  if (value < 1) return `${number(value * 1000)} ms`;
  return value < 100 ? `${number(value, 1)} s` : `${number(value / 60, 1)} min`;
}
