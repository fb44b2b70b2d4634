// The drawing: boxes that are dragged, wires from the right side of one box to the left side of another, all of it by keyboard too.

import { html, useEffect, useRef, useState } from "../ui.js";
import { added, BOX, branchesOf, connected, detail, disconnected, KINDS, moved, portsOf, removed } from "./state.js";

const STEP = 10, ROOM = { width: 640, height: 320 };
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

const height = (drawing, box) => Math.max(BOX.height, 22 + 20 * Math.max(branchesOf(box).length, portsOf(drawing, box)));
const outAt = (drawing, box, branch) => {
  const all = branchesOf(box), at = Math.max(0, all.indexOf(branch));
  return { x: box.x + BOX.width, y: box.y + ((at + 1) * height(drawing, box)) / (all.length + 1) };
};
const inAt = (drawing, box, port) => ({ x: box.x, y: box.y + ((port + 1) * height(drawing, box)) / (portsOf(drawing, box) + 1) });
const curve = (from, to) => {
  const bend = Math.max(30, Math.abs(to.x - from.x) / 2);
  return `M${from.x},${from.y}C${from.x + bend},${from.y} ${to.x - bend},${to.y} ${to.x - 6},${to.y}`;
};
const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

function Box({ drawing, box, picked, problem, columns, actions }) {
  const tall = height(drawing, box), says = detail(box);
  const keys = (event) => {
    if (event.target !== event.currentTarget) return;
    const arrow = ARROWS[event.key];
    if (arrow) actions.move(box, box.x + arrow[0] * STEP * (event.shiftKey ? 5 : 1), box.y + arrow[1] * STEP * (event.shiftKey ? 5 : 1));
    else if (event.key === "Delete" || event.key === "Backspace") actions.remove(box);
    else if (event.key === "Enter" || event.key === " ") actions.edit(box);
    else return;
    event.preventDefault();
  };
  return html`<g class=${`box ${box.kind} ${picked ? "picked" : ""} ${problem ? "wrong" : ""}`} data-box=${box.id} tabindex="0" role="button"
      aria-label=${`${box.kind} ${box.name}${says ? `: ${says}` : ""}${problem ? `; ${problem}` : ""}`} onKeyDown=${keys}
      onFocus=${() => actions.pick(box.id)} onPointerDown=${(event) => actions.grab(event, box)}>
    ${problem && html`<title>${problem}</title>`}
    <rect x=${box.x} y=${box.y} width=${BOX.width} height=${tall} rx="9" />
    <text class="kind" x=${box.x + 14} y=${box.y + 18}>${box.kind}${columns ? ` · ${columns.length} columns` : ""}</text>
    <text class="name" x=${box.x + 14} y=${box.y + 37}>${cut(box.name, 17)}</text>
    <text class="line" x=${box.x + 14} y=${box.y + 54}>${cut(problem ? `! ${problem}` : says, 24)}</text>
    ${Array.from({ length: portsOf(drawing, box) }, (_, port) => {
      const at = inAt(drawing, box, port);
      return html`<circle class="port in" cx=${at.x} cy=${at.y} r="6" data-target=${box.id} data-port=${port} />`;
    })}
    ${branchesOf(box).map((branch) => {
      const at = outAt(drawing, box, branch);
      return html`<g>${branch && html`<text class="branch" x=${at.x - 10} y=${at.y + 4} text-anchor="end">${cut(branch, 9)}</text>`}
        <circle class="port out" cx=${at.x} cy=${at.y} r="6" data-source=${box.id} data-branch=${branch} onPointerDown=${(event) => actions.pull(event, box, branch)}><title>drag to a box that shall read this</title></circle></g>`;
    })}
  </g>`;
}

