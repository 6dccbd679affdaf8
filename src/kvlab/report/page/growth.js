// Bytes stored and read over length: the formula as lines, what the run and `kv bytes` counted as points.
panel(
  "growth",
  "How it grows",
  "Bytes stored, and bytes that one decode call reads, over the length of the cache. Lines are the formula, points were counted in a run.",
  (body) => {
    const owns = (l) => l.role === "owner";
    let layers = null; // {window, stored per position, read per position}
    if (trace) {
      const byNumber = new Map(trace.layers.map((l) => [l.layer, l]));
      const decode = trace.calls.filter((c) => c.kind === "decode").at(-1);
      const passes = new Map((decode ? decode.layers : []).map((l) => [l.layer, l.passes || 1]));
      layers = trace.layers
        .filter((l) => l.role !== "none")
        .map((l) => ({
          window: l.window,
          stored: owns(l) ? l.position_bytes : 0,
          read: byNumber.get(owns(l) ? l.layer : l.owner).position_bytes * (passes.get(l.layer) || 1),
          passes: passes.get(l.layer) || 1,
        }));
    }
    if (!layers) return replace(body, missing("The trace"));
    const seen = (l, n) => (l.window ? Math.min(l.window, n) : n);
    const stored = (n) => layers.reduce((sum, l) => sum + l.stored * seen(l, n), 0),
      read = (n) => layers.reduce((sum, l) => sum + l.read * seen(l, n), 0);
    const windows = [...new Set(layers.map((l) => l.window).filter(Boolean))].sort((a, b) => a - b);
    const counted = data.bytes ? data.bytes.lengths : [];
    const ranges_ = [["this run", Math.max(4, trace.summary.cached_positions)]];
    if (windows.length) ranges_.push(["past the window", windows.at(-1) * 3]);
    if (counted.length) ranges_.push(["all measured lengths", Math.max(...counted.map((l) => l.length))]);
    ranges_.push(["the model’s context", trace.context]);
    const storedDots = [
      ...trace.calls.map((c) => [c.after, c.kv_held_bytes]),
      ...counted.map((l) => [l.length, l.stored_bytes]),
    ];
    const readDots = [
      ...trace.calls.filter((c) => c.kind === "decode").map((c) => [c.after, c.kv_read_bytes]),
      ...counted.map((l) => [l.length, l.touched_bytes]),
    ];
    const many = (n) =>
      Array.from({length: 101}, (_, i) => (n * i) / 100)
        .concat(windows.filter((w) => w < n))
        .sort((a, b) => a - b);
    const view = (high) => {
      const inside = (p) => p[0] <= high;
      const top = Math.max(stored(high), read(high), ...storedDots.filter(inside).map((p) => p[1])) * 1.06;
      return {
        label: `Bytes stored and read over the length of the cache, up to ${exact(high)} positions`,
        x: {kind: high > 64 ? "binary" : "linear", low: 0, high, format: (v) => exact(v), title: "positions"},
        y: {kind: "binary", low: 0, high: top, format: bytes, title: "bytes"},
        series: [
          {
            points: many(high).map((n) => [n, read(n)]),
            colour: "read",
            line: true,
            dashed: layers.every((l) => l.stored === l.read),
          },
          {points: many(high).map((n) => [n, stored(n)]), colour: "reused", line: true},
          {points: readDots.filter(inside), colour: "read", dots: true, hollow: true, radius: 5.5},
          {points: storedDots.filter(inside), colour: "computed", dots: true, hollow: true, radius: 3},
        ],
        marks: windows.map((w) => ({x: w, text: `window ${exact(w)}`})),
      };
    };
    const chart = lineChart(view(ranges_[0][1]));
    const choice = tabs(
      "Range of lengths",
      ranges_.map(([name]) => name),
      (i) => chart.show(view(ranges_[i][1])),
    );
    choice.choose(windows.length && counted.length ? 1 : 0);
    const edge = windows.at(-1) || 0,
      past = (f) => f(edge + 2) - f(edge + 1);
    replace(
      body,
      el(
        "p",
        null,
        windows.length
          ? `Below the window a token adds ${exactBytes(stored(1))} stored and ${exactBytes(read(1))} read by every later call. Past ${windows.length > 1 ? "the widest window" : "the window"} of ${exact(edge)} it adds ${exactBytes(past(stored))} stored and ${exactBytes(past(read))} read.`
          : `Each token adds ${exactBytes(stored(1))}${read(1) === stored(1) ? ", stored once and read by every later call" : ` stored and ${exactBytes(read(1))} read by every later call`}. No layer has a window, so nothing is ever let go.`,
      ),
      choice,
      chart,
      legend([
        ["bar background:var(--reused)", "needed to be stored, formula"],
        ["bar background:var(--read)", "read by one decode call, formula"],
        ["border:1.5px solid var(--computed);border-radius:50%", "live in pages, counted"],
        ["border:1.5px solid var(--read);border-radius:50%", "read, counted"],
      ]),
      layers.some((l) => l.passes > 1) &&
        el(
          "p",
          {class: "note"},
          `Some layers have more query heads per K/V head than the kernel takes at once, and read each key ${Math.max(...layers.map((l) => l.passes))} times. Both the line and the points count every reading.`,
        ),
      windows.length > 0 &&
        el(
          "p",
          {class: "note"},
          "Counted points may lie above the line past a window: a page goes back only when all its positions are out of sight.",
        ),
      asTable("The curve as a table", () =>
        table(
          "Bytes over length, by formula",
          [["Positions"], ["Stored, B"], ["Read by one call, B"]],
          [
            ...new Set([
              1,
              ...windows.flatMap((w) => [w, w + 1]),
              ...Array.from({length: 20}, (_, i) => 2 ** i),
              trace.summary.cached_positions,
              trace.context,
            ]),
          ]
            .filter((n) => n <= trace.context)
            .sort((a, b) => a - b)
            .map((n) => [exact(n), exact(stored(n)), exact(read(n))]),
        ),
      ),
      bytesPart(),
    );
  },
);

