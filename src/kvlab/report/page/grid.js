// A grid of layers × positions on a canvas: a cell or many per pixel, a cursor that mouse and arrow keys move, and what it stands on in words.

// options: {label, rows, columns, rowName(r), columnName(c), paint(r, c0, c1) → colour of columns [c0, c1), describe(r, c) → nodes, height?,
// lines(r)?: columns where a thin line separates cells}
function grid(options) {
  const canvas = el("canvas", {"aria-hidden": "true"});
  const cursor = el("div", {class: "cursor", hidden: true});
  const holder = el(
    "div",
    {
      class: "canvas",
      role: "application",
      tabindex: 0,
      "aria-roledescription": "map of cells",
      "aria-label": `${options.label}. Arrow keys move by one cell, page up and down by a tenth of the width, home and end to the edges.`,
    },
    canvas,
    cursor,
  );
  const names = el("div", {class: "rows", "aria-hidden": "true"}),
    columns = el("div", {class: "columns", "aria-hidden": "true"});
  const readout = el(
    "output",
    {class: "readout", "aria-live": "polite"},
    "Point at a cell, or use the arrow keys.",
  );
  const box = el("div", null, el("div", {class: "map"}, names, holder, columns), readout);
  let o = options,
    row = 0,
    column = 0,
    placed = false,
    width = 0,
    cellHeight = 0;

  function draw(full) {
    width = holder.clientWidth || full;
    const ratio = Math.min(3, window.devicePixelRatio || 1);
    cellHeight = Math.max(4, Math.min(26, Math.floor((o.height || 330) / o.rows)));
    const height = cellHeight * o.rows,
      pixels = Math.max(1, Math.round(width * ratio));
    canvas.width = pixels;
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const pen = canvas.getContext("2d"),
      gap = cellHeight > 7 ? ratio : 0;
    const rowPixels = cellHeight * ratio,
      cells = Math.min(o.columns, pixels);
    for (let r = 0; r < o.rows; ++r) {
      let start = 0,
        ink = null;
      const flush = (end) => {
        if (ink) {
          pen.fillStyle = ink;
          pen.fillRect(start, r * rowPixels, end - start, rowPixels - gap);
        }
        start = end;
      };
      for (let i = 0; i < cells; ++i) {
        const next = o.paint(
          r,
          Math.floor((i * o.columns) / cells),
          Math.max(Math.floor(((i + 1) * o.columns) / cells), Math.floor((i * o.columns) / cells) + 1),
        );
        if (next !== ink) {
          flush(Math.round((i * pixels) / cells));
          ink = next;
        }
      }
      flush(pixels);
      const lines = o.lines
        ? o.lines(r)
        : o.columns <= width / 9
          ? Array.from({length: o.columns}, (_, c) => c)
          : [];
      pen.fillStyle = colour("panel");
      for (const c of lines)
        if (c > 0 && c < o.columns)
          pen.fillRect(Math.round((c * pixels) / o.columns) - (ratio >> 1), r * rowPixels, ratio, rowPixels);
    }
    const every = Math.ceil(15 / cellHeight);
    names.style.height = `${height}px`;
    replace(
      names,
      Array.from({length: o.rows}, (_, r) =>
        r % every ? null : el("span", {style: `top:${(r + 0.5) * cellHeight}px`}, o.rowName(r)),
      ),
    );
    const ends = o.columns > 2 ? [0, Math.floor((o.columns - 1) / 2), o.columns - 1] : [0, o.columns - 1];
    replace(
      columns,
      [...new Set(ends)].map((c) => el("span", null, o.columnName(c))),
    );
    place();
  }
  function place() {
    cursor.hidden = !placed;
    if (!placed) return;
    row = Math.min(row, o.rows - 1);
    column = Math.min(column, o.columns - 1);
    const w = Math.max(4, width / o.columns);
    cursor.style.cssText = `left:${Math.min((column * width) / o.columns, width - w)}px;top:${row * cellHeight}px;width:${w}px;height:${cellHeight}px`;
    replace(readout, o.describe(row, column));
  }
  function move(r, c) {
    row = Math.max(0, Math.min(o.rows - 1, r));
    column = Math.max(0, Math.min(o.columns - 1, c));
    placed = true;
    place();
  }
  holder.addEventListener("keydown", (event) => {
    const page = Math.max(1, Math.round(o.columns / 10));
    const to = {
      ArrowLeft: [row, column - 1],
      ArrowRight: [row, column + 1],
      ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column],
      PageUp: [row, column - page],
      PageDown: [row, column + page],
      Home: [row, 0],
      End: [row, o.columns - 1],
    }[event.key];
    if (!to || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    placed ? move(...to) : move(row, column);
  });
  holder.addEventListener("focus", () => {
    if (!placed && holder.matches(":focus-visible")) move(row, column);
  });
  canvas.addEventListener("pointermove", (event) => point(event));
  canvas.addEventListener("pointerdown", (event) => point(event));
  function point(event) {
    const area = canvas.getBoundingClientRect();
    move(
      Math.floor((event.clientY - area.top) / cellHeight),
      Math.floor(((event.clientX - area.left) / area.width) * o.columns),
    );
  }
  const again = drawn(holder, draw);
  box.show = (next) => {
    o = next;
    holder.setAttribute("aria-label", `${next.label}. Arrow keys move by one cell.`);
    again();
  };
  box.redraw = again;
  return box;
}

// A number in [0, 1] between three colours: good, worth a look, bad.
function heat(share) {
  const stops = ["heat-0", "heat-1", "heat-2"].map((n) => colour(n).split(/\s+/).map(Number));
  return (t) => {
    const at = Math.max(0, Math.min(1, t)) * 2,
      i = Math.min(1, Math.floor(at)),
      f = at - i;
    return `rgb(${stops[i].map((a, k) => Math.round(a + (stops[i + 1][k] - a) * f)).join(" ")})`;
  };
}
