// Line charts in SVG, drawn at the width that there is, so that text keeps its size on a phone.

function niceStep(span, count) {
  const raw = span / Math.max(1, count),
    power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
}
function binaryStep(span, count) {
  let step = 2 ** Math.floor(Math.log2(span / Math.max(1, count)));
  while (span / step > count) step *= 2;
  return Math.max(1, step);
}
// Axis values and where they lie. kind: linear | binary (steps of powers of two) | log
function scale(kind, low, high, from, to, count) {
  if (kind === "log") {
    const a = Math.log10(low),
      b = Math.log10(high) > a ? Math.log10(high) : a + 1;
    const ticks = [];
    for (let p = Math.ceil(a - 1e-9); p <= Math.floor(b + 1e-9); ++p) ticks.push(10 ** p);
    if (ticks.length < 2) ticks.splice(0, ticks.length, low, high);
    const every = Math.ceil(ticks.length / Math.max(2, count));
    return {
      at: (v) => from + ((Math.log10(Math.max(v, low * 1e-3)) - a) / (b - a)) * (to - from),
      ticks: ticks.filter((_, i) => i % every === 0),
    };
  }
  const span = high - low || 1,
    step = kind === "binary" ? binaryStep(span, count) : niceStep(span, count),
    ticks = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-6; v += step)
    ticks.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return {at: (v) => from + ((v - low) / span) * (to - from), ticks};
}

// options: {label, height, x: {kind, low, high, format, title}, y: {...}, series: [{points: [[x, y, low?, high?]], colour, line, dots, dashed}],
// marks: [{x, text, colour}]}. Answers the element; its `show` draws other options.
function lineChart(options) {
  const box = el("div", {class: "chart"});
  let current = options;
  const draw = (width) => {
    const o = current,
      height = o.height || Math.round(Math.min(360, Math.max(230, width * 0.42)));
    const y = scale(o.y.kind, o.y.low, o.y.high, height - 44, 30, Math.max(4, Math.floor(height / 52)));
    const left = Math.min(92, 14 + Math.max(...y.ticks.map((t) => o.y.format(t).length)) * 6.7);
    const x = scale(
      o.x.kind,
      o.x.low,
      o.x.high,
      left,
      width - 16,
      Math.max(2, Math.floor(width / (o.x.kind === "log" ? 90 : 110))),
    );
    const parts = [
      svg("text", {x: 0, y: 12, class: "strong"}, o.y.title),
      svg("text", {x: width, y: height - 2, "text-anchor": "end", class: "strong"}, o.x.title),
    ];
    for (const t of y.ticks) {
      parts.push(
        svg("line", {x1: left, x2: width - 10, y1: y.at(t), y2: y.at(t), class: "grid"}),
        svg("text", {x: left - 7, y: y.at(t) + 4, "text-anchor": "end"}, o.y.format(t)),
      );
    }
    parts.push(svg("line", {x1: left, x2: width - 10, y1: height - 44, y2: height - 44, class: "axis"}));
    for (const t of x.ticks) {
      const at = x.at(t),
        anchor = at > width - 40 ? "end" : "middle";
      parts.push(
        svg("line", {x1: at, x2: at, y1: height - 44, y2: height - 39, class: "axis"}),
        svg(
          "text",
          {x: anchor === "end" ? Math.min(at + 14, width) : at, y: height - 24, "text-anchor": anchor},
          o.x.format(t),
        ),
      );
    }
    if (o.y.low < 0)
      parts.push(svg("line", {x1: left, x2: width - 10, y1: y.at(0), y2: y.at(0), class: "axis"}));
    let row = 0;
    for (const m of o.marks || []) {
      const at = x.at(m.x);
      if (!(at >= left && at <= width - 8)) continue;
      const end = at > width * 0.6;
      parts.push(
        svg("line", {
          x1: at,
          x2: at,
          y1: 22,
          y2: height - 44,
          stroke: `var(--${m.colour || "faint"})`,
          class: "dashed",
        }),
        svg(
          "text",
          {x: at + (end ? -6 : 6), y: 32 + 15 * row++, "text-anchor": end ? "end" : "start"},
          m.text,
        ),
      );
    }
    for (const s of o.series) {
      const ink = `var(--${s.colour})`;
      if (s.line) {
        parts.push(
          svg("polyline", {
            class: `line${s.dashed ? " dashed" : ""}`,
            stroke: ink,
            points: s.points.map((p) => `${x.at(p[0]).toFixed(1)},${y.at(p[1]).toFixed(1)}`).join(" "),
          }),
        );
      }
      if (s.stems) {
        for (const p of s.points)
          parts.push(
            svg("line", {
              x1: x.at(p[0]),
              x2: x.at(p[0]),
              y1: y.at(0),
              y2: y.at(p[1]),
              stroke: ink,
              "stroke-width": 2,
            }),
          );
      }
      if (s.dots || s.stems) {
        for (const p of s.points) {
          if (p.length > 3)
            parts.push(
              svg("line", {
                x1: x.at(p[0]),
                x2: x.at(p[0]),
                y1: y.at(p[2]),
                y2: y.at(p[3]),
                stroke: ink,
                "stroke-width": 1.5,
              }),
            );
          parts.push(
            svg(
              "circle",
              {
                cx: x.at(p[0]),
                cy: y.at(p[1]),
                r: s.points.length > 200 ? 1.6 : s.radius || 3.6,
                fill: s.hollow ? "var(--panel)" : ink,
                stroke: ink,
                "stroke-width": 1.5,
              },
              svg("title", null, `${o.x.format(p[0])}: ${o.y.format(p[1])}`),
            ),
          );
        }
      }
    }
    replace(
      box,
      svg(
        "svg",
        {viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": o.label},
        parts,
      ),
    );
  };
  const again = drawn(box, draw);
  box.show = (next) => {
    current = next;
    again();
  };
  return box;
}
