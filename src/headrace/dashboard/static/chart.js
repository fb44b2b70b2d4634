// Series over time: uPlot, with a legend that shows the values at the cursor, markers for events, and cursors that move together.

import uPlot from "./vendor/uplot.js";
import { clock, html, useEffect, useRef } from "./ui.js";

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const HEIGHT = 170;

// Vertical lines where something happened. Drawn under the series, in the colour of the kind.
function markers(eventsOf) {
  return {
    hooks: {
      drawClear: [
        (plot) => {
          const { left, top, width, height } = plot.bbox;
          const ctx = plot.ctx;
          ctx.save();
          ctx.lineWidth = devicePixelRatio;
          for (const each of eventsOf()) {
            const x = Math.round(plot.valToPos(each.t, "x", true));
            if (x < left || x > left + width) continue;
            ctx.strokeStyle = colour(each.colour);
            ctx.globalAlpha = 0.75;
            ctx.setLineDash(each.dash ? [4 * devicePixelRatio, 4 * devicePixelRatio] : []);
            ctx.beginPath();
            ctx.moveTo(x, top);
            ctx.lineTo(x, top + height);
            ctx.stroke();
          }
          ctx.restore();
        },
      ],
    },
  };
}

// Horizontal limits: dashed lines with their names, drawn over the series.
function limitLines(limits) {
  return {
    hooks: {
      draw: [
        (plot) => {
          const { left, top, width, height } = plot.bbox;
          const ctx = plot.ctx;
          ctx.save();
          ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
          ctx.textAlign = "left";
          ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
          // Names of limits that lie close together stand side by side.
          for (const [at, [name, value]] of Object.entries(limits).entries()) {
            const y = Math.round(plot.valToPos(value, "y", true));
            if (y < top || y > top + height) continue;
            ctx.strokeStyle = ctx.fillStyle = colour("--muted");
            ctx.beginPath();
            ctx.moveTo(left, y);
            ctx.lineTo(left + width, y);
            ctx.stroke();
            ctx.fillText(name, left + (4 + at * 46) * devicePixelRatio, y - 4 * devicePixelRatio);
          }
          ctx.restore();
        },
      ],
    },
  };
}

function options(props, width, values, eventsRef) {
  const { series, format, limits, stepped, top, group } = props;
  const axis = { stroke: () => colour("--muted"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { sync: { key: group || "time" }, points: { size: 6 }, drag: { x: true, y: false, setScale: true } },
    scales: { x: { time: true }, y: { range: (_, low, high) => range(low, high, top, limits) } },
    axes: [
      { ...axis, size: 26, space: 70, values: (_, ticks) => ticks.map((each) => clock(each).replace(/^\S+ /, "").replace(/:00$/, "")) },
      { ...axis, size: 54, space: 34, values: (_, ticks) => ticks.map((each) => format(each)) },
    ],
    series: [
      {},
      ...series.map((each) => ({
        label: each.name,
        stroke: () => colour(each.colour),
        width: 1.6,
        dash: each.dash,
        points: { show: false },
        spanGaps: false,
        paths: stepped || each.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined,
      })),
    ],
    hooks: {
      setCursor: [
        (plot) => {
          const at = plot.cursor.idx;
          series.forEach((each, number) => {
            const data = plot.data[number + 1];
            const value = at === null || at === undefined ? last(data) : data[at];
            if (values[number]) values[number].textContent = value === null || value === undefined ? "–" : format(value);
          });
          if (values.time) values.time.textContent = at === null || at === undefined ? "" : clock(plot.data[0][at]);
        },
      ],
    },
    plugins: [markers(() => eventsRef.current), ...(limits ? [limitLines(limits)] : [])],
  };
}

const last = (data) => data.findLast((each) => each !== null && each !== undefined);

function range(low, high, top, limits) {
  let most = Math.max(high ?? 0, top || 0, ...(limits ? Object.values(limits) : []));
  if (!(most > 0)) most = 1;
  return [0, most * 1.08];
}

// Props: title, x (seconds), series [{name, data, colour, dash?, stepped?}], format, events, limits, stepped, top, group.
export function Chart(props) {
  const { title, x, series, events = [], note } = props;
  const frame = useRef(null), plot = useRef(null), values = useRef([]), eventsRef = useRef(events);
  eventsRef.current = events;
  const shape = series.map((each) => each.name).join("|");
  useEffect(() => {
    const node = frame.current;
    const width = () => Math.max(180, node.clientWidth);
    const made = new uPlot(options(props, width(), values.current, eventsRef), [x, ...series.map((each) => each.data)], node);
    plot.current = made;
    const watcher = new ResizeObserver(() => made.setSize({ width: width(), height: HEIGHT }));
    watcher.observe(node);
    const redraw = () => made.redraw();
    addEventListener("headrace-theme", redraw);
    return () => {
      watcher.disconnect();
      removeEventListener("headrace-theme", redraw);
      made.destroy();
      plot.current = null;
    };
  }, [shape, JSON.stringify(props.limits || null)]);
  useEffect(() => {
    const made = plot.current;
    if (!made) return;
    // Somebody who has zoomed in looks at that time; new points do not move it.
    const { min, max } = made.scales.x;
    const zoomed = known(min) && made.data[0].length && (min > made.data[0][0] + 1e-6 || max < made.data[0].at(-1) - 1e-6);
    made.setData([x, ...series.map((each) => each.data)], !zoomed);
    if (zoomed) made.redraw();
    made.hooks.setCursor?.forEach((each) => each(made));
  });
  return html`<figure class="chart">
    <figcaption><b>${title}</b><span class="legend">${series.map(
      (each, at) => html`<span class="key"><i style=${{ background: `var(${each.colour})` }}></i>${each.name}
        <output ref=${(node) => (values.current[at] = node)}></output></span>`,
    )}<output class="when" ref=${(node) => (values.current.time = node)}></output></span></figcaption>
    <div class="plot" ref=${frame} role="img" aria-label=${describe(title, series, props.format)}></div>
    ${note && html`<p class="note">${note}</p>`}
  </figure>`;
}

function describe(title, series, format) {
  const now = series.map((each) => `${each.name} ${known(last(each.data)) ? format(last(each.data)) : "none"}`);
  return `${title}, now: ${now.join(", ")}`;
}

const known = (value) => value !== undefined && value !== null;