function bytesPart() {
  const b = data.bytes;
  if (!b)
    return [
      el("h3", null, "Needed, allocated, touched"),
      missing("The count over real buffers", "--no-bytes left it out"),
    ];
  const compared = b.checks.reduce((sum, check) => sum + check.comparisons, 0);
  return [
    el("h3", null, "Needed, allocated, touched"),
    b.ok
      ? verdict(`Formula and real buffers are equal to the byte in ${plural(compared, "comparison")}.`, true)
      : b.checks
          .filter((check) => !check.passed)
          .map((check) => verdict(`${check.name}: ${check.failure}`, false)),
    el(
      "p",
      {class: "note"},
      `Needed is the formula, stored the live positions in pages of ${exact(b.page_positions)}, allocated the pages themselves, touched what one decode call read.`,
    ),
    table(
      "Bytes at each length",
      [
        ["Positions"],
        ["Where", "text"],
        ["Needed, B"],
        ["Page rounding, B"],
        ["Stored, B"],
        ["Allocated, B"],
        ["Touched, B"],
      ],
      b.lengths.map((l) => [
        exact(l.length),
        l.where,
        exact(l.needed_bytes),
        exact(l.page_rounding_bytes),
        exact(l.stored_bytes),
        exact(l.allocated_bytes),
        exact(l.touched_bytes),
      ]),
    ),
    b.slopes.length > 0 &&
      table(
        "What one more token adds, from real buffers",
        [["From"], ["To"], ["Stored, B/token"], ["Read, B/token"]],
        b.slopes.map((s) => [
          exact(s.from),
          exact(s.to),
          digits(s.stored_bytes_per_token, 9),
          digits(s.touched_bytes_per_token, 9),
        ]),
      ),
    asTable("Every layer as a table", () =>
      table(
        "Bytes by layer",
        [
          ["Positions"],
          ["Layer"],
          ["Kind", "text"],
          ["Role", "text"],
          ["Visible"],
          ["Stored"],
          ["Pages"],
          ["Needed, B"],
          ["Stored, B"],
          ["Allocated, B"],
          ["Touched, B"],
        ],
        b.lengths.flatMap((n) =>
          n.layers.map((l) => [
            exact(n.length),
            exact(l.layer),
            l.kind,
            l.role === "borrower" ? `borrows ${l.owner}` : l.role,
            exact(l.visible_positions),
            exact(l.stored_positions),
            exact(l.pages),
            exact(l.needed_bytes),
            exact(l.stored_bytes),
            exact(l.allocated_bytes),
            exact(l.touched_bytes),
          ]),
        ),
      ),
    ),
  ];
}
