// Holds the line to the daemon, draws what it says, and passes on what is clicked.

import { duration, fill, h } from "./dom.js";
import { askForToken, showLogs, showPlan } from "./dialogs.js";
import * as panels from "./panels.js";
import { choose, offer } from "./playground.js";
import { Store } from "./store.js";
import { Refused, ask, events, named, post } from "./wire.js";

const QUIET_SECONDS = 40; // the daemon says something every 15
const HOUR_EVERY = 15_000;
const RETRY_SECONDS = [1, 1, 2, 3, 5];

const store = new Store();
const link = document.getElementById("link");
const PANELS = ["summary", "memory", "hour", "cpu", "models", "queue", "news", "builds"];
let line = null;
let lastId = 0;
let drawing = 0;
let began = null;

// ---- what is seen

function draw() {
  if (drawing) return;
  drawing = requestAnimationFrame(() => {
    drawing = 0;
    if (!document.getElementById("status").hidden) {
      for (const name of PANELS) fill(document.getElementById(name), panels[name](store));
    }
    const { version, address } = store.sections;
    document.getElementById("foot").textContent = version ? `Enginehouse ${version}${address ? `, listening at ${address}` : ""}` : "";
  });
}

function show() {
  const playground = location.hash === "#playground" || store.admin === false;
  for (const name of ["status", "playground"]) {
    const on = (name === "playground") === playground;
    document.getElementById(name).hidden = !on;
    const tab = document.getElementById(`tab-${name}`);
    if (on) tab.setAttribute("aria-current", "page");
    else tab.removeAttribute("aria-current");
  }
  document.getElementById("tab-status").hidden = store.admin === false;
  document.getElementById("reload").hidden = !store.admin;
  if (playground) offer(store.admin ? store.models() : null).catch((error) => notice(error.message, "bad"));
  draw();
}

function notice(words, tone = "calm") {
  const place = document.getElementById("notices");
  const button = h("button.small", { type: "button", "aria-label": "Dismiss" }, "×");
  const made = h(`p.notice.${tone}`, {}, h("span", {}, words), button);
  button.addEventListener("click", () => made.remove());
  place.append(made);
  while (place.childElementCount > 4) place.firstElementChild.remove();
  if (tone !== "bad") setTimeout(() => made.remove(), 8000);
}

function say(state, words) {
  store.link = state;
  link.className = `link ${state}`;
  if (link.textContent !== words) link.textContent = words;
}

// ---- the line to the daemon

async function stay() {
  let tries = 0;
  for (;;) {
    line = new AbortController();
    try {
      await follow(() => {
        if (tries) notice("The daemon answers again.");
        tries = 0;
      });
    } catch (error) {
      if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
        if (await refused(error)) continue;
        return;
      }
    }
    const seconds = RETRY_SECONDS[Math.min(tries, RETRY_SECONDS.length - 1)];
    tries += 1;
    say("lost", tries > 1 ? `Not connected: the daemon does not answer. Trying again in ${duration(seconds)}.` : "Reconnecting…");
    await new Promise((wake) => setTimeout(wake, seconds * 1000));
  }
}

async function follow(connected) {
  const frames = events("admin/v1/live", { signal: line.signal, quiet: QUIET_SECONDS, headers: { "Last-Event-ID": String(lastId) } });
  let first = true;
  for await (const frame of frames) {
    if (frame.event === "state") {
      const parts = JSON.parse(frame.data);
      if (first) {
        first = false;
        store.forget();
        store.admin = true;
        connected();
        say("live", "Live");
        hour();
        store.take(parts);
        show();
        continue;
      }
      store.take(parts);
    } else if (frame.event === "overflow") {
      return;
    } else {
      hear(frame);
    }
    draw();
  }
}

function hear(frame) {
  const facts = JSON.parse(frame.data);
  const id = Number(frame.id) || 0;
  if (frame.event === "daemon_listening") {
    // Numbers begin anew with each run of the daemon.
    if (began !== null && began !== facts.at) notice("The daemon was started anew.");
    began = facts.at;
  }
  if (frame.event === "daemon_stopping") say("lost", "The daemon stops.");
  if (id) lastId = id;
  store.addNews({ id, name: frame.event, at: facts.at, level: facts.level, facts });
}