export function Canvas({ drawing, onDrawing, picked, onPick, problems, columns, onEdit, undo }) {
  const svg = useRef(null), held = useRef(null);
  const [pulled, setPulled] = useState(null);
  const now = useRef(drawing);
  now.current = drawing;
  const where = (event) => {
    const frame = svg.current.getBoundingClientRect();
    return { x: event.clientX - frame.left, y: event.clientY - frame.top };
  };
  const under = (event) => document.elementFromPoint(event.clientX, event.clientY);
  const place = (kind, options) => {
    const { drawing: next, id } = added(now.current, kind, options);
    onDrawing(next);
    onPick(id);
  };
  useEffect(() => {
    const move = (event) => {
      const holding = held.current;
      if (!holding) return;
      const at = where(event);
      if (holding.box) {
        if (Math.hypot(at.x - holding.from.x, at.y - holding.from.y) > 3) holding.dragged = true;
        if (holding.dragged) onDrawing(moved(now.current, holding.box, at.x - holding.dx, at.y - holding.dy), holding.before);
      } else if (holding.source) setPulled({ source: holding.source, branch: holding.branch, at });
    };
    const drop = (event) => {
      const holding = held.current;
      held.current = null;
      if (!holding) return;
      setPulled(null);
      const hit = under(event), inside = hit && hit.closest && hit.closest("svg") === svg.current;
      if (holding.source && inside) {
        const port = hit.closest("[data-port]"), box = hit.closest("[data-box]");
        const target = now.current.boxes.find((each) => each.id === (port ? port.dataset.target : box && box.dataset.box));
        if (target && portsOf(now.current, target)) onDrawing(connected(now.current, holding.source, holding.branch, target.id, port ? Number(port.dataset.port) : firstFree(now.current, target)));
      } else if (holding.kind && inside) {
        const at = where(event);
        place(holding.kind, { at: { x: at.x - BOX.width / 2, y: at.y - BOX.height / 2 } });
      } else if (holding.box && !holding.dragged) onEdit(holding.box, false);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", drop);
    return () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", drop);
    };
  }, [onDrawing]);
  const actions = {
    move: (box, x, y) => onDrawing(moved(now.current, box.id, x, y)),
    remove: (box) => {
      onDrawing(removed(now.current, box.id));
      onPick(null);
    },
    pick: onPick,
    edit: (box) => onEdit(box.id, true),
    grab: (event, box) => {
      const at = where(event);
      held.current = held.current || { box: box.id, dx: at.x - box.x, dy: at.y - box.y, from: at, before: now.current };
      event.currentTarget.focus({ preventScroll: true });
    },
    pull: (event, box, branch) => {
      held.current = { source: box.id, branch };
      event.preventDefault();
    },
  };
  const wide = Math.max(ROOM.width, ...drawing.boxes.map((each) => each.x + BOX.width + 40));
  const tall = Math.max(ROOM.height, ...drawing.boxes.map((each) => each.y + height(drawing, each) + 30));
  const from = pulled && drawing.boxes.find((each) => each.id === pulled.source);
  return html`<div class="palette row" role="toolbar" aria-label="boxes">
      ${KINDS.map((kind) => html`<button type="button" class=${`kind-${kind}`} title="press, or drag into the drawing" onPointerDown=${() => (held.current = { kind })}
        onClick=${() => place(kind, { behind: picked })}>${kind}</button>`)}
      <span class="stretch"></span>
      <button type="button" disabled=${!undo} onClick=${undo}>undo</button>
      <button type="button" disabled=${!picked} onClick=${() => actions.remove({ id: picked })}>delete</button>
    </div>
    <div class="canvas">
      ${!drawing.boxes.length && html`<p class="empty">Drag a source into this field, or press its button. A further button adds a box behind the chosen one.</p>`}
      <svg ref=${svg} width=${wide} height=${tall} role="group" aria-label="drawing of the query" onPointerDown=${(event) => event.target === svg.current && onPick(null)}>
        ${drawing.wires.map((wire) => html`<${Wire} drawing=${drawing} wire=${wire} onDrawing=${onDrawing} />`)}
        ${from && html`<path class="wire pulled" d=${curve(outAt(drawing, from, pulled.branch), pulled.at)} />`}
        ${drawing.boxes.map((box) => html`<${Box} key=${box.id} drawing=${drawing} box=${box} picked=${picked === box.id} actions=${actions}
          problem=${problems[box.id]} columns=${columns[box.id]} />`)}
      </svg>
    </div>
    <p class="note">Keys on a box: arrows move it, Enter edits it, Delete removes it. Delete also removes a wire. What a box reads can be chosen among its properties, too.</p>`;
}

function firstFree(drawing, box) {
  const used = drawing.wires.filter((each) => each.target === box.id).map((each) => each.port);
  for (let port = 0; port < portsOf(drawing, box); port += 1) if (!used.includes(port)) return port;
  return 0;
}

function Wire({ drawing, wire, onDrawing }) {
  const source = drawing.boxes.find((each) => each.id === wire.source), target = drawing.boxes.find((each) => each.id === wire.target);
  if (!source || !target) return null;
  const to = inAt(drawing, target, wire.port), path = curve(outAt(drawing, source, wire.branch), to);
  const keys = (event) => {
    if (event.key !== "Delete" && event.key !== "Backspace") return;
    event.preventDefault();
    onDrawing(disconnected(drawing, wire.target, wire.port));
  };
  return html`<g class="edge" tabindex="0" role="button" aria-label=${`${target.name} reads ${source.name}${wire.branch ? `, ${wire.branch}` : ""}`} onKeyDown=${keys}>
    <path class="reach" d=${path} onPointerDown=${(event) => event.currentTarget.parentNode.focus()} /><path class="wire" d=${path} /><path class="tip" d=${`M${to.x - 5},${to.y}l-8,-4.5v9z`} /></g>`;
}
