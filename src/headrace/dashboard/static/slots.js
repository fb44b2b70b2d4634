// The heat map of the 4,096 slots: the hue is the owner, the depth is the load. Slots are chosen with the mouse, a finger or the arrow keys.

import { html, hue, percent, short, useEffect, useLayoutEffect, useRef, useState } from "./ui.js";

export const SLOTS = 4096, COLUMNS = 64;

// The owner of each slot, from the ranges of each instance. A slot that is cut belongs to the owner of its first piece here.
export function ownersOf(ranges) {
  const owners = new Int32Array(SLOTS);
  ranges.forEach((each, instance) => {
    for (const [low, high] of each) for (let slot = Math.ceil(low); slot < high; slot += 1) owners[slot] = instance;
  });
  return owners;
}

const dark = () => getComputedStyle(document.documentElement).colorScheme === "dark";

// The colour of a slot: without load pale, with the greatest load deep.
export function shade(instance, share, night) {
  const depth = Math.sqrt(share);
  const light = night ? 19 + 48 * depth : 93 - 53 * depth;
  return `hsl(${hue(instance)} ${Math.round(38 + 40 * depth)}% ${light.toFixed(1)}%)`;
}

export function SlotMap({ map, picked, onPick, onDrop }) {
  const canvas = useRef(null), frame = useRef(null), from = useRef(null), carrying = useRef(false);
  const [cursor, setCursor] = useState(0);
  const [shown, setShown] = useState(null);
  const [room, setRoom] = useState(640);
  const [, setTheme] = useState(0);
  const owners = ownersOf(map.ranges);
  const most = Math.max(1, ...map.rows);
  useEffect(() => {
    const node = frame.current;
    const watcher = new ResizeObserver(() => node.clientWidth && setRoom(node.clientWidth));
    watcher.observe(node);
    const again = () => setTheme((before) => before + 1);
    addEventListener("headrace-theme", again);
    return () => {
      watcher.disconnect();
      removeEventListener("headrace-theme", again);
    };
  }, []);
  const cell = Math.max(4, Math.floor(room / COLUMNS)), tall = Math.max(4, Math.min(cell, 9));
  const lines = SLOTS / COLUMNS;
  useLayoutEffect(() => {
    const node = canvas.current, scale = devicePixelRatio || 1, ctx = node.getContext("2d"), night = dark();
    node.width = cell * COLUMNS * scale;
    node.height = tall * lines * scale;
    ctx.scale(scale, scale);
    for (let slot = 0; slot < SLOTS; slot += 1) {
      ctx.fillStyle = shade(owners[slot], map.rows[slot] / most, night);
      ctx.fillRect((slot % COLUMNS) * cell, Math.floor(slot / COLUMNS) * tall, cell - 0.5, tall - 0.5);
    }
    ctx.strokeStyle = night ? "#fff" : "#111";
    ctx.lineWidth = 1.5;
    for (const [low, high] of map.spread) {
      for (let slot = low; slot < high; slot += 1) ctx.strokeRect((slot % COLUMNS) * cell + 0.75, Math.floor(slot / COLUMNS) * tall + 0.75, cell - 2, tall - 2);
    }
    if (picked) {
      ctx.fillStyle = night ? "rgba(255,255,255,.38)" : "rgba(10,20,40,.34)";
      for (let slot = picked[0]; slot < picked[1]; slot += 1) ctx.fillRect((slot % COLUMNS) * cell, Math.floor(slot / COLUMNS) * tall, cell - 0.5, tall - 0.5);
    }
    if (document.activeElement === node) {
      ctx.strokeRect((cursor % COLUMNS) * cell, Math.floor(cursor / COLUMNS) * tall, cell, tall);
    }
  });
  const at = (event) => {
    const box = canvas.current.getBoundingClientRect();
    const column = Math.min(COLUMNS - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * COLUMNS)));
    const line = Math.min(lines - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * lines)));
    return line * COLUMNS + column;
  };
  const span = (a, b) => [Math.min(a, b), Math.max(a, b) + 1];
  const down = (event) => {
    const slot = at(event);
    canvas.current.setPointerCapture(event.pointerId);
    carrying.current = Boolean(onDrop && picked && slot >= picked[0] && slot < picked[1] && picked[1] - picked[0] > 1);
    from.current = slot;
    if (!carrying.current) onPick([slot, slot + 1]);
  };
  const move = (event) => {
    setShown(at(event));
    if (from.current !== null && !carrying.current) onPick(span(from.current, at(event)));
  };
  const up = (event) => {
    if (carrying.current) {
      const target = document.elementFromPoint(event.clientX, event.clientY)?.closest("[data-instance]");
      if (target) onDrop(Number(target.dataset.instance));
      else if (at(event) === from.current) onPick([from.current, from.current + 1]);
    }
    from.current = null;
    carrying.current = false;
  };
  const key = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -COLUMNS, ArrowDown: COLUMNS }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const next = Math.min(SLOTS - 1, Math.max(0, cursor + step));
    setCursor(next);
    setShown(next);
    if (event.shiftKey && picked) onPick(cursor === picked[0] && picked[1] - picked[0] > 1 ? span(next, picked[1] - 1) : span(picked[0], next));
    else onPick([next, next + 1]);
  };
  const told = shown ?? (picked ? picked[0] : null);
  const total = map.rows.reduce((sum, each) => sum + each, 0) || 1;
  const text = told === null ? "Point at a slot to see its owner and load." :
    `Slot ${told}: instance ${owners[told]}, ${short(map.rows[told] / Math.max(0.001, map.seconds))} rows/s, ${percent(map.rows[told] / total, 1)} of the load`;
  return html`<div class="slots" ref=${frame}>
    <canvas ref=${canvas} tabindex="0" role="application" aria-label="heat map of the slots; arrow keys choose a slot, with shift several"
      style=${{ width: `${cell * COLUMNS}px`, height: `${tall * lines}px` }}
      onPointerDown=${down} onPointerMove=${move} onPointerUp=${up} onPointerLeave=${() => setShown(null)} onKeyDown=${key}></canvas>
    <p class="note" aria-live="polite">${text}</p>
  </div>`;
}