/** Whether to try again at once: after a token was given. Without the role `admin` there is the playground. */
async function refused(error) {
  if (error.status === 403 && error.code === "forbidden") {
    store.admin = false;
    say("live", "Playground only: this token has not the role admin");
    show();
    return false;
  }
  if (error.status === 403) {
    say("lost", error.message);
    return false;
  }
  say("lost", "A token is needed.");
  await new Promise((given) => askForToken(error.code === "unauthorized" && sentOne() ? error.message : "", given));
  return true;
}

function sentOne() {
  return Boolean(sessionStorage.getItem("enginehouse-token") || localStorage.getItem("enginehouse-token"));
}

async function hour() {
  if (store.admin && !document.hidden) {
    try {
      store.hour = await ask("admin/v1/history");
      draw();
    } catch {
      // The line says whether the daemon is there.
    }
  }
}

// ---- what is clicked

const ACTIONS = {
  theme: () => theme(true),
  token: () => askForToken("", () => location.reload()),
  load: ({ model }) => act(`Loading ${model}…`, `admin/v1/models/${named(model)}/load`, `${model} is ready.`),
  unload: ({ model }) => act(`Stopping ${model}…`, `admin/v1/models/${named(model)}/unload`, `${model} is stopped.`),
  pin: ({ model }) => act("", `admin/v1/models/${named(model)}/pin`, `${model} is never stopped for others now.`),
  unpin: ({ model }) => act("", `admin/v1/models/${named(model)}/unpin`, `${model} may be stopped for others again.`),
  clear: ({ build }) => act("", `admin/v1/builds/${named(build)}/clear`, `Nothing is held against ${build} any more.`),
  plan: ({ model }) => showPlan(model, store),
  logs: ({ model }) => showLogs(model),
  chat: ({ model }) => {
    location.hash = "#playground";
    choose(model);
  },
  reload: reload,
  "all-news": () => {
    store.allNews = !store.allNews;
    draw();
  },
  "only-warnings": () => {
    store.onlyWarnings = !store.onlyWarnings;
    draw();
  },
};

document.addEventListener("click", (event) => {
  const target = event.target.closest?.("[data-do]");
  if (target) ACTIONS[target.dataset.do]?.(target.dataset);
});

async function act(before, path, after) {
  if (before) notice(before);
  try {
    await post(path);
    notice(after);
  } catch (error) {
    notice(error.message, "bad");
  }
}

async function reload() {
  try {
    const answer = await post("admin/v1/reload");
    const changed = (answer.changes ?? []).map((change) => change.path);
    const waits = answer.needs_restart ?? [];
    notice(`The config was read again: ${changed.length ? `changed ${changed.join(", ")}` : "nothing has changed"}${waits.length ? `; waits for a restart: ${waits.join(", ")}` : ""}.`);
  } catch (error) {
    notice(error.message, "bad");
  }
}

// ---- colours

const THEMES = { system: ["◐", "as the system"], light: ["☀", "light"], dark: ["☾", "dark"] };

function theme(turn) {
  let now = "system";
  try {
    now = localStorage.getItem("enginehouse-theme") ?? "system";
  } catch {
    // kept nowhere
  }
  if (!(now in THEMES)) now = "system";
  if (turn) {
    const names = Object.keys(THEMES);
    now = names[(names.indexOf(now) + 1) % names.length];
    try {
      localStorage.setItem("enginehouse-theme", now);
    } catch {
      // as above
    }
  }
  if (now === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = now;
  const button = document.querySelector("[data-do=theme]");
  [button.textContent] = THEMES[now];
  button.setAttribute("aria-label", `Colours: ${THEMES[now][1]}`);
}

theme(false);
window.addEventListener("hashchange", show);
document.addEventListener("visibilitychange", hour);
setInterval(hour, HOUR_EVERY);
setInterval(() => {
  store.measure(performance.now() / 1000);
  draw();
}, 1000);
stay();
