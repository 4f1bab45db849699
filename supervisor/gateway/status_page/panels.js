// The panels: from what the store holds to elements. They change nothing and ask nobody.

import { bytes, clock, duration, h, number, plural, s } from "./dom.js";

const ACTIVE = new Set(["starting", "ready", "unresponsive", "stopping", "backoff", "failed"]);
const GOOD = new Set(["ready", "usable"]);
const BAD = new Set(["failed", "unresponsive", "quarantined", "broken"]);
const MOVING = new Set(["starting", "stopping", "backoff", "suspect", "probation"]);
const COLOURS = 7;

function tone(word) {
  if (GOOD.has(word)) return "good";
  if (BAD.has(word)) return "bad";
  return MOVING.has(word) ? "warn" : "calm";
}

export function pill(word) {
  return h(`span.pill.${tone(word)}`, {}, word);
}

function button(label, action, data = {}, more = {}) {
  const attributes = Object.fromEntries(Object.entries(data).map(([key, value]) => [`data-${key}`, value]));
  return h("button.small", { type: "button", "data-do": action, ...attributes, ...more }, label);
}

function head(id, title, ...more) {
  return h("div.head", {}, h("h2", { id: `h-${id}` }, title), ...more);
}

function colourOf(name, store) {
  const names = store.models().map((row) => row.id).sort();
  return `c${Math.max(0, names.indexOf(name)) % COLOURS}`;
}

function since(moment) {
  return moment ? Math.max(0, (Date.now() - new Date(moment).getTime()) / 1000) : null;
}

// ---- in short

export function summary(store) {
  const rows = store.models();
  const at = (state) => rows.filter((row) => row.state === state).length;
  const running = rows.reduce((sum, row) => sum + (row.instance?.leases ?? 0), 0);
  const waiting = store.sections.queue?.waiting ?? 0;
  const speed = Object.values(store.rates).reduce((sum, rate) => sum + rate, 0);
  const others = ["starting", "stopping", "backoff", "failed", "unresponsive"].filter(at).map((state) => `${at(state)} ${state}`);
  const pools = Object.entries(store.sections.ledger ?? {});
  const [name, pool] = pools.find(([key]) => key !== "host") ?? pools[0] ?? ["", null];
  return [
    h(
      "dl.tiles",
      {},
      tile("Models ready", String(at("ready")), others.join(", ") || `of ${plural(rows.length, "model")}`),
      tile("Requests", String(running), waiting ? `running, ${waiting} waiting` : "running, none waiting"),
      tile("Tokens a second", speed >= 10 ? String(Math.round(speed)) : speed.toFixed(1), "all models, now"),
      tile(
        pool ? `Memory, ${poolName(name, pool)}` : "Memory",
        pool ? bytes(pool.reserved) : "0 B",
        pool?.budget === null || !pool ? "promised" : `promised of ${bytes(pool.budget)}`,
      ),
    ),
    attention(store, rows),
  ];
}

function without(name, words) {
  return words?.startsWith(`${name} `) ? words.slice(name.length + 1) : words;
}

function tile(label, value, note) {
  return h("div.tile", {}, h("dt", {}, label), h("dd", {}, h("strong", {}, value), h("small", {}, note)));
}

function attention(store, rows) {
  const said = [];
  for (const row of rows) {
    if (row.state === "failed") said.push([`${row.id} was given up`, without(row.id, row.instance.failure)]);
    else if (row.state === "unresponsive") said.push([`${row.id} stands still`, "It is being replaced."]);
    for (const warning of row.plan?.warnings ?? []) if (row.state === "ready") said.push([row.id, warning]);
  }
  for (const build of store.sections.builds ?? []) {
    if (build.health === "quarantined") said.push([`Build ${build.name} is set aside`, build.reason]);
  }
  for (const [name, pool] of Object.entries(store.sections.ledger ?? {})) {
    if (pool.free !== null && pool.free < 0) said.push([`${name} has promised too much`, `${bytes(-pool.free)} over its budget`]);
  }
  const throttled = store.sections.cpu?.throttled_share;
  if (throttled > 0.25) said.push(["The CPU quota holds engines back", `${Math.round(throttled * 100)} % of the last periods`]);
  if (!said.length) return null;
  return h("ul.attention", { "aria-label": "Needs a look" }, said.map(([what, why]) => h("li", {}, h("b", {}, what), why ? `: ${why}` : "")));
}

