// The call that the slider stands on, shared by the panels that show one call.
const trace = data.trace;
const state = {call: trace ? trace.calls.length - 1 : 0, watchers: []};
function chooseCall(index) {
  state.call = Math.max(0, Math.min(trace.calls.length - 1, index));
  for (const watcher of state.watchers) watcher(trace.calls[state.call]);
}

// Tokens of the sequence as they were fed, by position.
const fedTokens = trace ? trace.calls.flatMap((call) => call.fed) : [];

// Layers that a call shows alike, as one line: "layers 0–29".
function layerGroups(call) {
  const groups = new Map();
  for (const seen of call.layers) {
    const layer = trace.layers[seen.layer];
    const key = JSON.stringify([
      layer.role,
      layer.window,
      layer.n_heads,
      layer.n_kv_heads,
      layer.head_dim,
      seen.q,
      seen.k,
      seen.v,
      seen.first_in_sight,
      seen.keys_attended,
      seen.passes,
      seen.cache_after,
      layer.role === "borrower" ? layer.owner : -1,
    ]);
    if (!groups.has(key)) groups.set(key, {layer, seen, numbers: []});
    groups.get(key).numbers.push(seen.layer);
  }
  return [...groups.values()];
}
const layerName = (layer) =>
  `${layer.window ? `sliding, window ${exact(layer.window)}` : "global"}${layer.role === "borrower" ? `, reads layer ${layer.owner}’s` : ""}`;

function shapeLine(name, shape, heads, dim) {
  return shape
    ? `${name} [${shape.join(",")}] = ${shape[0]} × ${shape[1]} tok × ${plural(heads, "head")} × ${dim}`
    : null;
}

