// The query editor: a text in SQL or PySpark, or a drawing that becomes one; checked while one types, tried on a sample, started, or put in the
// place of a query that runs.

import { get, post } from "../api.js";
import { Canvas } from "../editor/canvas.js";
import { Code } from "../editor/code.js";
import { Properties } from "../editor/boxes.js";
import { Replace, SinkFields, Start } from "../editor/launch.js";
import { Checked, Plan, Sample, Streams } from "../editor/results.js";
import { nextTurn, PAGE, store, stored } from "../editor/state.js";
import { Card, Choice, html, useAnswer, useCallback, useEffect, useMemo, useRef, useState } from "../ui.js";

const VIEWS = [["sql", "SQL"], ["pyspark", "PySpark"], ["drawing", "Drawing"]];
const WAIT_MS = 350, PAST_MAX = 50;
const HELP = {
  sql: "One query. Streams are tables: SELECT … FROM a_stream.",
  pyspark: "Names: spark, F, Window, hr, and the streams. The last expression, or result, is the query; a dict of them gives several sinks.",
  drawing: "Boxes and arrows become the text below.",
};
const NO_ERRORS = [];

// What the server finds in the text, a moment after the last change: {found, busy, again}. The answer to an older text is not shown.
function useCheck(call, on) {
  const [result, setResult] = useState({ found: null, busy: false, on: "" });
  const round = useRef(0);
  const check = useCallback(async (executes) => {
    const mine = (round.current = nextTurn());
    setResult((before) => ({ ...before, busy: true }));
    let found;
    try {
      found = await call(executes, mine);
    } catch (error) {
      found = { errors: [{ message: error.message, line: 0, column: 0, chars: 0 }] };
    }
    if (mine === round.current) setResult({ found, busy: false, on });
  }, [on]);
  useEffect(() => {
    round.current = nextTurn();
    const timer = setTimeout(() => check(false), WAIT_MS);
    return () => clearTimeout(timer);
  }, [on]);
  return { ...result, fresh: result.on === on, check };
}

const NARROW = "(max-width: 900px)";

