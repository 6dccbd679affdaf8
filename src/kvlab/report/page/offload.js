// Saved, poisoned, restored: what was proven, and when reloading beats computing again.
panel(
  "offload",
  "Saved and restored",
  "The cache taken out as bytes, overwritten with NaN, put back, and continued: the next logits must be the same bits.",
  (body) => {
    const o = data.offload;
    if (!o) return replace(body, missing("The round trip", "--no-offload left it out"));
    const m = o.mutation_counts,
      hues = ["reused", "read", "picked", "model", "bad"];
    const timed = o.tiers.some((t) => t.restore_gb_per_s !== undefined);
    replace(
      body,
      verdict(
        o.passed
          ? `Every restored page is the same and the next logits are bit-equal: ${both(o.state.kv_bytes)} of K and V moved, ${exactBytes(o.state.expected_kv_bytes)} expected.`
          : "A check failed; see below.",
        o.passed,
      ),
      el(
        "p",
        null,
        `Poisoned with NaN, a cache that was not restored ends in ${o.poison.outcome === "error" ? "an error" : "other logits"}: a restore that does nothing cannot pass.`,
      ),
      table(
        "Ways of keeping the state",
        [
          ["Way"],
          ["Stored, B"],
          ["K/V restored, B"],
          ...(timed ? [["Save, GB/s"], ["Restore, GB/s"]] : []),
          ["What it is", "wrap"],
        ],
        o.tiers.map((t) => [
          t.way,
          exact(t.stored_bytes),
          exact(t.kv_bytes_restored),
          ...(timed ? [digits(t.save_gb_per_s), digits(t.restore_gb_per_s)] : []),
          t.what || "",
        ]),
      ),
      o.curve &&
        o.curve.length > 1 &&
        o.curve[0].recompute_seconds !== undefined && [
          el("h3", null, "Recompute or reload"),
          lineChart({
            label: "Seconds to recompute and to reload over the length of the cache",
            x: {
              kind: "log",
              low: o.curve[0].length,
              high: o.curve.at(-1).length,
              format: (v) => exact(v),
              title: "positions",
            },
            y: {
              kind: "log",
              low:
                Math.min(
                  ...o.curve.flatMap((c) => [c.recompute_seconds, ...c.reload.map((r) => r.seconds)]),
                ) / 1.5,
              high:
                Math.max(
                  ...o.curve.flatMap((c) => [c.recompute_seconds, ...c.reload.map((r) => r.seconds)]),
                ) * 1.5,
              format: seconds,
              title: "seconds",
            },
            series: [
              {
                points: o.curve.map((c) => [c.length, c.recompute_seconds]),
                colour: "computed",
                line: true,
                dots: true,
              },
              ...o.curve[0].reload.map((first, i) => ({
                points: o.curve
                  .map((c) => [c.length, c.reload.find((r) => r.way === first.way)?.seconds])
                  .filter((p) => p[1] !== undefined),
                colour: hues[i % 5],
                line: true,
                dots: true,
              })),
            ],
            marks: (o.break_even || [])
              .filter((b) => b.verdict === "crosses")
              .map((b) => ({x: b.length, text: `${b.way}: even at ${exact(b.length)}`})),
          }),
          legend([
            ["bar background:var(--computed)", "recompute"],
            ...o.curve[0].reload.map((r, i) => [`bar background:var(--${hues[i % 5]})`, `reload, ${r.way}`]),
          ]),
          asTable("The curve as a table", () =>
            table(
              "Recompute against reload",
              [
                ["Positions"],
                ["State, B"],
                ["Way", "text"],
                ["Recompute"],
                ["Reload"],
                ["Speed-up"],
                ["First token after reload"],
              ],
              o.curve.flatMap((c) =>
                c.reload.map((r) => [
                  exact(c.length),
                  exact(c.state_bytes),
                  r.way,
                  seconds(c.recompute_seconds),
                  seconds(r.seconds),
                  times(r.speed_up),
                  seconds(r.ttft_seconds),
                ]),
              ),
            ),
          ),
        ],
      m && [
        el("h3", null, "Damage that must be seen"),
        el(
          "p",
          null,
          `${exact(m.caught)} of ${exact(m.tried)} mutations were caught`,
          m.missed ? el("span", {class: "bad-text"}, `, ${exact(m.missed)} were missed`) : "",
          m.misnamed ? el("span", {class: "bad-text"}, `, ${exact(m.misnamed)} by another name`) : "",
          m.changed_nothing ? `, ${exact(m.changed_nothing)} changed nothing` : "",
          ".",
        ),
        asTable("Mutations as a table", () =>
          table(
            "Mutations",
            [["Group"], ["Mutation", "text"], ["What came of it", "text"], ["The error", "wrap"]],
            o.mutations.map((x) => [
              x.group,
              x.name,
              el(
                "span",
                {class: x.verdict === "caught" || x.verdict === "changed nothing" ? null : "bad-text"},
                x.verdict,
              ),
              x.message || "",
            ]),
          ),
        ),
      ],
      asTable("Checks as a table", () =>
        checksTable(
          "Checks of the round trip",
          o.checks.map((c) => ({...c, name: c.way ? `${c.name}, ${c.way}` : c.name})),
        ),
      ),
      o.claim && [
        el("h3", null, "What a speed-up leaves out"),
        el(
          "ol",
          null,
          o.claim.map((c) =>
            el(
              "li",
              null,
              el("b", null, `${c.title}: `),
              el(
                "ul",
                {class: "note"},
                c.lines.map((line) => el("li", null, line)),
              ),
            ),
          ),
        ),
      ],
    );
  },
);
