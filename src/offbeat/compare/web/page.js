// Puts the page together, and draws anew whatever depends on a choice.

const data = JSON.parse(document.getElementById("data").textContent);
const by = (id) => document.getElementById(id);
const state = { place: 0, quality: firstQuality(data), x: "seconds", hidden: new Set() };

function showFacts() {
  by("facts").replaceChildren(...data.facts.map(([name, text]) => {
    const wide = name === "command";
    return element("div", { class: wide && "wide" }, element("dt", {}, name), element("dd", {}, wide ? element("code", {}, text) : text));
  }));
}

// The strategies that have a lap here; those that failed have none.
function strategiesHere(things) {
  const here = new Set(things.filter((each) => each.place === state.place).map((each) => each.strategy));
  return [...here].map((strategy) => [strategy, data.strategies[strategy].label]);
}

function showLegend() {
  by("legend").replaceChildren(...strategiesHere(data.curves).map(([strategy, label]) => {
    const pressed = () => String(!state.hidden.has(strategy));
    const chip = element("button", { type: "button", class: "chip", "aria-pressed": pressed() }, swatch(data.strategies[strategy].colour), label);
    chip.addEventListener("click", () => {
      if (!state.hidden.delete(strategy)) state.hidden.add(strategy);
      chip.setAttribute("aria-pressed", pressed());
      showCurves();
    });
    return chip;
  }));
}

function showCurves() {
  if (!state.quality) {
    by("curves").hidden = true;
    by("curves-note").textContent = "No lap was finished.";
    return;
  }
  drawCurves(by("curves"), data, state);
  by("curves-note").textContent = CURVE_NOTES[state.quality];
}

function showBars() {
  drawBars(by("throughput"), data, state, "throughput");
  const shaped = drawBars(by("wire"), data, state, "wire");
  by("wire-box").hidden = !shaped;
  by("bars-note").textContent = shaped ? "" : "The links are not shaped, so there is no share of them to show.";
}

function showTimeline() {
  const chosen = by("timeline-strategy").value;
  by("timeline-box").hidden = chosen === "";
  by("timeline-note").textContent =
    chosen === "" ? "No lap was finished." : drawTimeline(by("timeline"), by("timeline-key"), data, state, Number(chosen));
}

function showCluster() {
  by("cluster-note").textContent = drawCluster(by("cluster"), data, state, Number(by("cluster-strategy").value));
}

function showPlace() {
  fillSelect(by("timeline-strategy"), strategiesHere(data.timelines));
  fillSelect(by("cluster-strategy"), strategiesHere(data.meetings));
  showLegend();
  showCharts();
}

function showCharts() {
  showCurves();
  showBars();
  showTimeline();
  showCluster();
}

showFacts();
drawTable(by("result"), data);
by("explanation").textContent = data.explanation;
fillSelect(by("place"), data.places.map((place, number) => [number, place.label]));
by("place-nav").hidden = data.places.length < 2;
makeSwitch(by("curve-y"), qualitiesOf(data).map((name) => [name, QUALITIES[name].label]), state.quality, (name) => {
  state.quality = name;
  showCurves();
});
makeSwitch(by("curve-x"), [["seconds", "seconds"], ["steps", "steps"]], state.x, (name) => {
  state.x = name;
  showCurves();
});
by("place").addEventListener("change", () => {
  state.place = Number(by("place").value);
  showPlace();
});
by("timeline-strategy").addEventListener("change", showTimeline);
by("cluster-strategy").addEventListener("change", showCluster);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", showCharts);
showPlace();