function useNarrow() {
  const [narrow, setNarrow] = useState(matchMedia(NARROW).matches);
  useEffect(() => {
    const query = matchMedia(NARROW), changed = () => setNarrow(query.matches);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return narrow;
}

function Page({ queries }) {
  const narrow = useNarrow();
  const [state, setState] = useState(stored);
  const [picked, setPicked] = useState(null);
  const [focus, setFocus] = useState(null);
  const past = useRef([]);
  const running = queries.filter((each) => each.state === "running").map((each) => each.id).join();
  const about = useAnswer(() => get("editor"), [running]);
  const change = useCallback((part) => setState((before) => ({ ...before, ...part })), []);
  useEffect(() => store(state), [state]);

  const { view, drawing } = state;
  const onDrawing = useCallback((next, before) => {
    setState((now) => {
      const last = before || now.drawing;
      if (past.current.at(-1) !== last) past.current = [...past.current, last].slice(-PAST_MAX);
      return { ...now, drawing: next };
    });
  }, []);
  const undo = () => {
    change({ drawing: past.current.at(-1) });
    past.current = past.current.slice(0, -1);
  };
  const drawn = useCheck((executes, turn) => post("editor/drawing", { page: `${PAGE}-drawing`, turn, language: state.drawnAs, drawing }), view === "drawing" ? JSON.stringify([drawing, state.drawnAs]) : "");
  const finished = view !== "drawing" || Boolean(drawn.found && drawn.found.finished && drawn.fresh);
  const language = view === "drawing" ? state.drawnAs : view;
  const text = view === "drawing" ? (drawn.found && drawn.found.text) || "" : state.texts[view];
  const wanted = useMemo(() => ({ language, text, mode: state.mode }), [language, text, state.mode]);
  const worth = text.trim() !== "" && finished;
  const checked = useCheck((executes, turn) => (worth ? post("editor/check", { page: PAGE, turn, ...wanted, executes }) : null), JSON.stringify([wanted, worth]));
  const found = worth ? checked.found : null;
  const good = Boolean(found && !found.errors.length && !found.waits);
  const ready = good && checked.fresh && !checked.busy;
  const planned = view === "drawing" && drawn.found && drawn.found.outputs && drawn.found.outputs.length > 1 ? drawn.found.outputs : [""];
  const results = good ? Object.keys(found.results) : planned;
  const known = useMemo(() => ({ streams: about.data ? about.data.streams : [], functions: about.data ? about.data.functions : { sql: [], pyspark: [] } }), [about.data]);
  const problems = useMemo(() => problemsOf(drawn.found), [drawn.found]);

  const insert = (name) => {
    if (view === "drawing") return;
    const gap = state.texts[view] && !/\s$/.test(state.texts[view]) ? " " : "";
    change({ texts: { ...state.texts, [view]: state.texts[view] + gap + name } });
  };
  const setText = (value) => change({ texts: { ...state.texts, [view]: value } });
  const toText = () => change({ view: state.drawnAs, texts: { ...state.texts, [state.drawnAs]: text } });
  const edit = (id, keyboard) => {
    setPicked(id);
    if (keyboard) setFocus({ box: id, wanted: true });
  };
  const box = drawing.boxes.find((each) => each.id === picked);
  const sinkName = box && drawing.boxes.filter((each) => each.kind === "sink").length > 1 ? box.name : "";
  const sinkFields = box && box.kind === "sink" && html`<${SinkFields} sink=${state.launch.sinks[sinkName]} mode=${state.mode} onSink=${(sink) => change({ launch: { ...state.launch, sinks: { ...state.launch.sinks, [sinkName]: sink } } })} />`;
  const columns = drawn.found ? drawn.found.columns || {} : {};
  const properties = view === "drawing" && box && html`<${Properties} key=${box.id} drawing=${drawing} box=${box} onDrawing=${onDrawing} streams=${known.streams} columns=${columns} problem=${problems[box.id]} focus=${focus} sink=${sinkFields} />`;
  const errors = found && !found.waits && view !== "drawing" ? found.errors : NO_ERRORS;
  const status = view === "drawing" && !finished ? html`<${Unfinished} problems=${drawn.found ? drawn.found.problems || drawn.found.errors : []} drawing=${drawing} onPick=${setPicked} />`
    : html`<${Checked} found=${found} busy=${checked.busy} onCheck=${() => checked.check(true)} />`;
  if (about.error && !about.data) return html`<p class="said bad">${about.error}</p>`;
  const actions = html`<div class="tabs" role="tablist" aria-label="how to write the query">${VIEWS.map(([id, title]) => html`<button type="button" role="tab" aria-selected=${view === id} onClick=${() => change({ view: id })}>${title}</button>`)}</div>`;
  return html`<div class="workbench">
    <${Card} title="Query" id="query-text" actions=${html`${actions}<span class="stretch"></span><${Choice} label="output mode" value=${state.mode} options=${["append", "update", "complete"]} onChange=${(mode) => change({ mode })} />`}>
      <p class="note">${HELP[view]}</p>
      ${view === "drawing" && html`<${Canvas} drawing=${drawing} onDrawing=${onDrawing} picked=${picked} onPick=${setPicked} problems=${problems} columns=${columns}
        onEdit=${edit} undo=${past.current.length ? undo : null} />
        ${narrow && properties}
        <div class="row drawn"><${Choice} label="as" value=${state.drawnAs} options=${VIEWS.slice(0, 2)} onChange=${(drawnAs) => change({ drawnAs })} /><button type="button" disabled=${!text} onClick=${toText}>go on with this text</button></div>`}
      <${Code} key=${view} name=${language} text=${text} onText=${setText} errors=${errors} known=${known} readOnly=${view === "drawing"} label=${`query in ${language}`} onRun=${() => checked.check(true)} />
      ${status}
    </${Card}>
    <div class="beside">
      ${!narrow && properties}
      <${Streams} streams=${known.streams} onUse=${insert} />
    </div>
    ${good && html`<${Plan} found=${found} />`}
    <${Sample} wanted=${wanted} ready=${ready} />
    <${Start} state=${state} wanted=${wanted} results=${results} onState=${change} ready=${ready} onStarted=${about.again} />
    <${Replace} state=${state} wanted=${wanted} queries=${about.data ? about.data.queries : {}} ready=${ready} several=${results.length > 1} />
  </div>`;
}

const problemsOf = (found) => {
  const by = {};
  for (const each of (found && found.problems) || []) by[each.box] ??= each.message;
  return by;
};

function Unfinished({ problems, drawing, onPick }) {
  const names = Object.fromEntries(drawing.boxes.map((each) => [each.id, each]));
  if (!drawing.boxes.length) return html`<div class="said" role="status" id="checked">Nothing is drawn yet.</div>`;
  if (!problems.length) return html`<div class="said" role="status" id="checked">${drawing.boxes.some((each) => each.kind === "sink") ? "Checking …" : "Not finished: it needs a sink."}</div>`;
  return html`<div class="said bad" role="status" id="checked"><ul class="plain">${problems.map((each) => {
    const box = names[each.box];
    return html`<li>${box && html`<button type="button" class="chip" onClick=${() => onPick(box.id)}>${box.kind} ${box.name}</button> `}${each.message}</li>`;
  })}</ul></div>`;
}

export const editor = { id: "editor", title: "Editor", Page };
