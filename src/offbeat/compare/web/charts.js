// What all charts have in common: the page's font and colours, light or dark, and nothing that is not needed.

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

function colourOf(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

const TOUCH = matchMedia("(pointer: coarse)").matches; // there a drag scrolls the page

// plotly reads a little HTML in its texts
function plain(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

function axis(more = {}) {
  return {
    gridcolor: colourOf("grid"), linecolor: colourOf("grid"), zeroline: false, automargin: true,
    tickfont: { color: colourOf("faint"), size: 12 }, ...more,
    title: more.title && { text: more.title, font: { color: colourOf("faint"), size: 12 }, standoff: 8 },
  };
}

function draw(holder, traces, layout, config = {}) {
  return Plotly.react(holder, traces, {
    font: { family: FONT, size: 12, color: colourOf("ink") },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 8, r: 12, t: 12, b: 8 }, showlegend: false,
    hoverlabel: { bgcolor: colourOf("card"), bordercolor: colourOf("grid"), font: { family: FONT, color: colourOf("ink") } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: colourOf("faint"), activecolor: colourOf("ink") },
    ...layout,
  }, { responsive: true, displaylogo: false, displayModeBar: false, ...config });
}