// ---- memory

export function poolName(name, pool) {
  if (name === "host") return "host";
  return pool?.devices?.length ? pool.devices.join(", ") : name;
}

export function memory(store) {
  const pools = Object.entries(store.sections.ledger ?? {});
  return [
    head("memory", "Memory"),
    pools.length ? pools.map(([name, pool]) => poolBar(name, pool, store)) : h("p.empty", {}, "Not known yet: it is looked at once there are a model and a build for it."),
  ];
}

function poolBar(name, pool, store) {
  const parts = pool.entries
    .map((entry) => ({ name: entry.model, size: entry.counts ?? entry.predicted ?? 0, colour: colourOf(entry.model, store), note: entry.stage === "releasing" ? "on its way back" : "" }))
    .sort((a, b) => b.size - a.size);
  const shared = pool.reserved - parts.reduce((sum, part) => sum + part.size, 0);
  if (shared > 0) parts.push({ name: "files that several share", size: shared, colour: "shared", note: "" });
  if (pool.free > 0) parts.push({ name: "free", size: pool.free, colour: "free", note: "" });
  if (pool.reserve > 0) parts.push({ name: "kept free", size: pool.reserve, colour: "kept", note: "" });
  // Where the budget is a small part of the machine by the owner's wish, what others hold would hide the rest.
  if (pool.foreign > 0) parts.push({ name: "others", size: pool.foreign, colour: "foreign", note: "", aside: pool.foreign > 2 * (pool.budget ?? 0) });
  const words = parts.map((part) => `${part.name} ${bytes(part.size)}`).join(", ");
  return h(
    "div.pool",
    { "data-key": name },
    h("h3", {}, poolName(name, pool), h("small", {}, pool.budget === null ? "budget not known" : `${bytes(pool.reserved)} promised of ${bytes(pool.budget)}`)),
    h("div.bar", { role: "img", "aria-label": `${poolName(name, pool)}: ${words}` }, parts.filter((part) => !part.aside).map((part) => h(`i.${part.colour}`, { grow: Math.max(part.size, 1), title: `${part.name}: ${bytes(part.size)}` }))),
    h("ul.legend", { "aria-hidden": "true" }, parts.map((part) => h("li", {}, h(`i.${part.colour}`), h("span", {}, part.name, part.note ? ` (${part.note})` : ""), h("b", {}, bytes(part.size))))),
    pool.why ? h("details", {}, h("summary", {}, "Why this budget"), h("p", {}, pool.why)) : null,
  );
}

// ---- processor

export function cpu(store) {
  const found = store.sections.cpu;
  if (!found) return [head("cpu", "Processor"), h("p.empty", {}, "Not looked at yet.")];
  const share = found.throttled_share;
  return [
    head("cpu", "Processor", h("small", {}, `${number(found.cpus)} CPUs, ${plural(found.threads, "thread")}`)),
    found.quota !== null && share !== null
      ? h(
          "div",
          {},
          h("div.bar.thin", { role: "img", "aria-label": `Stood still in ${Math.round(share * 100)} % of the last periods` }, h("i.hot", { grow: share * 100 }), h("i.free", { grow: 100 - share * 100 })),
          h("p.note", {}, `Quota of ${number(found.quota)} CPUs; stood still in ${Math.round(share * 100)} % of the last periods.`),
        )
      : h("p.note", {}, found.quota === null ? "No CPU quota." : "A CPU quota; its throttling is not known yet."),
    found.why ? h("details", {}, h("summary", {}, "Where that comes from"), h("p", {}, `${found.why}${found.source ? `, from ${found.source}` : ""}`)) : null,
  ];
}

// ---- the last hour

export function hour(store) {
  const columns = store.hour;
  if (!columns || columns.at.length < 2) return [head("hour", "Last hour"), h("p.empty", {}, "A line appears here after some seconds.")];
  const speed = columns.tokens_per_second;
  return [
    head("hour", "Last hour"),
    line("Tokens a second", speed, (value) => number(value)),
    line("Requests that run", columns.running, (value) => String(value)),
    line("Requests that wait", columns.waiting, (value) => String(value)),
    Object.entries(columns.pools).map(([name, values]) => line(`Memory promised, ${poolName(name, store.sections.ledger?.[name])}`, values, bytes)),
  ];
}

