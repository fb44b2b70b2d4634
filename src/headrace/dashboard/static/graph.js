// The graph of a query: boxes with live figures, coloured by utilisation; from left to right, or from top to bottom where it is narrow.

import { counted, html, known, percent, short, size, useEffect, useRef, useState } from "./ui.js";

const NARROW = 560, GAP = 30, GUTTER = 26;
const TALL = { stateful: 100, source: 84, stateless: 66, sink: 68 };

// Utilisation as a colour between calm and hot; mixed in CSS, so that it suits both themes.
const heat = (busy) => (known(busy) ? { "--heat": `${Math.round(Math.min(1, busy) * 100)}%` } : {});

function edgePath(points) {
  let [x, y] = points[0], path = `M${x},${y}`;
  for (const [toX, toY] of points.slice(1)) {
    const middle = (x + toX) / 2;
    path += Math.abs(toY - y) < 0.05 ? `H${toX}` : `C${middle},${y} ${middle},${toY} ${toX},${toY}`;
    [x, y] = [toX, toY];
  }
  return path;
}

// Boxes from top to bottom: each after all that it reads, and a chain as a whole before the next one.
function downwards(graph) {
  const left = new Map(graph.nodes.map((each) => [each.id, graph.edges.filter((edge) => edge.target === each.id).length]));
  const ready = graph.nodes.filter((each) => !left.get(each.id)).sort((a, b) => b.y - a.y), order = [];
  while (ready.length) {
    const node = ready.pop();
    order.push(node);
    const next = graph.edges.filter((each) => each.source === node.id).map((each) => graph.nodes.find((one) => one.id === each.target));
    for (const each of next.sort((a, b) => b.y - a.y)) {
      left.set(each.id, left.get(each.id) - 1);
      if (!left.get(each.id)) ready.push(each);
    }
  }
  return order;
}

// The same graph in one column; edges go along the left side where they skip boxes.
function stacked(graph, width) {
  const order = downwards(graph);
  const at = new Map(order.map((each, number) => [each.id, number]));
  const inset = graph.edges.some((each) => at.get(each.target) - at.get(each.source) > 1) ? GUTTER : 0;
  let below = 2;
  const nodes = order.map((each) => {
    const y = below;
    below += TALL[each.kind] + GAP;
    return { ...each, x: 1 + inset, y, width: width - 2 - inset, height: TALL[each.kind] };
  });
  const place = new Map(nodes.map((each) => [each.id, each]));
  const edges = graph.edges.map((each) => {
    const from = place.get(each.source), to = place.get(each.target);
    const skips = at.get(each.target) - at.get(each.source) > 1;
    const x = from.x + from.width / 2;
    const path = skips
      ? `M${from.x},${from.y + from.height - 16}C${from.x - inset},${from.y + from.height - 16} ${to.x - inset},${to.y + 20} ${to.x - 7},${to.y + 20}`
      : `M${x},${from.y + from.height}V${to.y - 8}`;
    const head = skips ? `M${to.x - 1},${to.y + 20}l-9,-5v10z` : `M${x},${to.y - 1}l-5,-9h10z`;
    return { ...each, path, head, label: "" };
  });
  return { nodes, edges, width, height: below - GAP + 2 };
}

function lined(graph) {
  const edges = graph.edges.map((each) => {
    const [endX, endY] = each.points.at(-1);
    return { ...each, path: edgePath([...each.points.slice(0, -1), [endX - 7, endY]]), head: `M${endX - 1},${endY}l-9,-4.5v9z` };
  });
  return { nodes: graph.nodes, edges, width: graph.width, height: graph.height };
}

// What a box says, from the newest values.
function lines(node, now) {
  const op = now.operators[node.id];
  if (node.kind === "source") return [known(now.sources[node.id]) ? `${short(now.sources[node.id])} rows/s` : "", known(now.backlog) && now.oneSource ? `backlog ${short(now.backlog)}` : ""];
  if (node.kind === "sink") return [known(now.sinks[node.id]) ? `${short(now.sinks[node.id])} rows/s` : ""];
  if (node.kind === "stateful" && now.planned) return [counted(now.planned[node.id], "instance"), "rows by key, over Arrow"];
  if (node.kind !== "stateful" || !op) return [node.kind === "stateless" ? "in the JVM" : ""];
  const ratio = op.rowsIn > 0 ? `, × ${short(op.rowsOut / op.rowsIn)}` : "";
  return [
    `${short(op.rowsIn)} → ${short(op.rowsOut)} rows/s${ratio}`,
    `${counted(op.instances, "instance")}${op.homes ? ` on ${counted(op.homes, "executor")}` : ""}`,
    `state ${short(op.rows)} rows, ${size(op.bytes)}`,
  ];
}

export function Graph({ graph, now, picked, onPick }) {
  const frame = useRef(null);
  const [room, setRoom] = useState(1000);
  useEffect(() => {
    const node = frame.current;
    const watcher = new ResizeObserver(() => node.clientWidth && setRoom(node.clientWidth));
    watcher.observe(node);
    return () => watcher.disconnect();
  }, []);
  const narrow = room < NARROW || graph.width > room * 1.5;
  const drawn = narrow ? stacked(graph, room) : lined(graph);
  const busiest = Object.entries(now.operators).filter(([, each]) => known(each.max)).sort((a, b) => b[1].max - a[1].max)[0];
  const press = (event, id) => {
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      onPick(id);
    }
  };
  return html`<div class="graph" ref=${frame}>
    <svg viewBox=${`0 0 ${drawn.width} ${drawn.height}`} width=${Math.min(drawn.width, room)} role="group" aria-label="the query as a graph">
      ${drawn.edges.map((each) => html`<g class="edge"><path class="wire" d=${each.path} stroke-width=${thickness(each, now)} /><path class="tip" d=${each.head} /></g>`)}
      ${drawn.nodes.map((node) => {
        const op = now.operators[node.id];
        const hot = busiest && busiest[0] === node.id && busiest[1].max > 0.5;
        return html`<g class=${`node ${node.kind} ${picked === node.id ? "picked" : ""}`} style=${heat(op && op.max)} tabindex="0" role="button"
            aria-pressed=${picked === node.id} aria-label=${`${node.title}: ${[caption(node, op, hot), ...lines(node, now)].filter(Boolean).join(", ")}`}
            onClick=${() => onPick(node.id)} onKeyDown=${(event) => press(event, node.id)}>
          <rect x=${node.x} y=${node.y} width=${node.width} height=${node.height} rx="9" />
          <text class="kind" x=${node.x + 14} y=${node.y + 21}>${caption(node, op, hot)}</text>
          <text class="name" x=${node.x + 14} y=${node.y + 40}>${cut(node.title, node.width)}</text>
          ${lines(node, now).map((text, at) => html`<text class="line" x=${node.x + 14} y=${node.y + 58 + at * 15}>${text}</text>`)}
        </g>`;
      })}
    </svg>
  </div>`;
}

const caption = (node, op, hot) =>
  node.kind !== "stateful" ? `${node.kind}, JVM` : `Python${op && known(op.max) ? ` · ${percent(op.max)} busy` : ""}${hot ? " · bottleneck" : ""}`;

const cut = (text, width) => {
  const most = Math.max(6, Math.floor((width - 28) / 8.4));
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
};

function thickness(edge, now) {
  const op = now.operators[edge.target], from = now.operators[edge.source];
  const rate = from ? from.rowsOut : op ? op.rowsIn : now.sources[edge.source];
  return known(rate) && rate > 0 ? Math.min(7, 1.4 + Math.log10(1 + rate)) : 1.4;
}
