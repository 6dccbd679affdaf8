// Decode time over the bytes of the cache that a call reads: measured, fitted, predicted, and what is left over.
panel(
  "roofline",
  "Time over bytes",
  "Seconds of one decode call over the bytes of K and V that it reads, against what the memory of this machine can deliver.",
  (body) => {
    const r = data.roofline;
    if (!r)
      return replace(
        body,
        missing(
          "The roofline",
          data.without_timings ? "--no-timings leaves out all that is measured" : "--no-roofline left it out",
        ),
      );
    let run = r.runs[0];
    const panelBody = el("div");
    const top = (x) =>
      Math.max(...x.lengths.map((l) => Math.max(l.p90_seconds, l.predicted_seconds.total))) * 1.08;
    const wide = (x) => Math.max(...x.lengths.map((l) => l.kv_bytes_per_step)) * 1.04;
    const fitted = (fit, x) => [
      [0, fit.intercept_seconds],
      [x, fit.intercept_seconds + fit.slope_seconds_per_byte * x],
    ];
    const hues = ["model", "bad"];
    function show() {
      const fit = run.fit,
        x = wide(run),
        high = Math.max(
          top(run),
          ...run.ablations.flatMap((a) => a.lengths.map((l) => l.p90_seconds * 1.05)),
        );
      const xAxis = {kind: "binary", low: 0, high: x, format: bytes, title: "K and V read per call"};
      const measured = run.lengths.map((l) => [
        l.kv_bytes_per_step,
        l.median_seconds,
        l.p10_seconds,
        l.p90_seconds,
      ]);
      const main = lineChart({
        label: `Decode time over bytes read with ${plural(run.threads, "thread")}: measured, fitted and predicted`,
        x: xAxis,
        y: {kind: "linear", low: 0, high, format: seconds, title: "seconds per decode call"},
        series: [
          fit && {points: fitted(fit, x), colour: "computed", line: true},
          {
            points: run.lengths.map((l) => [l.kv_bytes_per_step, l.predicted_seconds.total]),
            colour: "reused",
            line: true,
            dashed: true,
          },
          ...run.ablations.map((a, i) => ({
            points: a.lengths.map((l) => [
              run.lengths.find((m) => m.length === l.length)?.kv_bytes_per_step ?? 0,
              l.median_seconds,
              l.p10_seconds,
              l.p90_seconds,
            ]),
            colour: hues[i % 2],
            line: true,
            dots: true,
          })),
          {points: measured, colour: "computed", dots: true},
        ].filter(Boolean),
      });
      const residuals = run.lengths.filter(
          (l) => l.residual_seconds !== null && l.residual_seconds !== undefined,
        ),
        most = Math.max(1e-9, ...residuals.map((l) => Math.abs(l.residual_seconds))) * 1.3;
      const left =
        residuals.length > 0 &&
        lineChart({
          label: "Residuals of the fit over bytes read",
          height: 180,
          x: xAxis,
          y: {
            kind: "linear",
            low: -most,
            high: most,
            format: seconds,
            title: "residual: measured less fitted",
          },
          series: [
            {
              points: residuals.map((l) => [l.kv_bytes_per_step, l.residual_seconds]),
              colour: "computed",
              stems: true,
            },
          ],
        });
      replace(
        panelBody,
        run.verdict &&
          run.verdict.sentences.length > 0 && [
            verdict(run.verdict.sentences[0]),
            el(
              "ul",
              {class: "note"},
              run.verdict.sentences.slice(1).map((s) => el("li", null, s)),
            ),
          ],
        fit &&
          el(
            "dl",
            {class: "facts"},
            [
              [
                "passes over the cache",
                digits(fit.passes),
                `at ${rate(fit.bandwidth_bytes_per_s)} of reading`,
              ],
              ["effective bandwidth", rate(fit.effective_bytes_per_s), "slope of the fit"],
              [
                "fixed time",
                seconds(fit.intercept_seconds),
                `${seconds(fit.weights_seconds)} weights, ${seconds(fit.overhead_seconds)} overhead`,
              ],
              ["R²", digits(fit.r2, 4), `${plural(run.lengths.length, "length")}`],
            ].map(([k, v, small]) =>
              el("div", null, el("dt", null, k), el("dd", null, v, el("small", null, small))),
            ),
          ),
        main,
        legend(
          [
            ["background:var(--computed);border-radius:50%", "measured: median, bar from p10 to p90"],
            fit && ["bar background:var(--computed)", "fitted"],
            ["bar background:var(--reused)", "predicted from bytes and bandwidth"],
            ...run.ablations.map((a, i) => [
              `bar background:var(--${hues[i % 2]})`,
              `${a.name}: ${digits(a.measured_passes)} passes, expected ${digits(a.expected_passes)}`,
            ]),
          ].filter(Boolean),
        ),
        left || el("p", {class: "note"}, "One length alone has no fit, and no residuals."),
        run.drift &&
          el(
            "p",
            {class: `note ${run.drift.warning ? "bad-text" : ""}`},
            `Drift: ${exact(run.drift.length)} positions took ${seconds(run.drift.first_seconds)} at first and ${seconds(run.drift.again_seconds)} at the end (${digits(run.drift.change * 100, 2)} %)${run.drift.warning ? "; the machine was not steady" : ""}.`,
          ),
        run.lengths.some((l) => l.in_last_level_cache) &&
          el(
            "p",
            {class: "note"},
            "Weights and cache fit into the last level cache at some lengths; the prediction there takes the bandwidth of that working set.",
          ),
        asTable("Lengths as a table", () =>
          table(
            `Decode calls, ${plural(run.threads, "thread")}`,
            [
              ["Positions"],
              ["K/V read, B"],
              ["Weights read, B"],
              ["Median"],
              ["p10"],
              ["p90"],
              ["Predicted"],
              ["Predicted / measured"],
              ["Fitted"],
              ["Residual"],
            ],
            run.lengths.map((l) => [
              exact(l.length),
              exact(l.kv_bytes_per_step),
              exact(l.weight_bytes_per_step),
              seconds(l.median_seconds),
              seconds(l.p10_seconds),
              seconds(l.p90_seconds),
              seconds(l.predicted_seconds.total),
              digits(l.predicted_to_measured),
              seconds(l.fitted_seconds),
              seconds(l.residual_seconds),
            ]),
          ),
        ),
        asTable("Components as a table", () =>
          table(
            "Predicted and measured by component",
            [
              ["Positions"],
              ["Weights, predicted"],
              ["Head, predicted"],
              ["K and V, predicted"],
              ["Attention, measured"],
              ["Head, measured"],
              ["Rest, measured"],
              ["Overhead"],
            ],
            run.lengths.map((l) => [
              exact(l.length),
              seconds(l.predicted_seconds.weights),
              seconds(l.predicted_seconds.head),
              seconds(l.predicted_seconds.kv),
              seconds(l.measured_seconds?.attention),
              seconds(l.measured_seconds?.head),
              seconds(l.measured_seconds?.rest),
              seconds(l.overhead_seconds),
            ]),
          ),
        ),
      );
    }
    const pick =
      r.runs.length > 1 &&
      tabs(
        "Threads",
        r.runs.map((x) => plural(x.threads, "thread")),
        (i) => {
          run = r.runs[i];
          show();
        },
      );
    if (pick) pick.choose(0);
    else show();
    replace(
      body,
      pick,
      panelBody,
      r.plan.left_out.map((l) => el("p", {class: "note"}, `Left out: ${l.why}.`)),
      bandwidthPart(r),
    );
  },
);

