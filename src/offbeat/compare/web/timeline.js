// What every worker did and when. Its own time above, what travels meanwhile below, both in the strategy's colour.

const WHATS = ["computing", "waiting", "communicating", "a step"]; // as in timeline.py
const STEPS_SHOWN = 12; // at first
const LANE_PIXELS = 38;

function drawTimeline(holder, key, data, state, strategy) {
  const found = data.timelines.find((each) => each.place === state.place && each.strategy === strategy);
  const { colour } = data.strategies[strategy];
  const { node_of } = data.places[state.place];
  const looks = [
    { color: colour },
    { color: colourOf("wait"), pattern: { shape: "/", size: 5, solidity: 0.25, fgcolor: colourOf("faint"), bgcolor: colourOf("wait") } },
    { color: paler(colour) },
    { color: colour },
  ];
  const thin = 0.28 / found.tracks; // those in flight at once lie beside each other
  const traces = WHATS.map((what, kind) => {
    const bars = found.workers.flatMap((each, rank) => each.filter((bar) => bar[0] === kind).map((bar) => ({ rank, bar })));
    const below = kind === 2;
    return {
      type: "bar", orientation: "h", name: what,
      base: bars.map(({ bar }) => bar[1]), x: bars.map(({ bar }) => bar[2]),
      y: bars.map(({ rank, bar }) => rank + (below ? 0.13 + (bar[4] + 0.5) * thin : -0.17)), width: below ? 0.92 * thin : 0.5,
      marker: { ...looks[kind], line: { width: kind === 1 ? 0 : 0.6, color: colourOf("paper") } },
      customdata: bars.map(({ rank, bar }) => [rank, plain(data.words[bar[3]]), milliseconds(bar[2]), bar[1]]),
      hovertemplate: "<b>%{customdata[1]}</b><br>worker %{customdata[0]}, %{customdata[2]}, from %{customdata[3]:.3f} s<extra></extra>",
    };
  }).filter((trace) => trace.x.length);
  key.replaceChildren(...traces.map(({ name }) => {
    const mark = swatch(colour);
    mark.classList.add(name.replace(" ", "-"));
    if (name === "communicating") mark.style.background = paler(colour);
    return element("span", {}, mark, name);
  }));
  const end = Math.max(...found.workers.flatMap((bars) => bars.map((bar) => bar[1] + bar[2])));
  const wide = Math.min(STEPS_SHOWN * found.step_seconds, end - found.since);
  const from = found.since + Math.max(0, (end - found.since - wide) / 2);
  const lanes = found.workers.length;
  holder.style.height = `${LANE_PIXELS * lanes + 82}px`;
  const several = new Set(node_of).size > 1 && new Set(node_of).size < node_of.length;
  draw(holder, traces, {
    barmode: "overlay", margin: { l: 8, r: 12, t: 30, b: 8 },
    xaxis: axis({ title: "seconds", range: [from, from + wide], showgrid: false }),
    yaxis: axis({ tickmode: "array", tickvals: [...node_of.keys()], ticktext: node_of.map((node, rank) => (several ? `${rank} (node ${node})` : `worker ${rank}`)),
      range: [lanes - 0.5, -0.5], fixedrange: true, showgrid: false }),
    dragmode: "pan", hovermode: "closest", uirevision: `${state.place} ${strategy}`,
  }, { displayModeBar: true, modeBarButtons: [["zoomIn2d", "zoomOut2d", "autoScale2d", "resetScale2d"]] });
  const part = found.since > found.step_seconds ? ` What was before second ${found.since.toFixed(1)} is left out.` : "";
  const rival = traces.some((trace) => trace.name === WHATS[3]) ? " A rival does not tell what it does within a step." : "";
  return `Seed ${found.seed}. Drag to move, the buttons above zoom.${part}${rival}`;
}

// Half of the colour and half of the paper; transparent bars would darken where they overlap.
function paler(colour) {
  const parts = (text) => [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
  const paper = parts(colourOf("paper"));
  return `rgb(${parts(colour).map((part, i) => Math.round((part + paper[i]) / 2))})`;
}

function milliseconds(seconds) {
  return seconds < 1 ? `${Number((1000 * seconds).toPrecision(3))} ms` : `${Number(seconds.toPrecision(3))} s`;
}
