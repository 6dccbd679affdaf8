// Layer × position: what each layer keeps after the call that the slider stands on.
panel(
  "map",
  "Where it lies",
  "Rows are layers, columns are positions, after the call chosen above. A borrower stores nothing and reads its owner’s K and V; a window lets old positions go.",
  (body) => {
    if (!trace) return replace(body, missing("The trace"));
    const layers = trace.layers.filter((l) => l.role !== "none"),
      width = trace.summary.cached_positions;
    const pages = new Map();
    for (const page of trace.pages) {
      if (!pages.has(page.layer)) pages.set(page.layer, []);
      pages.get(page.layer).push(page);
    }
    const pageAt = (owner, position) =>
      (pages.get(owner) || []).find((p) => position >= p.first && position < p.first + p.positions);
    // Where pages begin, once single positions are too narrow to be told apart.
    const room = Math.max(1, ...trace.pages.map((p) => p.room));
    const pageStarts =
      width > 64 && width / room < 80
        ? Array.from({length: Math.ceil(width / room)}, (_, i) => i * room)
        : [];
    let call = trace.calls[state.call],
      seenByLayer = new Map();
    // What a position is to a layer: empty | evicted | behind | computed | reused | borrowed
    function kind(layer, position) {
      const seen = seenByLayer.get(layer.layer);
      if (!seen || position >= call.after) return "empty";
      if (position < seen.cache_after.first) return "evicted";
      if (position < seen.first_in_sight) return layer.role === "borrower" ? "evicted" : "behind";
      if (layer.role === "borrower") return "borrowed";
      return position >= call.before ? "computed" : "reused";
    }
    const words = {
      empty: "not computed yet",
      evicted: "out of the window; its page is given back",
      behind: "behind the window, kept until its page is free",
      computed: "live, computed in this call",
      reused: "live, reused from the cache",
      borrowed: "read from the owner’s page",
    };
    let ink = {};
    const inks = () => {
      ink = {
        empty: null,
        evicted: colour("gone"),
        behind: colour("model"),
        computed: colour("computed"),
        reused: colour("reused"),
        borrowed: colour("read"),
      };
    };
    const order = ["computed", "behind", "reused", "borrowed", "evicted", "empty"];
    const view = () => ({
      label: `Map of ${layers.length} layers and ${width} positions after call ${call.index + 1}`,
      rows: layers.length,
      columns: width,
      rowName: (r) => `${layers[r].layer}`,
      columnName: (c) => `${c}`,
      paint: (r, from, to) => {
        if (r === 0 && from === 0) inks();
        let best = 5;
        for (let c = from; c < to && best > 0; c += Math.max(1, (to - from) >> 3))
          best = Math.min(best, order.indexOf(kind(layers[r], c)));
        return ink[order[best]];
      },
      lines: pageStarts.length ? () => pageStarts : undefined,
      describe: (r, c) => {
        const layer = layers[r],
          what = kind(layer, c),
          owner = layer.role === "borrower" ? layer.owner : layer.layer;
        const size = trace.layers.find((l) => l.layer === owner).position_bytes,
          page = what === "empty" || what === "evicted" ? null : pageAt(owner, c);
        return [
          el("b", null, `Layer ${layer.layer}, position ${c}`),
          fedTokens[c] ? ` ${tokenName(fedTokens[c])}` : "",
          ` · ${layerName(layer)} · ${words[what]}. `,
          what === "empty" || what === "evicted"
            ? "0 B."
            : layer.role === "borrower"
              ? `0 B of its own, ${exactBytes(size)} read from layer ${owner}. `
              : `${exactBytes(size)}. `,
          page
            ? el(
                "code",
                null,
                `page ${page.pool} +${exact(page.pool_offset)}, positions ${page.first}–${page.first + page.positions - 1} of ${page.room} places, ${exactBytes(page.bytes)}, XXH3 ${page.xxh3}`,
              )
            : what === "empty" || what === "evicted"
              ? ""
              : el("code", null, "its page was given back before the run ended"),
        ];
      },
    });
    const see = (now) => {
      call = now;
      seenByLayer = new Map(now.layers.map((l) => [l.layer, l]));
    };
    see(call);
    const map = grid(view());
    state.watchers.push((now) => {
      see(now);
      map.show(view());
    });
    replace(
      body,
      map,
      legend(
        [
          ["background:var(--computed)", "owner, computed in this call"],
          ["background:var(--reused)", "owner, reused"],
          ["background:var(--read)", "borrower: reads its owner’s"],
          ["background:var(--model)", "behind the window, page still held"],
          ["background:var(--gone)", "evicted by the window"],
        ].filter(
          (_, i) =>
            i < 2 || (i === 2 ? layers.some((l) => l.role === "borrower") : layers.some((l) => l.window)),
        ),
      ),
      trace.sight.some((s) => s.behind > 0) &&
        el(
          "p",
          {class: "note"},
          `At the end, ${plural(trace.sight.filter((s) => s.behind > 0).length, "layer")} had positions behind the window; ` +
            `${exact(Math.max(...trace.sight.map((s) => s.evicted)))} at most had no page any more.`,
        ),
      asTable("All pages as a table", () =>
        table(
          "Pages at the end of the run",
          [
            ["Layer"],
            ["Positions", "text"],
            ["Places"],
            ["Page, B"],
            ["Live, B"],
            ["Pool", "text"],
            ["Offset, B"],
            ["XXH3 of the page", "text"],
          ],
          trace.pages.map((p) => [
            exact(p.layer),
            `${p.first}–${p.first + p.positions - 1}`,
            exact(p.room),
            exact(p.bytes),
            exact(p.live_bytes),
            p.pool,
            exact(p.pool_offset),
            el("code", null, p.xxh3),
          ]),
        ),
      ),
      asTable("Layers as a table", () =>
        table(
          "Layers",
          [
            ["Layer"],
            ["Role", "text"],
            ["Reads", "text"],
            ["Window"],
            ["Query heads"],
            ["K/V heads"],
            ["Head size"],
            ["B per position"],
          ],
          layers.map((l) => [
            exact(l.layer),
            l.role,
            `layer ${l.owner}`,
            l.window ? exact(l.window) : "all",
            exact(l.n_heads),
            exact(l.n_kv_heads),
            exact(l.head_dim),
            exact(l.position_bytes),
          ]),
        ),
      ),
    );
  },
);