function bandwidthPart(r) {
  const per = r.machine.bandwidth.filter((b) => b.sweep.length > 1);
  if (!per.length) return null;
  const points = per.flatMap((b) => b.sweep),
    hues = ["reused", "read", "computed", "picked"];
  return [
    el("h3", null, "What this machine reads per second"),
    lineChart({
      label: "Read bandwidth over the size of the working set",
      height: 230,
      x: {
        kind: "log",
        low: Math.min(...points.map((p) => p.bytes)),
        high: Math.max(...points.map((p) => p.bytes)),
        format: (v) => scaled(v, 1000, ["B", "kB", "MB", "GB"], 2),
        title: "working set",
      },
      y: {
        kind: "linear",
        low: 0,
        high: Math.max(...points.map((p) => p.best_bytes_per_s)) * 1.08,
        format: rate,
        title: "bytes per second, median",
      },
      series: per.map((b, i) => ({
        points: b.sweep.map((p) => [p.bytes, p.median_bytes_per_s]),
        colour: hues[i % 4],
        line: true,
        dots: true,
      })),
      marks: r.machine.last_level_bytes
        ? [{x: r.machine.last_level_bytes, text: `last level cache, ${bytes(r.machine.last_level_bytes)}`}]
        : [],
    }),
    legend(per.map((b, i) => [`bar background:var(--${hues[i % 4]})`, plural(b.threads, "thread")])),
    r.machine.probe_note && el("p", {class: "note"}, r.machine.probe_note),
    asTable("Bandwidth as a table", () =>
      table(
        "Read bandwidth",
        [["Threads"], ["Working set"], ["Median"], ["Best"]],
        per.flatMap((b) =>
          b.sweep.map((p) => [
            exact(b.threads),
            bytes(p.bytes),
            rate(p.median_bytes_per_s),
            rate(p.best_bytes_per_s),
          ]),
        ),
      ),
    ),
  ];
}
