// What the editor keeps in the browser's storage: texts, the drawing, and how to start the query. And the changes of a drawing.

export const KINDS = ["source", "filter", "select", "aggregate", "join", "split", "union", "sink"];
export const BOX = { width: 178, height: 66 };
const KEY = "headrace-editor", GRID = 10;

const EMPTY = {
  view: "sql",
  drawnAs: "sql",
  texts: { sql: "", pyspark: "" },
  drawing: { boxes: [], wires: [] },
  mode: "append",
  launch: { name: "", checkpoint: "", trigger: "asap", every: "1 second", options: "", sinks: {} },
};

export function stored() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) || "{}");
    return { ...EMPTY, ...found, texts: { ...EMPTY.texts, ...found.texts }, launch: { ...EMPTY.launch, ...found.launch } };
  } catch {
    return EMPTY;
  }
}

export function store(state) {
  try {
    localStorage.setItem(KEY, JSON.stringify(state));
  } catch {
    // Without storage, the work is lost with the page.
  }
}

// The id of this page, for work that it asks for. Every page has its own, also after a reload.
export const PAGE = crypto.getRandomValues(new Uint32Array(4)).join("-");

// Checks are numbered, because requests may overtake each other.
let turns = 0;
export const nextTurn = () => (turns += 1);

// Names of the outputs of a box, by branch.
export function branchesOf(box) {
  if (box.kind === "sink") return [];
  if (box.kind !== "split") return [""];
  const names = (box.settings.branches || "").split("\n").map((line) => line.split(":")[0].trim()).filter(Boolean);
  return [...new Set(names), "else"];
}

// How many inputs a box shows: a union always has one more than it uses.
export function portsOf(drawing, box) {
  if (box.kind === "source") return 0;
  if (box.kind === "join") return 2;
  if (box.kind !== "union") return 1;
  return Math.max(2, ...drawing.wires.filter((each) => each.target === box.id).map((each) => each.port + 2));
}

const snapped = (value) => Math.max(0, Math.round(value / GRID) * GRID);

// A free name: the kind, or what it is called after, with a number if there are more.
function nameFor(drawing, wanted) {
  const base = wanted.replace(/\W/g, "_").replace(/^(\d)/, "_$1") || "rows";
  const taken = new Set(drawing.boxes.map((each) => each.name));
  if (!taken.has(base)) return base;
  let number = 2;
  while (taken.has(`${base}_${number}`)) number += 1;
  return `${base}_${number}`;
}

const NAMES = { source: "rows", filter: "filtered", select: "selected", aggregate: "totals", join: "joined", split: "parts", union: "together", sink: "out" };

// The drawing with a box more. Without a place it goes beside `behind`, which it then reads.
export function added(drawing, kind, { at, behind, settings = {}, name } = {}) {
  const before = behind && drawing.boxes.find((each) => each.id === behind);
  const spot = at || free(drawing, before ? { x: before.x + BOX.width + 32, y: before.y } : { x: 20, y: 20 });
  const id = crypto.getRandomValues(new Uint32Array(2)).join("");
  const box = { id, kind, name: nameFor(drawing, name || NAMES[kind]), x: snapped(spot.x), y: snapped(spot.y), settings };
  let wires = drawing.wires;
  if (before && kind !== "source" && before.kind !== "sink") {
    const unused = branchesOf(before).find((branch) => !wires.some((each) => each.source === before.id && each.branch === branch));
    wires = [...wires, { source: before.id, branch: unused ?? branchesOf(before)[0], target: id, port: 0 }];
  }
  return { drawing: { boxes: [...drawing.boxes, box], wires }, id };
}

function free(drawing, spot) {
  let { x, y } = spot;
  const hits = () => drawing.boxes.some((each) => Math.abs(each.x - x) < BOX.width + 10 && Math.abs(each.y - y) < BOX.height + 10);
  while (hits()) y += BOX.height + 24;
  return { x, y };
}

export function connected(drawing, source, branch, target, port) {
  if (source === target || reaches(drawing, target, source)) return drawing;
  const wires = drawing.wires.filter((each) => !(each.target === target && each.port === port));
  return { ...drawing, wires: [...wires, { source, branch, target, port }] };
}

// Whether rows of a box come to another one: a wire back would make a circle.
function reaches(drawing, from, to) {
  return from === to || drawing.wires.some((each) => each.source === from && reaches(drawing, each.target, to));
}

export const disconnected = (drawing, target, port) => ({ ...drawing, wires: drawing.wires.filter((each) => each.target !== target || each.port !== port) });

export const removed = (drawing, id) => ({
  boxes: drawing.boxes.filter((each) => each.id !== id),
  wires: drawing.wires.filter((each) => each.source !== id && each.target !== id),
});

export const moved = (drawing, id, x, y) => ({
  ...drawing,
  boxes: drawing.boxes.map((each) => (each.id === id ? { ...each, x: snapped(x), y: snapped(y) } : each)),
});

// A box with other properties. Wires from branches that are gone go too.
export function edited(drawing, id, change) {
  const boxes = drawing.boxes.map((each) => (each.id === id ? { ...each, ...change } : each));
  const box = boxes.find((each) => each.id === id), left = branchesOf(box);
  if (box.kind === "split") return { boxes, wires: drawing.wires.filter((each) => each.source !== id || left.includes(each.branch)) };
  return { ...drawing, boxes };
}

// What a box does, in a few words.
export function detail(box) {
  const given = box.settings;
  switch (box.kind) {
    case "source": return given.time ? `${given.stream || ""}, late by ${given.delay || "?"}` : given.stream || "";
    case "filter": return given.condition || "";
    case "select": return (given.columns || "").replace(/\n/g, ", ");
    case "aggregate": return [(given.functions || "").replace(/\n/g, ", "), given.keys && `by ${given.keys}`].filter(Boolean).join(" ");
    case "join": return given.condition || given.keys || "";
    case "split": return branchesOf(box).join(" · ");
    default: return "";
  }
}
