// Accuracy or loss against seconds or steps: a line per repeat, a colour per strategy.

const QUALITIES = {
  accuracy: { label: "accuracy", of: (curve) => [curve.test, curve.test.accuracy], title: "test accuracy" },
  test: { label: "test loss", of: (curve) => [curve.test, curve.test.loss], title: "test loss" },
  training: { label: "training loss", of: (curve) => [curve.training, curve.training.loss], title: "training loss" },
};
const CURVE_NOTES = {
  accuracy: "Of the mean of all workers' weights.",
  test: "Of the mean of all workers' weights.",
  training: "Mean over the workers, before their step; over a few steps where there are many.",
};

// Those for which there are numbers; the first that was followed along the way is shown first.
function qualitiesOf(data) {
  const known = (name) => data.curves.some((curve) => QUALITIES[name].of(curve)[1].some((value) => value !== null));
  return Object.keys(QUALITIES).filter(known);
}

function firstQuality(data) {
  const points = (name) => Math.max(0, ...data.curves.map((curve) => QUALITIES[name].of(curve)[1].length));
  return qualitiesOf(data).find((name) => points(name) > 2) ?? qualitiesOf(data)[0];
}

function drawCurves(holder, data, state) {
  const { of, title } = QUALITIES[state.quality];
  const traces = data.curves.filter((curve) => curve.place === state.place).map((curve) => {
    const { label, colour } = data.strategies[curve.strategy];
    const [points, values] = of(curve);
    const repeats = data.curves.filter((other) => other.place === curve.place && other.strategy === curve.strategy).length;
    const value = state.quality === "accuracy" ? "%{y:.1%}" : "%{y:.4g}";
    return {
      type: "scatter", mode: values.length > 60 ? "lines" : "lines+markers", x: points[state.x], y: values,
      visible: !state.hidden.has(curve.strategy),
      line: { color: colour, width: 2 }, marker: { color: colour, size: 5 }, opacity: repeats > 1 ? 0.8 : 1,
      hovertemplate: `<b>${plain(label)}</b>${repeats > 1 ? `, repeat ${curve.repeat}` : ""}<br>${value} after %{x:.4g} ${state.x}<extra></extra>`,
    };
  });
  const target = state.quality === "accuracy" ? data.target : null;
  const shapes = target === null ? [] : [{
    type: "line", xref: "paper", x0: 0, x1: 1, y0: target, y1: target, line: { color: colourOf("faint"), width: 1, dash: "dot" },
  }];
  const annotations = target === null ? [] : [{
    xref: "paper", x: 1, y: target, text: `target ${Number((100 * target).toFixed(2))} %`, showarrow: false, xanchor: "right", yanchor: "bottom",
    font: { color: colourOf("faint"), size: 11 },
  }];
  draw(holder, traces, {
    xaxis: axis({ title: state.x, rangemode: "tozero", showgrid: false }),
    yaxis: axis({ title, tickformat: state.quality === "accuracy" ? ".0%" : undefined }),
    shapes, annotations, hovermode: "closest", dragmode: TOUCH ? false : "zoom", uirevision: `${state.place} ${state.quality} ${state.x}`,
  });
}
