// The cluster: nodes around a switch, workers in their nodes, and who meets whom.

const RADIUS = 15, GAP = 8, PAD = 10;

function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawCluster(holder, data, state, strategy) {
  const place = data.places[state.place];
  const found = data.meetings.find((each) => each.place === state.place && each.strategy === strategy);
  const { colour, label } = data.strategies[strategy];
  const nodes = [];
  place.node_of.forEach((node, rank) => (nodes[node] ??= []).push(rank));
  const two = nodes.length === 2; // beside each other, the others in a circle
  const most = Math.max(...nodes.map((ranks) => ranks.length));
  const columns = two && most <= 4 ? 1 : Math.ceil(Math.sqrt(most));
  const rows = Math.ceil(most / columns);
  const wide = columns * (2 * RADIUS + GAP) - GAP + 2 * PAD;
  const high = rows * (2 * RADIUS + GAP) - GAP + 2 * PAD;
  const around = nodes.length === 1 ? 0 : Math.max(two ? 150 : 115, (nodes.length * (Math.hypot(wide, high) + 10)) / (2 * Math.PI));
  const centre = nodes.map((_, node) => {
    const angle = (2 * Math.PI * node) / nodes.length - (two ? Math.PI : Math.PI / 2);
    return [around * Math.cos(angle), around * Math.sin(angle)];
  });
  const at = [];
  nodes.forEach((ranks, node) => ranks.forEach((rank, i) => {
    at[rank] = [
      centre[node][0] - wide / 2 + PAD + RADIUS + (i % columns) * (2 * RADIUS + GAP),
      centre[node][1] - high / 2 + PAD + RADIUS + Math.floor(i / columns) * (2 * RADIUS + GAP),
    ];
  }));
  const links = svg("g"), boxes = svg("g"), edges = svg("g"), circles = svg("g"), speeds = svg("g");
  const joined = nodes.length > 1 && place.link !== null;
  centre.forEach(([x, y], node) => {
    if (joined) {
      links.append(svg("line", { class: "link", x1: 0, y1: 0, x2: x, y2: y }));
      if (nodes.length <= 16) speeds.append(svg("text", { class: "speed", x: 0.5 * x, y: 0.5 * y }, place.link));
    }
    boxes.append(svg("rect", { class: "node", x: x - wide / 2, y: y - high / 2, width: wide, height: high, rx: 10 }));
    boxes.append(svg("text", { x, y: y + (y < -1 ? -high / 2 - 12 : high / 2 + 12) }, `node ${node}`));
  });
  if (joined) speeds.append(svg("rect", { class: "node", x: -28, y: -13, width: 56, height: 26, rx: 6 }), svg("text", { x: 0, y: 0 }, "switch"));
  for (const [one, other] of found.edges) edges.append(meeting(at[one], at[other], colour, found.directed));
  at.forEach(([x, y], rank) => {
    const slow = place.slower[rank] ? `, ${place.slower[rank]} times slower` : "";
    const circle = svg("circle", { cx: x, cy: y, r: RADIUS, fill: colour }, svg("title", {}, `worker ${rank}, node ${place.node_of[rank]}${slow}`));
    circles.append(circle, svg("text", { class: "rank", x, y }, String(rank)));
  });
  const [w, h] = [around + wide / 2 + 12, (two ? 0 : around) + high / 2 + 26];
  const arrow = svg("marker", { id: "arrow", viewBox: "0 0 10 10", refX: 9, refY: 5, markerWidth: 7, markerHeight: 7, orient: "auto" },
    svg("path", { d: "M0 0 10 5 0 10z", fill: colour }));
  const picture = svg("svg", { viewBox: `${-w} ${-h} ${2 * w} ${2 * h}`, role: "img", "aria-label": `cluster, ${label}` },
    svg("defs", {}, arrow), links, boxes, edges, speeds, circles);
  picture.style.maxWidth = `${Math.min(576, 2.4 * w)}px`;
  holder.replaceChildren(picture);
  const link = place.link === null ? "The workers meet on loopback, which is not shaped." :
    `Each node has a link of ${place.link} each way${place.delay ? `, with ${place.delay} s of delay` : ""}.`;
  return `${found.sentence} ${link}`;
}

// Bent a little towards the right of its way, so that there and back are two lines; ends at the rim of the circles.
function meeting([x, y], [u, v], colour, directed) {
  const bend = directed ? 0.16 : 0.1;
  const [mx, my] = [(x + u) / 2 - bend * (v - y), (y + v) / 2 + bend * (u - x)];
  const rim = (px, py) => {
    const far = Math.hypot(mx - px, my - py);
    return [px + ((mx - px) * (RADIUS + 1)) / far, py + ((my - py) * (RADIUS + 1)) / far];
  };
  const [a, b] = [rim(x, y), rim(u, v)];
  const path = svg("path", { class: "meeting", d: `M${a} Q${mx},${my} ${b}`, stroke: colour });
  if (directed) path.setAttribute("marker-end", "url(#arrow)");
  return path;
}
