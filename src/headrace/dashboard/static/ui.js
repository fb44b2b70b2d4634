// What all pages share: Preact with htm, numbers as short text, and small components. Text is always set as text, never as HTML.

import { h, render, Fragment } from "./vendor/preact.js";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/preact-hooks.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { render, Fragment, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };

export const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);

// 12, 1.2 k, 34.5 M
export function short(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  for (const [unit, sign] of [[1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
    if (size >= unit * 0.99995) return `${(value / unit).toFixed(size >= unit * 100 ? 0 : 1)}${sign}`;
  }
  return size >= 100 || Number.isInteger(value) ? `${Math.round(value)}` : value.toFixed(size >= 10 ? 1 : 2);
}

export const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en-US") : "–");
export const percent = (value, digits = 0) => (known(value) ? `${(value * 100).toFixed(digits)} %` : "–");

// 340 ms, 2.3 s, 4 min
export function span(ms) {
  if (!known(ms)) return "–";
  if (ms === 0) return "0";
  if (ms < 1) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 120_000) return `${Math.round(ms / 1000)} s`;
  if (ms < 7_200_000) return `${Math.round(ms / 60_000)} min`;
  return ms < 172_800_000 ? `${(ms / 3_600_000).toFixed(1)} h` : `${Math.round(ms / 86_400_000)} days`;
}

export function size(bytes) {
  if (!known(bytes)) return "–";
  for (const [unit, sign] of [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"]]) if (bytes >= unit) return `${(bytes / unit).toFixed(1)} ${sign}`;
  return `${Math.round(bytes)} B`;
}

const two = (number) => String(number).padStart(2, "0");

// 14:03:09; with the day if it is not today.
export function clock(seconds) {
  if (!known(seconds)) return "–";
  const at = new Date(seconds * 1000);
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return at.toDateString() === new Date().toDateString() ? time : `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}`;
}

export const ago = (seconds) => (known(seconds) ? `${span(Math.max(0, Date.now() - seconds * 1000))} ago` : "–");
export const counted = (count, what) => `${whole(count)} ${what}${count === 1 ? "" : "s"}`;

// The hue of an instance, the same everywhere. Neighbours differ much.
export const hue = (instance) => (210 + instance * 137.508) % 360;

export function Card({ title, note, children, wide, id, actions }) {
  return html`<section class=${`card ${wide ? "wide" : ""}`} aria-labelledby=${id && `${id}-title`} id=${id}>
    ${title && html`<header class="card-head"><h2 id=${id && `${id}-title`}>${title}</h2>${note && html`<p class="note">${note}</p>`}${actions}</header>`}
    ${children}
  </section>`;
}

// A table that becomes a list of labelled values where the page is narrow. Columns: {name, value(row), right, wide}.
export function Table({ columns, rows, empty = "none", label, keyOf, onPick, picked }) {
  if (!rows.length) return html`<p class="empty">${empty}</p>`;
  return html`<div class="table-frame"><table aria-label=${label}>
    <thead><tr>${columns.map((each) => html`<th scope="col" class=${each.right ? "right" : ""}>${each.name}</th>`)}</tr></thead>
    <tbody>${rows.map((row, at) => html`<tr key=${keyOf ? keyOf(row) : at} class=${picked && picked(row) ? "picked" : ""}
      onClick=${onPick && (() => onPick(row))}>
      ${columns.map((each) => html`<td class=${`${each.right ? "right" : ""} ${each.wide ? "wide" : ""}`} data-name=${each.name}><div>${each.value(row)}</div></td>`)}
    </tr>`)}</tbody>
  </table></div>`;
}

export function Tile({ value, label, level, title }) {
  return html`<div class=${`tile ${level || ""}`} title=${title}><b>${value}</b><span>${label}</span></div>`;
}

export const State = ({ state }) => html`<span class=${`state ${state}`}>${state}</span>`;

export function Bar({ share, label }) {
  const width = Math.max(0, Math.min(1, share || 0)) * 100;
  return html`<span class="bar" role="img" aria-label=${label || percent(share)}><i style=${{ width: `${width}%` }}></i></span>`;
}

// A button that asks the server to do something, says what came of it, and cannot be pressed twice meanwhile.
export function Act({ label, what, run, said, primary, disabled, title }) {
  const [busy, setBusy] = useState(false);
  const act = async () => {
    setBusy(true);
    said(null);
    try {
      const text = await run();
      said({ good: true, text: text || `${what || label}: done` });
    } catch (error) {
      said({ good: false, text: error.message });
    }
    setBusy(false);
  };
  return html`<button type="button" class=${primary ? "primary" : ""} disabled=${busy || disabled} title=${title} onClick=${act}>${busy ? "…" : label}</button>`;
}

export function Said({ said, close }) {
  if (!said) return null;
  return html`<div class=${`said ${said.good ? "good" : "bad"}`} role="status" aria-live="polite"><span>${said.text}</span>
    ${close && html`<button type="button" class="plain" aria-label="close" onClick=${close}>×</button>`}</div>`;
}

export function Choice({ label, value, options, onChange }) {
  return html`<label class="field"><span>${label}</span><select value=${value} onChange=${(event) => onChange(event.target.value)}>
    ${options.map((each) => {
      const [name, text] = Array.isArray(each) ? each : [each, each];
      return html`<option value=${name} selected=${String(name) === String(value)}>${text}</option>`;
    })}</select></label>`;
}

export function Input({ label, value, onInput, type = "text", ...more }) {
  return html`<label class="field"><span>${label}</span><input type=${type} value=${value} onInput=${(event) => onInput(event.target.value)} ...${more} /></label>`;
}

// The result of a call, again whenever one of `on` changes: {data, error, busy, again}.
export function useAnswer(call, on) {
  const [result, setResult] = useState({ data: null, error: null, busy: true });
  const [round, setRound] = useState(0);
  useEffect(() => {
    let gone = false;
    setResult((before) => ({ ...before, busy: true }));
    Promise.resolve(call()).then(
      (data) => gone || setResult({ data, error: null, busy: false }),
      (error) => gone || setResult((before) => ({ data: before.data, error: error.message, busy: false })),
    );
    return () => {
      gone = true;
    };
  }, [...on, round]);
  return { ...result, again: () => setRound(round + 1) };
}
