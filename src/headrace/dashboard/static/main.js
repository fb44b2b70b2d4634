// The application: header, navigation and the page that the address names: #/ is the overview, #/QUERY and #/QUERY/PAGE are about a query.

import { get } from "./api.js";
import { useLive } from "./live.js";
import { editorPage, pages, overview } from "./pages/index.js";
import { Choice, Fragment, html, render, State, useEffect, useState } from "./ui.js";

const RANGES = [[5, "5 minutes"], [15, "15 minutes"], [60, "1 hour"], [360, "6 hours"], ["", "all"]];

// The token did its work: the cookie is set. It must not stay in the address, where it would be copied along.
if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", location.pathname + location.hash);

const route = () => {
  const [, query = "", page = ""] = location.hash.match(/^#\/([^/]*)\/?([^/]*)/) || [];
  return { query, page };
};

function useRoute() {
  const [now, setNow] = useState(route());
  useEffect(() => {
    const changed = () => setNow(route());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  return now;
}

const stored = (name, fallback) => {
  try {
    return localStorage.getItem(`headrace-${name}`) ?? fallback;
  } catch {
    return fallback;
  }
};
const store = (name, value) => {
  try {
    localStorage.setItem(`headrace-${name}`, value);
  } catch {
    // Without storage, the choice is forgotten.
  }
};

function useTheme() {
  const [theme, setTheme] = useState(stored("theme", "auto"));
  useEffect(() => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    store("theme", theme);
    dispatchEvent(new Event("headrace-theme"));
    const system = matchMedia("(prefers-color-scheme: dark)");
    const changed = () => dispatchEvent(new Event("headrace-theme"));
    system.addEventListener("change", changed);
    return () => system.removeEventListener("change", changed);
  }, [theme]);
  return [theme, setTheme];
}

// Which parts of the monitor there are, asked again when a query comes or goes: the editor may be off.
function useParts(count) {
  const [parts, setParts] = useState({});
  useEffect(() => {
    get("parts").then(setParts, () => setParts({}));
  }, [count]);
  return parts;
}

function Header({ queries, query, page, linked, minutes, setMinutes, editor }) {
  const [theme, setTheme] = useTheme();
  const next = { auto: "dark", dark: "light", light: "auto" }[theme];
  const shown = query ? pages.filter((each) => !each.shownFor || each.shownFor(query)) : [];
  return html`<header class="top">
    <div class="bar-row">
      <a class="brand" href="#/">Headrace</a>
      ${queries && queries.length > 0 && html`<label class="field pick"><span class="hidden">query</span>
        <select value=${query ? query.id : ""} onChange=${(event) => (location.hash = event.target.value ? `#/${event.target.value}/${page}` : "#/")}>
          <option value="" selected=${!query}>all queries</option>
          ${queries.map((each) => html`<option value=${each.id} selected=${query && query.id === each.id}>${each.name}</option>`)}
        </select></label>`}
      ${editor.is && html`<a class="to-editor" href="#/editor" aria-current=${editor.shown ? "page" : undefined}>Editor</a>`}
      ${query && html`<${State} state=${linked || query.state !== "running" ? query.state : "unknown"} />`}
      ${query && query.version !== null && html`<span class="quiet">version ${query.version}</span>`}
      ${!linked && html`<span class="state gone" role="status">no connection, trying again</span>`}
      <span class="stretch"></span>
      ${query && html`<${Choice} label="last" value=${minutes ?? ""} options=${RANGES} onChange=${(value) => setMinutes(value === "" ? null : Number(value))} />`}
      <button type="button" class="plain" onClick=${() => setTheme(next)} title=${`colours: ${theme}; press for ${next}`}>${{ auto: "◐", dark: "●", light: "○" }[theme]}<span class="hidden">colours: ${theme}</span></button>
    </div>
    ${query && html`<nav aria-label="pages">${shown.map((each) => html`<a href=${`#/${query.id}/${each.id}`} aria-current=${page === each.id ? "page" : undefined}>${each.title}</a>`)}</nav>`}
  </header>`;
}

// A page that is loaded when it is opened.
function Late({ load, ...more }) {
  const [found, setFound] = useState(null);
  useEffect(() => {
    load().then((Page) => setFound({ Page }), () => setFound({ failed: true }));
  }, []);
  if (!found) return html`<p class="loading">Loading …</p>`;
  return found.failed ? html`<p class="said bad">This page could not be loaded.</p>` : html`<${found.Page} ...${more} />`;
}

function App() {
  const now = useRoute();
  const [minutes, setMinutes] = useState(stored("minutes", "15") === "" ? null : Number(stored("minutes", "15")));
  const edits = now.query === "editor";
  const { queries, live, linked, error } = useLive(edits ? null : now.query || null, minutes);
  const parts = useParts(queries ? queries.length : 0);
  const query = now.query && queries ? queries.find((each) => each.id === now.query) : null;
  const page = query ? pages.find((each) => each.id === now.page) || pages[0] : edits ? editorPage : overview;
  useEffect(() => {
    document.title = query ? `${query.name} · ${page.title} · Headrace` : edits ? "Editor · Headrace" : "Headrace";
  }, [query && query.name, page]);
  const choose = (value) => {
    store("minutes", value ?? "");
    setMinutes(value);
  };
  return html`<${Fragment}>
    <${Header} queries=${queries} query=${query} page=${query ? page.id : ""} linked=${linked} minutes=${minutes} setMinutes=${choose} editor=${{ is: parts.editor, shown: edits }} />
    <main id="page" class=${`page-${page.id}`}>${body(now, queries, query, live, page, error)}</main>
  </${Fragment}>`;
}

function body(now, queries, query, live, page, error) {
  if (error && error.status === 401) return html`<p class="said bad">This page is not open to you yet: ${error.message}</p>`;
  if (error) return html`<p class="said bad">${error.message}</p>`;
  if (!queries) return html`<p class="loading">Loading …</p>`;
  if (page === editorPage) return html`<${Late} load=${page.load} queries=${queries} />`;
  if (!now.query) return html`<${overview.Page} queries=${queries} />`;
  if (!query) return html`<p class="said bad">There is no such query here. <a href="#/">All queries</a></p>`;
  if (!live) return html`<p class="loading">Loading …</p>`;
  return html`<${page.Page} key=${`${query.id}/${page.id}`} query=${query} live=${live} />`;
}

document.getElementById("app").replaceChildren();
render(html`<${App} />`, document.getElementById("app"));
