// The text editor: CodeMirror with the streams' columns and functions as completions, and mistakes marked at their lines.
// It lives in a shadow root, where its styles are style sheets made by script; the page's policy forbids style elements.

import * as cm from "../vendor/codemirror.js";
import { html, useEffect, useRef } from "../ui.js";

const theme = cm.EditorView.theme({
  "&": { color: "var(--ink)", backgroundColor: "var(--soft)", borderRadius: "8px", fontSize: "13px" },
  "&.cm-focused": { outline: "2px solid var(--focus)" },
  ".cm-scroller": { fontFamily: "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace", minHeight: "220px", maxHeight: "46vh", lineHeight: "1.55" },
  ".cm-content": { caretColor: "var(--ink)", padding: "8px 0" },
  ".cm-cursor": { borderLeftColor: "var(--ink)" },
  ".cm-gutters": { backgroundColor: "transparent", color: "var(--muted)", border: "none" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "color-mix(in srgb, var(--blue) 8%, transparent)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "color-mix(in srgb, var(--blue) 28%, transparent)" },
  ".cm-tooltip": { backgroundColor: "var(--card)", color: "var(--ink)", border: "1px solid var(--line)", borderRadius: "8px", overflow: "hidden" },
  ".cm-tooltip-autocomplete > ul > li[aria-selected]": { backgroundColor: "var(--blue)", color: "var(--card)" },
  ".cm-completionDetail": { fontStyle: "normal", opacity: "0.75" },
  ".cm-diagnostic": { padding: "6px 10px", maxWidth: "56ch" },
  ".cm-diagnostic-error": { borderLeftColor: "var(--red)" },
  ".cm-lintRange-error": { backgroundImage: "none", borderBottom: "2px solid var(--red)" },
  ".cm-placeholder": { color: "var(--muted)" },
  ".cm-matchingBracket": { backgroundColor: "color-mix(in srgb, var(--green) 30%, transparent)" },
});

const colours = cm.HighlightStyle.define([
  { tag: [cm.tags.keyword, cm.tags.operatorKeyword, cm.tags.controlKeyword, cm.tags.definitionKeyword, cm.tags.moduleKeyword], color: "var(--purple)" },
  { tag: [cm.tags.string, cm.tags.special(cm.tags.string)], color: "var(--green)" },
  { tag: [cm.tags.number, cm.tags.bool, cm.tags.null], color: "var(--orange)" },
  { tag: cm.tags.comment, color: "var(--muted)", fontStyle: "italic" },
  { tag: [cm.tags.function(cm.tags.variableName), cm.tags.function(cm.tags.propertyName), cm.tags.typeName, cm.tags.standard(cm.tags.name)], color: "var(--blue)" },
]);

const columnOptions = (streams) => {
  const found = new Map();
  for (const stream of streams) for (const each of stream.columns) {
    const before = found.get(each.name);
    found.set(each.name, { label: each.name, type: "property", detail: before ? before.detail : `${each.type} · ${stream.name}`, boost: 60 });
  }
  return [...found.values()];
};

const streamOptions = (streams) => streams.map((each) => ({ label: each.name, type: "class", detail: "stream", boost: 50 }));

// Columns, streams and functions, wherever a word is typed; in SQL also columns behind `stream.`.
function sources(language, { streams, functions }) {
  const columns = columnOptions(streams), names = streamOptions(streams);
  const sql = functions.sql.map((each) => ({ label: each, type: "function", detail: "function" }));
  if (language === "sql") {
    return (context) => {
      const behind = context.matchBefore(/[\w`]+\.\w*/);
      if (behind) {
        const stream = streams.find((each) => each.name === behind.text.split(".")[0].replaceAll("`", ""));
        return stream ? { from: behind.from + behind.text.indexOf(".") + 1, options: columnOptions([stream]) } : null;
      }
      const word = context.matchBefore(/\w+/);
      if (!word && !context.explicit) return null;
      return { from: word ? word.from : context.pos, options: [...columns, ...names, ...sql], validFor: /^\w*$/ };
    };
  }
  const python = functions.pyspark.map((each) => ({ label: each, type: "function", detail: "pyspark.sql.functions" }));
  const globals = ["spark", "F", "Window", "hr", "result"].map((each) => ({ label: each, type: "variable", boost: 1 }));
  const methods = [
    ...["withWatermark", "filter", "where", "select", "selectExpr", "withColumn", "groupBy", "join", "unionAll", "distinct", "dropDuplicates", "agg", "count", "alias", "drop"],
  ].map((each) => ({ label: each, type: "method", detail: "DataFrame" }));
  return (context) => {
    const member = context.matchBefore(/\w+\.\w*/);
    if (member) {
      const from = member.from + member.text.indexOf(".") + 1, owner = member.text.split(".")[0];
      const stream = streams.find((each) => each.name === owner);
      return { from, options: owner === "F" ? python : [...(stream ? columnOptions([stream]) : []), ...methods], validFor: /^\w*$/ };
    }
    if (context.matchBefore(/\)\.\w*/)) return { from: context.matchBefore(/\w*/).from, options: methods, validFor: /^\w*$/ };
    const node = cm.syntaxTree(context.state).resolveInner(context.pos, -1);
    const word = context.matchBefore(/\w+/);
    if (!word && !context.explicit) return null;
    const from = word ? word.from : context.pos;
    // Inside of a text in quotes there are columns and SQL.
    if (/String/.test(node.name)) return { from, options: [...columns, ...sql], validFor: /^\w*$/ };
    return { from, options: [...names, ...globals], validFor: /^\w*$/ };
  };
}

function language(name, known) {
  const complete = sources(name, known);
  if (name === "sql") {
    const schema = Object.fromEntries(known.streams.map((each) => [each.name, each.columns.map((column) => column.name)]));
    const support = cm.sql({ dialect: cm.StandardSQL, schema, upperCaseKeywords: true });
    return [support.language, cm.autocompletion({ icons: false, override: [complete, cm.keywordCompletionSource(cm.StandardSQL, true)] })];
  }
  return [cm.python().language, cm.autocompletion({ icons: false, override: [complete, cm.localCompletionSource] })];
}

function diagnostics(state, errors) {
  return errors.filter((each) => each.line > 0).map((each) => {
    const line = state.doc.line(Math.min(each.line, state.doc.lines));
    const from = Math.min(line.from + each.column, line.to);
    const to = Math.min(line.to, each.chars ? from + each.chars : line.to);
    return { from: to > from ? from : line.from, to: to > from ? to : line.to, severity: "error", message: each.message };
  });
}

// `onRun` is called by Ctrl-Enter, with true if Shift was pressed too.
export function Code({ name, text, onText, errors, known, onRun, readOnly, label }) {
  const frame = useRef(null), view = useRef(null), calls = useRef({}), told = useRef(new Set());
  const parts = useRef(null);
  if (!parts.current) parts.current = { language: new cm.Compartment(), readOnly: new cm.Compartment() };
  calls.current = { onText, onRun };
  const locked = (is) => [cm.EditorState.readOnly.of(Boolean(is)), cm.EditorView.contentAttributes.of({ "aria-label": label, "aria-readonly": String(Boolean(is)) })];
  useEffect(() => {
    const root = frame.current.shadowRoot || frame.current.attachShadow({ mode: "open" });
    const { language: chosen, readOnly: lock } = parts.current;
    const run = (shift) => () => {
      if (calls.current.onRun) calls.current.onRun(shift);
      return true;
    };
    const state = cm.EditorState.create({
      doc: text,
      extensions: [
        cm.keymap.of([{ key: "Mod-Enter", run: run(false), shift: run(true) }, { key: "Tab", run: cm.acceptCompletion }]),
        cm.lineNumbers(), cm.history(), cm.drawSelection(), cm.indentOnInput(), cm.indentUnit.of("    "), cm.bracketMatching(), cm.closeBrackets(), cm.highlightActiveLine(),
        cm.syntaxHighlighting(colours), theme, cm.lintGutter(), cm.EditorView.lineWrapping,
        cm.keymap.of([...cm.closeBracketsKeymap, ...cm.completionKeymap, ...cm.lintKeymap, ...cm.historyKeymap, ...cm.defaultKeymap]),
        chosen.of(language(name, known)), lock.of(locked(readOnly)),
        cm.EditorView.updateListener.of((update) => {
          if (update.docChanged && update.transactions.some((each) => each.isUserEvent("input") || each.isUserEvent("delete") || each.isUserEvent("undo") || each.isUserEvent("redo") || each.isUserEvent("move"))) {
            const now = update.state.doc.toString();
            told.current.add(now);
            calls.current.onText(now);
          }
        }),
      ],
    });
    view.current = new cm.EditorView({ state, parent: root, root });
    return () => view.current.destroy();
  }, []);
  useEffect(() => {
    const { language: chosen, readOnly: lock } = parts.current;
    view.current.dispatch({ effects: [chosen.reconfigure(language(name, known)), lock.reconfigure(locked(readOnly))] });
  }, [name, known, readOnly, label]);
  useEffect(() => {
    const now = view.current.state.doc.toString();
    // What comes back is older than what was typed meanwhile, and changes nothing.
    if (now === text) told.current.clear();
    else if (!told.current.has(text)) view.current.dispatch({ changes: { from: 0, to: now.length, insert: text } });
  }, [text]);
  useEffect(() => {
    view.current.dispatch(cm.setDiagnostics(view.current.state, diagnostics(view.current.state, errors)));
  }, [errors, text]);
  return html`<div class="code" ref=${frame}></div>`;
}
