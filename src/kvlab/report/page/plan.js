// The planner: lengths against views, each with its factor over what is needed.
panel(
  "plan",
  "What it would take",
  "Bytes of K and V at other lengths: what is needed, what engines allocate, and what simple formulas say.",
  (body) => {
    const p = data.plan;
    if (!p) return replace(body, missing("The plan", "--no-plan left it out"));
    const names = {
      needed: "needed",
      this_engine: "this engine’s pages",
      unified_pages: "pages of one size",
      no_window: "no window",
      no_sharing: "no sharing",
      hidden_over_heads: "hidden size ÷ heads",
      every_query_head: "every query head",
      every_layer_global: "every layer global",
      every_layer_owns: "every layer owns",
      flat: "flat",
    };
    const name = (n) => names[n] || n.replace(/_/g, " ");
    const cell = (v) => [bytes(v.bytes), v.name === "needed" ? "" : el("small", null, ` ${times(v.factor)}`)];
    const t = p.kv_per_token,
      columnsOf = (list) => list.map((v) => [name(v.name)]);
    const sets = [
      ["engine views", "views"],
      ["simple formulas", "formulas"],
    ].filter(([, key]) => p.lengths[0][key] && p.lengths[0][key].length);
    const box = el("div");
    const pick = tabs(
      "Which estimates",
      sets.map(([n]) => n),
      (i) => {
        const key = sets[i][1];
        replace(
          box,
          table(
            key === "views"
              ? "K and V of all sequences, and the factor over what is needed"
              : "What simple formulas say, and their error factor",
            [["Positions"], ...(key === "views" ? [] : [["needed"]]), ...columnsOf(p.lengths[0][key])],
            p.lengths.map((l) => [
              exact(l.length),
              ...(key === "views" ? [] : [bytes(l.needed_bytes)]),
              ...l[key].map(cell),
            ]),
          ),
        );
      },
    );
    pick.choose(0);
    const c = p.crossover,
      past = t.stored_past_window_bytes !== t.stored_below_window_bytes;
    replace(
      body,
      el(
        "dl",
        {class: "facts"},
        [
          ["weights resident", bytes(p.weights.resident_bytes), exactBytes(p.weights.resident_bytes)],
          ["weights per token", bytes(p.weights.touched_bytes_per_token), "read by one decode call"],
          [
            "stored per token",
            exactBytes(t.stored_below_window_bytes),
            past
              ? `${exactBytes(t.stored_past_window_bytes)} past the window`
              : `K ${p.kv_dtype.keys}, V ${p.kv_dtype.values}`,
          ],
          [
            "read per token",
            exactBytes(t.read_below_window_bytes),
            past ? `${exactBytes(t.read_past_window_bytes)} past the window` : "each later call",
          ],
        ].map(([k, v, small]) =>
          el("div", null, el("dt", null, k), el("dd", null, v, el("small", null, small))),
        ),
      ),
      c &&
        el(
          "p",
          null,
          c.stored_length === null
            ? "The cache never outweighs the weights."
            : `The cache outweighs the weights from ${plural(c.stored_length, "position")} on${c.stored_past_max_position ? `, past the ${exact(p.model.max_position)} that the model was made for` : ""}.`,
        ),
      pick,
      box,
      asTable("All bytes exactly", () =>
        table(
          "Bytes at each length, exact",
          [
            ["Positions"],
            ["Read by one call, B"],
            ...[...p.lengths[0].views, ...p.lengths[0].formulas].map((v) => [`${name(v.name)}, B`]),
          ],
          p.lengths.map((l) => [
            exact(l.length),
            exact(l.read_bytes),
            ...[...l.views, ...l.formulas].map((v) => exact(v.bytes)),
          ]),
        ),
      ),
      asTable("Layers of one kind as a table", () =>
        table(
          "Layers of one kind",
          [
            ["Layers"],
            ["Kind", "text"],
            ["Role", "text"],
            ["Window"],
            ["K/V heads"],
            ["Head size"],
            ["B per position"],
            ["Page, B"],
          ],
          p.layers.map((l) => [
            ranges(l.layers),
            l.kind,
            l.role === "borrower" ? `reads layer ${l.owner}’s` : l.role,
            l.window ? exact(l.window) : "all",
            exact(l.n_kv_heads),
            exact(l.head_dim),
            exact(l.position_bytes),
            exact(l.page_bytes),
          ]),
        ),
      ),
    );
  },
);
