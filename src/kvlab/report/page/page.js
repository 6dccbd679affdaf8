// The page itself: head, contents, panels in their order, repro block.
const parts = {
  trace: "the run",
  bytes: "bytes",
  plan: "plan",
  recompute: "recomputation",
  roofline: "roofline",
  offload: "round trip",
};
const repro = data.repro;

const allChecks = () => data.checks.map((c) => ({...c, name: `${parts[c.part]}: ${c.name}`}));

function head() {
  const checks = allChecks(),
    failed = checks.filter((c) => !c.passed).length,
    s = trace && trace.summary;
  const prompt = trace ? trace.prompt.tokens.map((t) => t.piece || `#${t.id} `).join("") : "",
    made = trace
      ? trace.calls
          .filter((c) => c.picked)
          .map((c) => c.picked.piece || `#${c.picked.id} `)
          .join("")
      : "";
  const facts = trace
    ? [
        [
          "cached positions",
          exact(s.cached_positions),
          `${exact(s.prompt_tokens)} prompt + ${exact(s.decode_calls)} decode`,
        ],
        ["tokens picked", exact(s.picked_tokens), `stopped by ${s.stopped_by}`],
        ["stored per token", exactBytes(trace.position_bytes), `K and V in ${trace.kv_dtype}`],
        ["K and V written", bytes(s.kv_written_bytes), exactBytes(s.kv_written_bytes)],
      ]
    : [];
  facts.push([
    "checks",
    failed
      ? el("span", {class: "bad-text"}, `${exact(failed)} failed`)
      : el("span", {class: "good-text"}, `${exact(checks.length)} passed`),
    `of ${exact(checks.length)}`,
  ]);
  fill(document.getElementById("top"), null, [
    el("p", {class: "eyebrow"}, "What is in the KV cache, to the byte"),
    el("h1", null, repro.model),
    trace &&
      el(
        "p",
        {class: "prompt", tabindex: 0, "aria-label": "Prompt and the tokens picked"},
        prompt,
        el("span", {class: "made"}, made),
      ),
    el(
      "dl",
      {class: "facts"},
      facts.map(([k, v, small]) =>
        el("div", null, el("dt", null, k), el("dd", null, v, el("small", null, small))),
      ),
    ),
  ]);
  return checks;
}

function foot(checks) {
  const rows = [
    ["Command", el("code", {class: "command", tabindex: 0}, repro.command)],
    ["Program", `lapidary ${repro.version}`],
    ["Model", repro.model],
    ["Model hash", repro.model_hash && el("code", null, repro.model_hash)],
    ["Numeric mode", repro.numeric_mode],
    ["CPU", repro.cpu],
    ["Threads", repro.threads && exact(repro.threads)],
  ].filter(([, v]) => v);
  return [
    el(
      "dl",
      {class: "repro"},
      rows.map(([k, v]) => [el("dt", null, k), el("dd", null, v)]),
    ),
    asTable(`All ${exact(checks.length)} checks as a table`, () =>
      checksTable("Checks of the whole report", checks),
    ),
  ];
}

function start() {
  const checks = head(),
    main = document.getElementById("main"),
    contents = document.getElementById("contents");
  panel(
    "repro",
    "How to make it again",
    "The command and the machine. Everything but the timings comes out the same.",
    (body) => replace(body, foot(checks)),
  );
  const links = new Map();
  for (const p of panels) {
    const body = el("div", {class: "body"});
    const section = el(
      "section",
      {class: "panel", id: p.id, "aria-labelledby": `${p.id}-title`},
      el("header", null, el("h2", {id: `${p.id}-title`}, p.title), el("p", null, p.about)),
      body,
    );
    main.append(section);
    const link = el("a", {href: `#${p.id}`}, p.title);
    links.set(section, link);
    contents.append(el("li", null, link));
    try {
      p.build(body);
    } catch (error) {
      // one panel's trouble must not take the others along; the browser test looks for the message
      console.error(`panel ${p.id}:`, error);
      replace(body, el("p", {class: "missing bad-text"}, `This panel could not be drawn: ${error.message}`));
    }
  }
  const seen = new Set();
  const observer = new IntersectionObserver(
    (entries) => {
      for (const e of entries) e.isIntersecting ? seen.add(e.target) : seen.delete(e.target);
      const first = [...links.keys()].find((s) => seen.has(s));
      for (const [section, link] of links)
        section === first ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
    },
    {rootMargin: "-20% 0px -50% 0px"},
  );
  for (const section of links.keys()) observer.observe(section);
  fill(document.getElementById("foot"), null, [
    el(
      "p",
      null,
      `Made by lapidary ${repro.version}. One file, no requests; the data is in its source as JSON.`,
    ),
  ]);
  if (trace) chooseCall(state.call);
  document.documentElement.dataset.ready = "yes";
}
start();
