// The same positions computed again: where bits differ, and how close the picked tokens were.
panel(
  "recompute",
  "Computed again",
  "The same positions made by other calls: one prefill, single tokens, chunks. Green has the same bits as the cached run.",
  (body) => {
    const r = data.recompute;
    if (!r) return replace(body, missing("The recomputation", "--no-recompute left it out"), gapStrip());
    const threads = new Set(r.runs.flatMap((run) => run.recomputations.map((again) => again.threads)));
    const choices = r.runs.flatMap((run) =>
      run.recomputations.map((again) => ({
        run,
        again,
        name: `${run.name}: ${again.name}${threads.size > 1 ? `, ${again.threads} threads` : ""}`,
      })),
    );
    let at = 0,
      measure = 0;
    const ulpsAt = (m, row, c) => m.max_ulps[row][c],
      equalAt = (m, row, c) => m.equal_percent[row][c];
    const view = () => {
      const {again, name} = choices[at],
        m = again.map;
      let ramp = heat();
      const most = Math.max(1, again.kv.max_ulps);
      return {
        label: `Differences of ${name}, ${measure ? "greatest difference in ulps" : "percentage of equal bits"}`,
        rows: r.owner_layers.length,
        columns: r.positions,
        rowName: (row) => `${r.owner_layers[row]}`,
        columnName: (c) => `${c}`,
        paint: (row, from, to) => {
          if (row === 0 && from === 0) ramp = heat();
          let worst = 0;
          for (let c = from; c < to; ++c) {
            worst = Math.max(
              worst,
              measure
                ? ulpsAt(m, row, c) === 0
                  ? 0
                  : 0.5 + (0.5 * Math.log2(1 + ulpsAt(m, row, c))) / Math.log2(1 + most)
                : equalAt(m, row, c) === 100
                  ? 0
                  : 0.5 + 0.5 * (1 - equalAt(m, row, c) / 100),
            );
          }
          return ramp(worst);
        },
        describe: (row, c) => [
          el("b", null, `Layer ${r.owner_layers[row]}, position ${c}`),
          ` (${c < r.prompt_tokens ? "prompt" : "decoded"}) · ${percent(equalAt(m, row, c))} of K and V have the same bits · greatest difference ${plural(ulpsAt(m, row, c), "ulp")}.`,
        ],
      };
    };
    const summary = el("div", {"aria-live": "polite"});
    const map = grid(view());
    function show() {
      const {run, again} = choices[at],
        d = again.first_divergence;
      map.show(view());
      replace(
        summary,
        el(
          "p",
          null,
          el("b", {"data-value": "equal-percent"}, percent(again.kv.equal_percent)),
          ` of ${exact(again.kv.elements)} K/V elements have the same bits (prompt ${percent(again.prompt.equal_percent)}, decoded ${percent(again.decode.equal_percent)}). `,
          again.kv.equal === again.kv.elements
            ? ""
            : `Greatest |ΔK| ${digits(again.kv.max_abs_diff_k)}, |ΔV| ${digits(again.kv.max_abs_diff_v)}, ${plural(again.kv.max_ulps, "ulp")}. `,
          d
            ? `First to differ: ${d.op}${d.layer === null ? "" : ` of layer ${d.layer}`} at position ${d.position}. `
            : "No operation differs. ",
          again.flips.length
            ? `${plural(again.flips.length, "token flips", "tokens flip")}.`
            : "No token flips.",
        ),
        again.flips.length > 0 &&
          table(
            "Tokens that flip",
            [
              ["Generated token"],
              ["Position"],
              ["Cached run", "text"],
              ["Recomputed", "text"],
              ["Gap there"],
              [`Gap, ulps of ${run.logit_type}`],
            ],
            again.flips.map((f) => [
              exact(f.index),
              exact(f.position),
              tokenName({id: f.cached_id, piece: f.cached_piece}),
              tokenName({id: f.recomputed_id, piece: f.recomputed_piece}),
              digits(f.recomputed_gap, 4),
              exact(f.recomputed_gap_ulps),
            ]),
          ),
      );
    }
    const pick = tabs(
      "Recomputation",
      choices.map((c) => c.name),
      (i) => {
        at = i;
        show();
      },
    );
    const measures = tabs("What the colour means", ["same bits, %", "greatest difference, ulps"], (i) => {
      measure = i;
      show();
    });
    // What differs is what the map is for.
    pick.choose(
      Math.max(
        0,
        choices.findIndex(({again}) => again.kv.equal < again.kv.elements),
      ),
    );
    measures.choose(0);
    replace(
      body,
      r.runs.map((run) =>
        verdict(
          run.verdict,
          run.promised_exact
            ? run.recomputations.every((again) => again.kv.equal === again.kv.elements)
            : undefined,
        ),
      ),
      r.reference &&
        r.reference.missing &&
        el("p", {class: "note"}, `No float reference beside it: ${r.reference.missing}`),
      pick,
      summary,
      measures,
      map,
      legend([
        ["background:rgb(var(--heat-0))", "same bits"],
        [
          "scale background:linear-gradient(90deg,rgb(var(--heat-1)),rgb(var(--heat-2)))",
          "a few to all differ",
        ],
      ]),
      asTable("Layers as a table", () =>
        table(
          "Recomputations by layer",
          [
            ["Recomputation"],
            ["Layer"],
            ["Same bits"],
            ["Prompt"],
            ["Decoded"],
            ["max |ΔK|"],
            ["max |ΔV|"],
            ["Max ulps"],
          ],
          choices.flatMap(({again, name}) =>
            again.layers.map((l) => [
              name,
              exact(l.layer),
              percent(l.kv.equal_percent),
              percent(l.prompt.equal_percent),
              percent(l.decode.equal_percent),
              digits(l.kv.max_abs_diff_k),
              digits(l.kv.max_abs_diff_v),
              exact(l.kv.max_ulps),
            ]),
          ),
        ),
      ),
      r.runs.some((run) => run.cached_error) && thermometer(r),
      gapStrip(),
    );
  },
);

