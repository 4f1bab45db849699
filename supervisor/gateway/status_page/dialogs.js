// What opens over the page: the token, a plan, a log.

import { bytes, clock, duration, fill, h } from "./dom.js";
import { poolName, shown } from "./panels.js";
import { Refused, ask, events, keepToken, named, token } from "./wire.js";

const dialog = document.getElementById("dialog");
let leave = () => {};
const LINES_SHOWN = 2000;

dialog.addEventListener("close", () => {
  leave();
  leave = () => {};
});
dialog.addEventListener("click", (event) => {
  if (event.target === dialog || event.target.closest("[data-close]")) dialog.close();
});

function open(title, wide, ...content) {
  dialog.className = wide ? "wide" : "";
  dialog.replaceChildren(h("div.head", {}, h("h2", { id: "dialog-title" }, title), h("button.small", { type: "button", "data-close": "", "aria-label": "Close" }, "Close")), ...content);
  if (!dialog.open) dialog.showModal();
}

/** Ask for a token; `why` says what the daemon answered to the last one. */
export function askForToken(why, done) {
  const field = h("input", { type: "password", id: "token", name: "token", autocomplete: "current-password", spellcheck: "false", required: true });
  const remember = h("input", { type: "checkbox", id: "remember" });
  const form = h(
    "form",
    { method: "dialog" },
    h("p", {}, why || "The token of a caller in the daemon's config (auth.callers). It stays in this browser."),
    h("label", { for: "token" }, "Token"),
    field,
    h("label.check", { for: "remember" }, remember, " keep it when this tab is closed"),
    h("div.actions", {}, token() ? h("button.small", { type: "button", "data-forget": "" }, "Forget the token") : null, h("button.main", { type: "submit" }, "Use it")),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    keepToken(field.value.trim(), remember.checked);
    dialog.close();
    done();
  });
  form.querySelector("[data-forget]")?.addEventListener("click", () => {
    keepToken("", false);
    dialog.close();
    done();
  });
  open("Who are you?", false, form);
  field.focus();
}

const VERDICTS = {
  ready: "It is ready, and a slot is free: a request is served at once.",
  slot: "It is ready; a request waits for a slot.",
  starts: "It fits: a request starts it.",
  evicts: "It fits once idle models are stopped.",
  waits: "A request waits until running ones have ended.",
  concedes: "It fits only with a smaller plan.",
  never: "It does not fit this machine.",
};

export async function showPlan(model, store) {
  open(`What if ${model} were asked for now?`, true, h("p", { role: "status" }, "Asking…"));
  const body = h("div", {});
  try {
    fill(body, ...planned(await ask(`admin/v1/plan?model=${encodeURIComponent(model)}`), store));
  } catch (error) {
    fill(body, h("p.bad", { role: "alert" }, error.message));
  }
  if (dialog.open) open(`What if ${model} were asked for now?`, true, body);
}

function planned(plan, store) {
  const met = plan.ledger ?? {};
  const going = [...(met.would_evict ?? []).map((name) => `${name} would be stopped`), ...(met.would_drain ?? []).map((name) => `${name} would finish its requests and be stopped`)];
  return [
    h("p.verdict", {}, VERDICTS[met.verdict] ?? (plan.fits ? "It fits." : "It does not fit.")),
    met.why ? h("p", {}, met.why) : null,
    going.length ? h("ul", {}, going.map((words) => h("li", {}, words))) : null,
    met.expected_wait_seconds ? h("p", {}, `Expected wait: ${duration(met.expected_wait_seconds)}.`) : null,
    memoryTable(plan.memory, store),
    plan.warnings?.length ? h("ul.attention", {}, plan.warnings.map((words) => h("li", {}, words))) : null,
    plan.degraded?.length ? h("p.warn", {}, `Given up: ${plan.degraded.join(", ")}`) : null,
    h("h3", {}, "Choices"),
    h("dl.choices", {}, (plan.rationale ?? []).map((row) => [h("dt", {}, row.choice, " ", h("b", {}, shown(row.value))), h("dd", {}, row.reason)])),
    h("details", {}, h("summary", {}, "Command"), h("pre", { tabindex: 0, "aria-label": "Command" }, (plan.argv ?? []).join(" "))),
  ];
}

function memoryTable(memory, store) {
  const parts = ["weights", "kv", "compute", "other", "total"];
  const rows = Object.entries(memory ?? {});
  if (!rows.length) return null;
  return h(
    "table.memory",
    {},
    h("caption.hide", {}, "Memory of the plan"),
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "memory"), rows.map(([name]) => h("th", { scope: "col" }, poolName(name, store.sections.ledger?.[name]))))),
    h("tbody", {}, [...parts, "budget"].map((part) => h("tr", {}, h("th", { scope: "row" }, part), rows.map(([, row]) => h("td", {}, row[part] === null || row[part] === undefined ? "–" : bytes(row[part])))))),
  );
}

export function showLogs(model) {
  const lines = h("ol.log", { tabindex: 0, "aria-label": `Log of ${model}` });
  const state = h("p.note", { role: "status" }, "Asking…");
  const follow = h("input", { type: "checkbox", id: "follow", checked: true });
  open(`Log of ${model}`, true, h("div.logbar", {}, state, h("label.check", { for: "follow" }, follow, " stay at the end")), lines);
  const cut = new AbortController();
  leave = () => cut.abort();
  const tell = (words) => {
    state.textContent = words;
  };
  keepReading(model, cut.signal, tell, () => {
    let first = true;
    return (rows) => {
      if (first) lines.replaceChildren(); // a line that was cut begins with the last lines again
      first = false;
      tell("Followed live.");
      lines.append(...rows.map(logLine));
      while (lines.childElementCount > LINES_SHOWN) lines.firstElementChild.remove();
      if (follow.checked) lines.scrollTop = lines.scrollHeight;
    };
  });
}

async function keepReading(model, signal, tell, begin) {
  while (!signal.aborted) {
    try {
      const take = begin();
      for await (const frame of events(`admin/v1/models/${named(model)}/logs?follow=1`, { signal, quiet: 60 })) take(JSON.parse(frame.data));
    } catch (error) {
      if (error instanceof Refused) return tell(error.message);
    }
    if (signal.aborted) return;
    tell("Not connected, trying again…");
    await new Promise((wake) => setTimeout(wake, 2000));
  }
}

function logLine(row) {
  return h(`li.${row.kind}`, {}, row.at ? h("time", {}, clock(row.at)) : null, h("span", {}, row.line));
}
