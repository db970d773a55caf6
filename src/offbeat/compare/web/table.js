// The result: a row per contestant, link and number of workers; a click on a head sorts.

function drawTable(table, data) {
  const columns = [
    { head: "strategy", words: true, key: (row) => data.strategies[row.strategy].label },
    { head: "workers", key: (row) => data.places[row.place].node_of.length },
    { head: "link", words: true, key: (row) => data.places[row.place].bytes_per_second ?? Infinity },
    ...data.columns.map((head, number) => ({
      head,
      key: (row) => (row.values[number].length ? mean(row.values[number]) : null),
    })),
  ];
  const heads = columns.map((column) => {
    const button = element("button", { type: "button" }, column.head);
    const cell = element("th", { class: column.words && "words", scope: "col" }, button);
    button.addEventListener("click", () => {
      const order = cell.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", order);
      fill(sorted(data.rows, column.key, order === "ascending" ? 1 : -1));
    });
    return cell;
  });
  const body = element("tbody");
  const fill = (rows) => body.replaceChildren(...rows.map((row) => tableRow(row, data)));
  table.replaceChildren(element("thead", {}, element("tr", {}, ...heads)), body);
  fill(data.rows);
}

// Those without a value come last, whichever way round.
function sorted(rows, key, sign) {
  return [...rows].sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "string" ? a.localeCompare(b) : a === b ? 0 : a < b ? -1 : 1);
  });
}

function tableRow(row, data) {
  const { label, colour, spec } = data.strategies[row.strategy];
  const place = data.places[row.place];
  const name = element("td", { class: "words", title: spec }, swatch(colour), label);
  const start = [
    name,
    element("td", {}, String(place.node_of.length)),
    element("td", { class: "words" }, place.link ?? "loopback"),
  ];
  if (row.failed) {
    const reason = `could not run: ${row.failures.join("; ")}`;
    return element("tr", {}, ...start, element("td", { class: "reason", colspan: data.columns.length }, reason));
  }
  for (const failure of row.failures) name.append(element("small", { class: "reason" }, `could not always run: ${failure}`));
  return element("tr", {}, ...start, ...row.cells.map(tableCell));
}

// "0.97 (0.96..0.98)": the range stands below the mean.
function tableCell(text) {
  const [, first, rest] = /^(.*?)(?: \((.*))?$/.exec(text);
  return element("td", {}, first, ...(rest ? [element("small", {}, rest.replace(")", ""))] : []));
}