function line(label, values, say) {
  const known = values.filter((value) => value !== null);
  const top = Math.max(...known, 0);
  const now = values.at(-1);
  const words = `now ${now === null ? "not known" : say(now)}, at most ${say(top)}`;
  const step = 360 / Math.max(1, values.length - 1);
  let path = "";
  let from = null;
  values.forEach((value, at) => {
    if (value === null) return;
    from ??= (at * step).toFixed(1);
    const y = 38 - (top ? (value / top) * 34 : 0);
    path += `${path && values[at - 1] !== null ? "L" : "M"}${(at * step).toFixed(1)} ${y.toFixed(1)}`;
  });
  return h(
    "figure.line",
    { "data-key": label },
    h("figcaption", {}, h("span", {}, label), h("b", {}, now === null ? "–" : say(now))),
    s("svg", { viewBox: "0 0 360 40", preserveAspectRatio: "none", role: "img", "aria-label": `${label}: ${words}` }, s("path.area", { d: path ? `${path}L360 40L${from} 40Z` : "" }), s("path.stroke", { d: path })),
  );
}

// ---- models

export function models(store) {
  const rows = store.models().sort((a, b) => rank(a) - rank(b) || a.id.localeCompare(b.id));
  const busy = rows.filter((row) => ACTIVE.has(row.state) || row.instance?.last_exit);
  const rest = rows.filter((row) => !busy.includes(row));
  return [
    head("models", "Models", h("small", {}, plural(rows.length, "model"))),
    rows.length ? null : h("p.empty", {}, "There are no models yet. Put GGUF files into a folder of ", h("code", {}, "model_dirs"), ", then read the config again."),
    busy.map((row) => model(row, store)),
    rest.length ? h("details.rest", { open: rest.length <= 8 || !busy.length }, h("summary", {}, `${plural(rest.length, "model")} at rest`), rest.map((row) => model(row, store))) : null,
  ];
}

function rank(row) {
  return ["failed", "unresponsive", "starting", "stopping", "backoff", "ready"].indexOf(row.state) + 1 || 9;
}

function model(row, store) {
  const { instance, card, plan } = row;
  return h(
    "article.model",
    { "data-key": `m:${row.id}` },
    h("div.line1", {}, h(`i.dot.${colourOf(row.id, store)}`), h("h3", {}, row.id), pill(row.state), instance?.pinned ? h("span.pill.calm", {}, "pinned") : null, actions(row, store)),
    h("p.facts", {}, facts(row, store).join(" · ")),
    row.state === "starting" ? progress(instance) : null,
    instance && ["ready", "unresponsive", "stopping"].includes(row.state) ? slots(instance) : null,
    card?.broken ? h("p.bad", {}, card.broken) : null,
    instance?.failure ? h("p.bad", {}, instance.failure) : null,
    plan?.degraded?.length ? h("p.warn", {}, `Launched with less than wished: ${plan.degraded.join(", ")}`) : null,
    instance && ["ready", "starting", "unresponsive"].includes(row.state) ? columns(instance.memory, store) : null,
    plan ? reasons(plan) : null,
    instance?.last_exit ? lastExit(instance.last_exit) : null,
  );
}

function facts({ instance, card, plan, state, id }, store) {
  const said = [];
  if (instance && state !== "stopped" && instance.build) said.push(`build ${instance.build}`);
  const context = plan?.ctx_size ?? card?.context_length;
  if (context) said.push(`${context.toLocaleString("en")} tokens of context`);
  if (card?.quantization) said.push(card.quantization);
  if (card?.file_bytes) said.push(bytes(card.file_bytes));
  if (card?.capabilities?.length) said.push(card.capabilities.join(", "));
  if (instance && ACTIVE.has(state)) said.push(`${state} for ${duration(since(instance.since))}`);
  if (state === "ready") said.push(`${number(Math.round((store.rates[id] ?? 0) * 10) / 10)} tokens/s`);
  return said;
}