// Every run against the float reference: how far from the truth each is.
function thermometer(r) {
  const line = (name, e) => [
    name,
    digits(e.max_error_k),
    digits(e.max_error_v),
    digits(e.rms_error_kv),
    digits(e.max_error_hidden),
    digits(e.max_error_logits),
  ];
  return [
    el("h3", null, `Against the reference in ${r.reference.dtype}`),
    el(
      "p",
      {class: "note"},
      "Neither the cached run nor a recomputation is the truth; this is how far each is from it.",
    ),
    table(
      "Greatest errors against the reference",
      [["Run"], ["K"], ["V"], ["K and V, rms"], ["Hidden states"], ["Logits"]],
      r.runs.flatMap((run) =>
        [
          run.cached_error && line(`${run.name}, cached`, run.cached_error),
          ...run.recomputations.map(
            (again) => again.error && line(`${run.name}, ${again.name}`, again.error),
          ),
        ].filter(Boolean),
      ),
    ),
  ];
}

// How far the picked token was ahead of the next, per generated token.
function gapStrip() {
  const known = (p) => p && p.runner_up;
  const runs = data.recompute
    ? data.recompute.runs.map((run) => ({
        name: run.name,
        logit_type: run.logit_type,
        flips: new Set(run.recomputations.flatMap((again) => again.flips.map((f) => f.index))),
        tokens: run.generated.map((g) => ({
          index: g.index,
          token: {id: g.id, piece: g.piece},
          second: {id: g.second_id, piece: g.second_piece},
          gap: g.gap,
          ulps: g.gap_ulps,
        })),
      }))
    : trace
      ? [
          {
            name: "trace",
            logit_type: "f32",
            flips: new Set(),
            tokens: trace.calls
              .filter((c) => known(c.picked))
              .map((c, i) => ({
                index: i + 1,
                token: c.picked,
                second: c.picked.runner_up,
                gap: c.picked.gap,
                ulps: c.picked.gap_ulps,
              })),
          },
        ]
      : [];
  if (!runs.length || !runs[0].tokens.length)
    return [el("h3", null, "How close the tokens were"), missing("The list of picked tokens")];
  let run = runs[0];
  const box = el("div", {
    class: "chart",
    role: "application",
    tabindex: 0,
    "aria-roledescription": "strip of tokens",
  });
  const readout = el(
    "output",
    {class: "readout", "aria-live": "polite"},
    "Point at a bar, or use the arrow keys.",
  );
  let cursor = -1,
    bars = [];
  const say = (i) => {
    cursor = Math.max(0, Math.min(run.tokens.length - 1, i));
    const t = run.tokens[cursor];
    bars.forEach((b, k) => b.setAttribute("fill-opacity", k === cursor ? 1 : 0.72));
    replace(
      readout,
      el("b", null, `Token ${t.index}`),
      ` ${tokenName(t.token)} ahead of ${tokenName(t.second)} by ${digits(t.gap, 4)}, which is ${plural(t.ulps, "ulp")} of ${run.logit_type}.`,
      run.flips.has(t.index) ? el("span", {class: "bad-text"}, " Flips in a recomputation.") : "",
    );
  };
  box.addEventListener("keydown", (event) => {
    const to = {ArrowLeft: cursor - 1, ArrowRight: cursor + 1, Home: 0, End: run.tokens.length - 1}[
      event.key
    ];
    if (to === undefined) return;
    event.preventDefault();
    say(to);
  });
  const draw = (width) => {
    box.setAttribute(
      "aria-label",
      `Gap between the best two logits of ${plural(run.tokens.length, "generated token")}, ${run.name}. Arrow keys move.`,
    );
    const n = run.tokens.length,
      labels = width / n > 17,
      longest = Math.max(...run.tokens.map((t) => Math.min(12, tokenText(t.token).length)));
    const height = 150 + (labels ? 24 + 5.6 * longest : 10),
      low = Math.min(...run.tokens.map((t) => t.gap).filter((g) => g > 0), 1) / 2,
      high = Math.max(...run.tokens.map((t) => t.gap), 1) * 1.1;
    const y = scale("log", low, high, 150, 24, 4),
      left = 52,
      step = (width - left - 8) / n;
    bars = run.tokens.map((t, i) =>
      svg("rect", {
        x: left + i * step + step * 0.12,
        width: Math.max(1, step * 0.76),
        y: t.gap > 0 ? y.at(t.gap) : 146,
        height: t.gap > 0 ? Math.max(2, 150 - y.at(t.gap)) : 4,
        rx: Math.min(3, step / 4),
        fill: `var(--${run.flips.has(t.index) ? "bad" : "picked"})`,
        "fill-opacity": 0.72,
      }),
    );
    replace(
      box,
      svg(
        "svg",
        {viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true"},
        svg("text", {x: 0, y: 12, class: "strong"}, "gap of the best two logits"),
        y.ticks.map((t) => [
          svg("line", {x1: left, x2: width - 8, y1: y.at(t), y2: y.at(t), class: "grid"}),
          svg("text", {x: left - 6, y: y.at(t) + 4, "text-anchor": "end"}, digits(t, 1)),
        ]),
        bars,
        svg("line", {x1: left, x2: width - 8, y1: 150, y2: 150, class: "axis"}),
        labels &&
          run.tokens.map((t, i) =>
            svg(
              "text",
              {transform: `translate(${left + (i + 0.5) * step + 4} 160) rotate(-60)`, "text-anchor": "end"},
              tokenText(t.token).slice(0, 12),
            ),
          ),
      ),
    );
    bars.forEach((bar, i) => bar.addEventListener("pointerenter", () => say(i)));
    if (cursor >= 0) say(cursor);
  };
  const again = drawn(box, draw);
  const pick =
    runs.length > 1 &&
    tabs(
      "Run",
      runs.map((x) => x.name),
      (i) => {
        run = runs[i];
        cursor = -1;
        again();
      },
    );
  if (pick) pick.choose(0);
  return [
    el("h3", null, "How close the tokens were"),
    pick,
    box,
    readout,
    runs.some((x) => x.flips.size) &&
      legend([
        ["background:var(--picked)", "same token in every recomputation"],
        ["background:var(--bad)", "flips in one"],
      ]),
    asTable("Gaps as a table", () =>
      table(
        "Generated tokens",
        [
          ["Run"],
          ["Token"],
          ["Picked", "text"],
          ["Next best", "text"],
          ["Gap"],
          ["Gap, ulps"],
          ["Recomputed", "text"],
        ],
        runs.flatMap((x) =>
          x.tokens.map((t) => [
            x.name,
            exact(t.index),
            tokenName(t.token),
            tokenName(t.second),
            digits(t.gap, 5),
            exact(t.ulps),
            x.flips.has(t.index) ? "flips" : "same",
          ]),
        ),
      ),
    ),
  ];
}
