// Horizontal bars, one per strategy: the mean of its repeats, and a line from the lowest to the highest.

function drawBars(holder, data, state, head) {
  const number = data.columns.indexOf(head);
  const rows = data.rows.filter((row) => row.place === state.place && row.values[number].length);
  const means = rows.map((row) => mean(row.values[number]));
  const several = rows.some((row) => row.values[number].length > 1);
  const top = Math.max(1, ...rows.flatMap((row) => row.values[number]));
  holder.style.height = `${34 * rows.length + 46}px`;
  const labels = rows.map((row) => plain(data.strategies[row.strategy].label));
  draw(holder, [{
    type: "bar", orientation: "h", x: means, y: rows.map((_, place) => place), width: 0.64,
    marker: { color: rows.map((row) => data.strategies[row.strategy].colour) },
    error_x: {
      visible: several, type: "data", symmetric: false, color: colourOf("ink"), thickness: 1.4, width: 3,
      array: rows.map((row, i) => Math.max(...row.values[number]) - means[i]),
      arrayminus: rows.map((row, i) => means[i] - Math.min(...row.values[number])),
    },
    customdata: rows.map((row, i) => [labels[i], row.cells[number]]),
    hovertemplate: "<b>%{customdata[0]}</b><br>%{customdata[1]}<extra></extra>",
  }], {
    xaxis: axis({ range: [0, 1.02 * top], fixedrange: true, tickformat: ".1f", nticks: 6 }),
    yaxis: axis({ tickmode: "array", tickvals: rows.map((_, place) => place), ticktext: rows.map((row, i) => `${labels[i]}  <b>${row.cells[number].split(" ")[0]}</b>`),
      range: [rows.length - 0.5, -0.5], fixedrange: true, showgrid: false, tickfont: { color: colourOf("ink"), size: 12 } }),
    hovermode: "closest", dragmode: false,
  });
  return rows.length;
}