function progress(instance) {
  const share = instance.load_share;
  return h("progress", { max: 1, value: share, "aria-label": "Loaded" });
}

function slots(instance) {
  const total = instance.slots ?? 0;
  if (!total) return null;
  const dots = Array.from({ length: Math.min(total, 32) }, (_, at) => h(at < instance.leases ? "i.slot.used" : "i.slot"));
  return h("p.slots", {}, h("span", { "aria-hidden": "true" }, dots), `${instance.leases} of ${plural(total, "slot")} in use`);
}

function columns(held, store) {
  const pools = Object.entries(held ?? {});
  if (!pools.length) return null;
  const cell = (value) => h("td", {}, value === null || value === undefined ? "–" : bytes(value));
  return h(
    "table.memory",
    {},
    h("caption.hide", {}, "Memory of this model"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "memory"), ["predicted", "declared", "observed"].map((word) => h("th", { scope: "col" }, word)))),
    h("tbody", {}, pools.map(([name, row]) => h("tr", {}, h("th", { scope: "row" }, poolName(name, store.sections.ledger?.[name])), cell(row.predicted), cell(row.declared), cell(row.observed)))),
  );
}

export function reasons(plan) {
  return h(
    "details.plan",
    {},
    h("summary", {}, "Plan and its reasons"),
    h("dl", {}, (plan.rationale ?? []).map((row) => [h("dt", {}, row.choice, " ", h("b", {}, shown(row.value))), h("dd", {}, row.reason)])),
  );
}