panel(
  "calls",
  "Call by call",
  "Every forward call of the run: what was fed, what the cache held afterwards, and the token picked from its output.",
  (body) => {
    if (!trace) return replace(body, missing("The trace"));
    const last = trace.calls.length - 1;
    const slider = el("input", {
      type: "range",
      min: 0,
      max: last,
      step: 1,
      id: "call",
      "aria-label": "Forward call",
      oninput: () => {
        stop();
        chooseCall(Number(slider.value));
      },
    });
    let timer = null;
    const play = el(
      "button",
      {type: "button", id: "play", "aria-label": "Play", onclick: () => (timer ? stop() : start())},
      "Play",
    );
    const step = (by) => () => {
      stop();
      chooseCall(state.call + by);
    };
    const back = el(
      "button",
      {type: "button", id: "back", "aria-label": "Previous call", onclick: step(-1)},
      "←",
    );
    const forth = el(
      "button",
      {type: "button", id: "forth", "aria-label": "Next call", onclick: step(1)},
      "→",
    );
    function start() {
      if (state.call === last) chooseCall(0);
      timer = setInterval(() => {
        chooseCall(state.call + 1);
        if (state.call === last) stop();
      }, 700);
      replace(play, "Pause");
      play.setAttribute("aria-label", "Pause");
    }
    function stop() {
      clearInterval(timer);
      timer = null;
      replace(play, "Play");
      play.setAttribute("aria-label", "Play");
    }
    // Keys that a focused control does not use for itself.
    body.addEventListener("keydown", (event) => {
      if (event.target === slider || event.target.closest("summary, .scroll")) return;
      const to = {ArrowLeft: state.call - 1, ArrowRight: state.call + 1, Home: 0, End: last}[event.key];
      if (to === undefined) return;
      event.preventDefault();
      stop();
      chooseCall(to);
    });

    const lane = (id) => el("div", {class: "lane", id});
    const fed = lane("fed"),
      cache = lane("cache"),
      picked = lane("picked"),
      shapes = el("div", {class: "shapes", id: "shapes"});
    const title = el("p", {class: "verdict", id: "call-title", "aria-live": "polite"});
    const kMost = 120; // chips: beyond, the middle is left out
    const chips = (tokens, kind, first = 0) => {
      const chip = (t, i) =>
        el(
          "li",
          {
            class: typeof kind === "function" ? kind(first + i) : kind,
            title: `position ${first + i}, id ${t.id}`,
          },
          tokenText(t),
        );
      if (tokens.length <= kMost) return el("ul", {class: "tokens"}, tokens.map(chip));
      const head = kMost / 3,
        tail = tokens.length - (kMost * 2) / 3;
      return el(
        "ul",
        {class: "tokens"},
        tokens.slice(0, head).map(chip),
        el("li", {class: "more"}, `… ${exact(tail - head)} more …`),
        tokens.slice(tail).map((t, i) => chip(t, i + tail)),
      );
    };
    const head = (text, more) => el("h3", null, text, more && el("span", null, more));

    state.watchers.push((call) => {
      slider.value = call.index;
      slider.setAttribute(
        "aria-valuetext",
        `call ${call.index}, ${call.kind}, cache ${call.before} to ${call.after}`,
      );
      back.disabled = call.index === 0;
      forth.disabled = call.index === last;
      replace(
        title,
        el(
          "b",
          null,
          call.kind === "prefill"
            ? trace.summary.prefill_calls > 1
              ? `Prefill ${call.index + 1}`
              : "Prefill"
            : `Decode ${call.index + 1 - trace.summary.prefill_calls}`,
        ),
        ` · call ${call.index + 1} of ${last + 1} · KV `,
        el("span", {"data-value": "before"}, exact(call.before)),
        " → ",
        el("span", {"data-value": "after"}, exact(call.after)),
        ` (+${exactBytes(call.kv_written_bytes)})`,
        call.seconds !== undefined && ` · ${seconds(call.seconds)}`,
      );
      replace(
        fed,
        head("Tokens fed", plural(call.fed.length, "token")),
        chips(call.fed, "computed", call.first_position),
      );
      replace(
        cache,
        head(
          "KV cache after the call",
          `${plural(call.after, "position")}: ${exact(call.after - call.before)} computed, ${exact(call.before)} reused · ${bytes(call.kv_held_bytes)} of K and V in ${bytes(call.kv_page_bytes)} of pages`,
        ),
        chips(fedTokens.slice(0, call.after), (i) => (i >= call.before ? "computed" : "reused")),
      );
      const p = call.picked;
      replace(
        picked,
        head(
          "Token picked",
          p
            ? `logit ${digits(p.logit, 5)}${p.runner_up ? `, ahead of ${tokenName(p.runner_up)} by ${digits(p.gap, 4)}` : ""}`
            : "",
        ),
        p
          ? el("ul", {class: "tokens"}, el("li", {class: "picked", title: `id ${p.id}`}, tokenText(p)))
          : el("p", {class: "note"}, "None: this chunk of the prompt asks for no logits."),
      );
      replace(
        shapes,
        layerGroups(call).map(({layer, seen, numbers}) =>
          el(
            "div",
            null,
            el("b", null, `${numbers.length === 1 ? "layer" : "layers"} ${ranges(numbers)}`),
            ` · ${layerName(layer)}`,
            el(
              "ul",
              null,
              [
                shapeLine("q", seen.q, layer.n_heads, layer.head_dim),
                shapeLine("k", seen.k, layer.n_kv_heads, layer.head_dim),
                shapeLine("v", seen.v, layer.n_kv_heads, layer.head_dim),
                `cache ${seen.cache_before.end - seen.cache_before.first} → ${seen.cache_after.end - seen.cache_after.first} positions with pages, ${exact(seen.keys_attended)} in sight of the last query`,
              ]
                .filter(Boolean)
                .map((line) => el("li", null, line)),
            ),
          ),
        ),
      );
    });

    const s = trace.summary;
    replace(
      body,
      el("div", {class: "controls"}, back, slider, forth, play),
      title,
      fed,
      cache,
      picked,
      legend([
        ["background:var(--computed-wash);border-color:var(--computed)", "computed in this call"],
        ["background:var(--reused-wash);border-color:var(--reused)", "reused from the cache"],
        ["border:1px dashed var(--picked)", "picked, not in the cache yet"],
      ]),
      el(
        "p",
        null,
        `${plural(s.decode_calls, "decode call")} picked ${plural(s.picked_tokens, "token")}: the prefill already picks one, and each decode call picks one more. ` +
          `The last of them was never fed back, so the cache ends at ${exact(s.prompt_tokens)} + ${exact(s.decode_calls)} = ${exact(s.cached_positions)} positions.` +
          (s.stopped_by === "stop token" && s.stop_token
            ? ` The run stopped at ${tokenName(s.stop_token)}.`
            : ""),
      ),
      el("h3", null, "Shapes in this call"),
      shapes,
      asTable("All calls as a table", () =>
        table(
          "Forward calls",
          [
            ["Call"],
            ["Kind", "text"],
            ["Fed"],
            ["KV before"],
            ["KV after"],
            ["K/V written, B"],
            ["K/V read, B"],
            ["Weights read, B"],
            ["Seconds"],
            ["Picked", "text"],
            ["Gap"],
            ["Gap, ulps"],
          ],
          trace.calls.map((c) => [
            exact(c.index),
            c.kind,
            exact(c.fed.length),
            exact(c.before),
            exact(c.after),
            exact(c.kv_written_bytes),
            exact(c.kv_read_bytes),
            exact(c.weights_read_bytes),
            c.seconds === undefined ? "–" : digits(c.seconds, 4),
            c.picked ? tokenName(c.picked) : "–",
            c.picked ? digits(c.picked.gap, 4) : "–",
            c.picked ? exact(c.picked.gap_ulps) : "–",
          ]),
        ),
      ),
    );
  },
);
