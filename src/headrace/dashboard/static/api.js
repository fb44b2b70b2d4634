// Calls to the monitor's server. Addresses are relative, so that the monitor also works behind a proxy with a path.

const base = new URL("api/", document.baseURI);

export class Refused extends Error {
  constructor(status, body) {
    super(body.error || `the monitor answered ${status}`);
    this.status = status;
  }
}

async function answer(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    // Not JSON: only the status is known.
  }
  if (!response.ok) throw new Refused(response.status, body);
  return body;
}

// A response, or an error of status 0 if there is none.
async function sent(url, options) {
  try {
    return await fetch(url, { credentials: "same-origin", ...options });
  } catch {
    throw new Refused(0, { error: "The program does not answer. What was seen last stays here; when it runs again, this page goes on. Meanwhile headrace dashboard CHECKPOINT shows all that it did." });
  }
}

// GET api/PATH with these parameters; those that are null or "" are left out.
export async function get(path, parameters = {}) {
  const url = new URL(path, base);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  }
  return answer(await sent(url));
}

// POST a JSON body. The server refuses it without the cookie, or from another page.
export async function post(path, body) {
  const headers = { "Content-Type": "application/json" };
  return answer(await sent(new URL(path, base), { method: "POST", headers, body: JSON.stringify(body) }));
}

// What the server pushes: `heard(event, data)` for each event, `linked(bool)` when the connection comes and goes. Returns a function that ends it.
export function listen(parameters, heard, linked) {
  const url = new URL("stream", base);
  for (const [name, value] of Object.entries(parameters)) if (value !== null && value !== undefined) url.searchParams.set(name, value);
  const source = new EventSource(url, { withCredentials: true });
  for (const name of ["queries", "batch"]) source.addEventListener(name, (event) => heard(name, JSON.parse(event.data)));
  source.onopen = () => linked(true);
  source.onerror = () => linked(false);
  return () => source.close();
}