export function shown(value) {
  if (value === null || value === undefined) return "not set";
  if (Array.isArray(value)) return value.length ? value.map(String).join(", ") : "none";
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

function lastExit(report) {
  const how = report.signal ? `signal ${report.signal}` : `code ${report.code}`;
  return h(
    "details.exit",
    {},
    h("summary", {}, report.planned ? `Last stop, ${clock(report.at)}: as asked` : `Last exit, ${clock(report.at)}: ${report.kind}`),
    h("p", {}, `${report.why} (while ${report.phase}, ${how}; to blame: ${report.blames})`),
    report.log?.length ? h("pre", { tabindex: 0, "aria-label": "Last lines of its log" }, report.log.join("\n")) : null,
  );
}

function actions(row, store) {
  const data = { model: row.id };
  const named = (word) => ({ "aria-label": `${word} ${row.id}` });
  const up = ["ready", "starting", "unresponsive", "backoff"].includes(row.state);
  const made = [];
  if (store.admin) {
    if (row.state !== "broken") {
      made.push(up ? button("Unload", "unload", data, named("Unload")) : button("Load", "load", data, { ...named("Load"), disabled: row.state === "stopping" }));
      made.push(row.instance?.pinned ? button("Unpin", "unpin", data, named("Unpin")) : button("Pin", "pin", data, named("Pin")));
      made.push(button("Plan", "plan", data, named("Plan")));
    }
    if (row.instance) made.push(button("Logs", "logs", data, named("Logs")));
  }
  return h("div.actions", {}, made);
}

// ---- queue

export function queue(store) {
  const tickets = store.sections.queue?.tickets ?? [];
  return [
    head("queue", "Queue", h("small", {}, tickets.length ? `${tickets.length} waiting` : "")),
    tickets.length ? h("ol.queue", {}, tickets.map(ticket)) : h("p.empty", {}, "Nobody waits."),
  ];
}

function ticket(row) {
  const more = row.expected_wait_seconds === null || row.expected_wait_seconds === undefined ? "" : `, about ${duration(row.expected_wait_seconds)} more`;
  return h(
    "li",
    { "data-key": `q:${row.request_id}` },
    h("div.line1", {}, h("span.place", {}, `#${row.position}`), h("b", {}, row.model), h("span", {}, `for ${row.caller}`), row.lane ? h("span.pill.calm", {}, row.lane) : null, h("span.grow", {}, `waits ${duration(row.waited_seconds)}${more}`)),
    row.why ? h("p.note", {}, row.why) : null,
  );
}

// ---- builds

export function builds(store) {
  const rows = store.sections.builds ?? [];
  return [head("builds", "Builds"), rows.length ? rows.map((row) => build(row, store)) : h("p.empty", {}, "No build was found: put llama-server on PATH, or name it in the config.")];
}

function build(row, store) {
  const data = { build: row.name };
  const blamed = row.strikes?.length || row.set_aside_for?.length || row.health !== "usable";
  return h(
    "article.build",
    { "data-key": `b:${row.name}` },
    h(
      "div.line1",
      {},
      h("h3", {}, row.name),
      pill(row.health),
      row.pinned ? h("span.pill.calm", {}, "pinned") : null,
      store.admin && blamed ? h("div.actions", {}, button("Clear", "clear", data, { "aria-label": `Clear what is held against ${row.name}` })) : null,
    ),
    h("p.facts", {}, [row.engine, row.version ? `version ${row.version}` : null, row.devices?.length ? row.devices.join(", ") : null].filter(Boolean).join(" · ")),
    row.reason ? h("p.bad", {}, row.reason, row.until ? ` (until: ${row.until})` : "") : null,
    row.set_aside_for?.length ? h("p.warn", {}, `Not used for ${row.set_aside_for.map((pair) => pair.model).join(", ")}`) : null,
    row.strikes?.length ? h("details", {}, h("summary", {}, plural(row.strikes.length, "strike")), h("ol.strikes", {}, row.strikes.map(strike))) : null,
  );
}

function strike(row) {
  return h("li", {}, `${clock(row.at)} ${row.kind}${row.model ? ` with ${row.model}` : ""}${row.why ? `: ${row.why}` : ""}`, row.log?.length ? h("pre", { tabindex: 0, "aria-label": "Log of the strike" }, row.log.join("\n")) : null);
}

// ---- what was decided

const NEWS_FIRST = 12;
const NEWS_MOST = 100;
const HIDDEN = new Set(["sentence", "at", "level", "log", "traceback", "why", "reason"]);

export function news(store) {
  const only = store.onlyWarnings;
  const rows = store.news.filter((row) => !only || weight(row) !== "calm");
  const shown = rows.slice(0, store.allNews ? NEWS_MOST : NEWS_FIRST);
  return [
    head("news", "What was decided", h("button.small", { type: "button", "data-do": "only-warnings", "aria-pressed": String(Boolean(only)) }, "Warnings only")),
    rows.length ? h("ol.news", {}, shown.map(item)) : h("p.empty", {}, only ? "No warnings." : "Nothing yet."),
    rows.length > NEWS_FIRST ? h("div.actions", {}, h("button.small", { type: "button", "data-do": "all-news", "aria-expanded": String(Boolean(store.allNews)) }, store.allNews ? "Fewer" : `Earlier ones (${Math.min(rows.length, NEWS_MOST) - NEWS_FIRST})`)) : null,
  ];
}

function item(row) {
  const rest = Object.entries(row.facts).filter(([key, value]) => !HIDDEN.has(key) && value !== null);
  const level = weight(row);
  return h(
    `li.${level}`,
    { "data-key": `n:${row.id}:${row.at}` },
    h("details", {}, h("summary", {}, h("time", {}, clock(row.at)), level === "calm" ? null : h(`span.pill.${level}`, {}, level === "bad" ? "error" : "warning"), h("span", {}, row.facts.sentence ?? row.name)), h("dl.facts", {}, rest.map(([key, value]) => [h("dt", {}, key.replaceAll("_", " ")), h("dd", {}, fact(key, value))])), row.facts.log?.length ? h("pre", { tabindex: 0, "aria-label": "Its log" }, [].concat(row.facts.log).join("\n")) : null),
  );
}

function weight({ name, level, facts }) {
  if (level === "error" || (name === "instance_changed" && facts.new === "failed")) return "bad";
  return level === "warning" || name === "launch_exited" ? "warn" : "calm";
}

function fact(key, value) {
  if (typeof value === "number" && key.endsWith("_bytes")) return bytes(value);
  if (typeof value === "number" && (key === "seconds" || key.endsWith("_seconds"))) return duration(value);
  if (key === "memory" && typeof value === "object") return Object.entries(value).map(([pool, row]) => `${pool}: ${Object.entries(row).map(([name, size]) => `${name} ${bytes(size)}`).join(", ")}`).join("; ");
  return shown(value);
}
