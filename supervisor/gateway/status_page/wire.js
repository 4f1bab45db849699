// Asks the daemon: relative addresses, so that a proxy may put it below any path; a token goes in a header, never in an address.

const KEY = "enginehouse-token";

export class Refused extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export function token() {
  return read(sessionStorage) || read(localStorage);
}

export function keepToken(text, remember) {
  for (const store of [sessionStorage, localStorage]) {
    try {
      store.removeItem(KEY);
    } catch {
      // A browser that keeps nothing asks again next time.
    }
  }
  if (!text) return;
  try {
    (remember ? localStorage : sessionStorage).setItem(KEY, text);
  } catch {
    // as above
  }
}

function read(store) {
  try {
    return store.getItem(KEY) || "";
  } catch {
    return "";
  }
}

/** The answer's body as JSON. Throws `Refused` with the daemon's own words. */
export async function ask(path, options = {}) {
  const answer = await send(path, options);
  return answer.json();
}

export function post(path, body, options = {}) {
  const given = body === undefined ? {} : { body: JSON.stringify(body) };
  return ask(path, { method: "POST", ...given, ...options });
}

/** A model's or a build's name within an address; its slashes stay. */
export function named(name) {
  return name.split("/").map(encodeURIComponent).join("/");
}

export async function send(path, options = {}) {
  const headers = { ...(options.body ? { "Content-Type": "application/json" } : {}), ...options.headers };
  const given = token();
  if (given) headers.Authorization = `Bearer ${given}`;
  const answer = await fetch(path, { cache: "no-store", credentials: "same-origin", ...options, headers });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  const error = said?.error ?? {};
  throw new Refused(answer.status, error.code ?? "", error.message ?? `The answer was ${answer.status}.`);
}

/** Server-sent events of an address, one after the other: {id, event, data}. `quiet`: seconds without a byte that mean a dead line. */
export async function* events(path, { signal, quiet, ...options } = {}) {
  const cut = new AbortController();
  const stop = () => cut.abort();
  signal?.addEventListener("abort", stop);
  let timer = 0;
  const heard = () => {
    if (!quiet) return;
    clearTimeout(timer);
    timer = setTimeout(stop, quiet * 1000);
  };
  try {
    heard();
    const answer = await send(path, { ...options, signal: cut.signal });
    const reader = answer.body.getReader();
    const decoder = new TextDecoder();
    let held = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      heard();
      held += decoder.decode(value, { stream: true });
      const frames = held.split(/\r?\n\r?\n/);
      held = frames.pop();
      for (const frame of frames) {
        const found = parse(frame);
        if (found) yield found;
      }
    }
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", stop);
    cut.abort();
  }
}

function parse(frame) {
  const made = { id: "", event: "message", data: "" };
  for (const line of frame.split(/\r?\n/)) {
    if (!line || line.startsWith(":")) continue;
    const at = line.indexOf(":");
    const field = at < 0 ? line : line.slice(0, at);
    const value = at < 0 ? "" : line.slice(at + 1).replace(/^ /, "");
    if (field === "data") made.data += (made.data ? "\n" : "") + value;
    else if (field in made) made[field] = value;
  }
  return made.data ? made : null;
}
