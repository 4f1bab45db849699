// Try a model: a chat, streamed.

import { duration, fill, h, number, plural } from "./dom.js";
import { pictures } from "./pictures.js";
import { ask, events } from "./wire.js";

const view = document.getElementById("playground");
const MOST_MODELS = 500;

let talk = [];
let running = null;
let parts = null;
let known = [];

/** Show the models that can be asked; `rows` from the status, or null for a caller that may not see it. */
export async function offer(rows) {
  if (rows) known = rows.filter((row) => !row.card?.broken).map((row) => entry(row.id, row.card ?? {}));
  else known = (await ask("v1/models")).data.map((row) => entry(row.id, row));
  build();
  const usable = known.filter((row) => can(row, "chat") || can(row, "images")).slice(0, MOST_MODELS);
  const chosen = parts.model.value;
  fill(parts.model, usable.map((row) => h("option", { value: row.id, "data-key": row.id }, row.id)));
  if (usable.some((row) => row.id === chosen)) parts.model.value = chosen;
  fill(parts.none, usable.length ? null : "There is no model that chats or makes pictures.");
  switchForm();
}

function entry(id, { capabilities, pictures: can }) {
  return { id, capabilities: capabilities ?? [], pictures: can ?? null };
}

export function choose(model) {
  build();
  parts.model.value = model;
  switchForm();
}

function can(row, what) {
  return row.capabilities.includes(what);
}

function chosen() {
  return known.find((one) => one.id === parts.model.value);
}

function switchForm() {
  const row = chosen();
  const draws = Boolean(row && can(row, "images") && !can(row, "chat"));
  parts.chat.hidden = draws;
  parts.draw.hidden = !draws;
  parts.options.hidden = draws;
  if (draws) parts.drawn();
}

function build() {
  if (parts) return;
  const model = h("select", { id: "pg-model" });
  const system = h("textarea", { id: "pg-system", rows: 2, spellcheck: "false" });
  const most = h("input", { id: "pg-most", type: "number", min: 1, max: 100000, value: 512, inputmode: "numeric" });
  const heat = h("input", { id: "pg-heat", type: "number", min: 0, max: 2, step: 0.1, placeholder: "as the model says" });
  const text = h("textarea", { id: "pg-text", rows: 3, placeholder: "Say something", "aria-label": "Message" });
  const send = h("button.main", { type: "submit" }, "Send");
  const stop = h("button", { type: "button", disabled: true }, "Stop");
  const anew = h("button", { type: "button" }, "Begin anew");
  const log = h("ol.talk", { "aria-label": "Conversation", role: "log" });
  const figures = h("p.note", { role: "status" });
  const none = h("p.empty", {});
  const form = h("form.say", {}, text, h("div.actions", {}, send, stop, anew), figures);
  const chat = h("div.chat", {}, log, form);
  const draw = h("div.draw", { hidden: true });
  const options = h("details", {}, h("summary", {}, "Settings of the chat"), h("div.fields", {}, field("System prompt", system, "wide"), field("At most tokens", most), field("Temperature", heat)));
  view.replaceChildren(h("section.card", { "aria-labelledby": "h-pg" }, h("div.head", {}, h("h2", { id: "h-pg" }, "Playground")), h("div.fields", {}, field("Model", model)), options, none, chat, draw));
  parts = { model, system, most, heat, text, send, stop, log, figures, none, chat, draw, options };
  parts.drawn = pictures(draw, chosen);
  model.addEventListener("change", switchForm);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    say();
  });
  text.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      say();
    }
  });
  stop.addEventListener("click", () => running?.abort());
  anew.addEventListener("click", () => {
    running?.abort();
    talk = [];
    fill(log);
    figures.textContent = "";
    text.focus();
  });
}

function field(label, input, more = "") {
  return h(more ? `div.field.${more}` : "div.field", {}, h("label", { for: input.id }, label), input);
}

async function say() {
  const words = parts.text.value.trim();
  if (!words || running || !parts.model.value) return;
  parts.text.value = "";
  talk.push({ role: "user", content: words });
  parts.log.append(bubble("user", words));
  const thought = h("details.thought", { hidden: true }, h("summary", {}, "Thoughts"), h("p", {}));
  const answer = h("p.text", {});
  const item = h("li.assistant", {}, h("b.hide", {}, parts.model.value), thought, answer);
  parts.log.append(item);
  running = new AbortController();
  parts.send.disabled = true;
  parts.stop.disabled = false;
  parts.figures.textContent = "Waiting…";
  const begun = performance.now();
  const made = { text: "", chunks: 0, first: null, timings: null };
  try {
    await stream(made, begun, thought, answer);
    done(made, begun, "");
  } catch (error) {
    const stopped = running.signal.aborted;
    done(made, begun, stopped ? "Stopped. " : "");
    if (!stopped) item.append(h("p.bad", { role: "alert" }, error.message));
  } finally {
    running = null;
    parts.send.disabled = false;
    parts.stop.disabled = true;
    if (made.text) talk.push({ role: "assistant", content: made.text });
    else talk.pop();
  }
}

async function stream(made, begun, thought, answer) {
  const system = parts.system.value.trim();
  const heat = parts.heat.value;
  const body = {
    model: parts.model.value,
    messages: [...(system ? [{ role: "system", content: system }] : []), ...talk],
    max_tokens: Math.max(1, Number(parts.most.value) || 512),
    stream: true,
    ...(heat === "" ? {} : { temperature: Number(heat) }),
  };
  const options = { method: "POST", body: JSON.stringify(body), signal: running.signal };
  for await (const frame of events("v1/chat/completions", options)) {
    if (frame.data === "[DONE]") return;
    const chunk = JSON.parse(frame.data);
    if (chunk.error) throw new Error(chunk.error.message);
    made.timings = chunk.timings ?? made.timings;
    const delta = chunk.choices?.[0]?.delta ?? {};
    if (delta.reasoning_content) {
      thought.hidden = false;
      thought.lastChild.append(delta.reasoning_content);
    }
    if (!delta.content && !delta.reasoning_content) continue;
    made.first ??= performance.now() - begun;
    made.chunks += 1;
    if (delta.content) {
      made.text += delta.content;
      answer.append(delta.content);
    }
    show(made, begun);
    item(answer);
  }
}

function item(answer) {
  const log = parts.log;
  if (log.scrollHeight - log.scrollTop - log.clientHeight < 160) answer.scrollIntoView({ block: "nearest" });
}

function show(made, begun) {
  const seconds = (performance.now() - begun - made.first) / 1000;
  const rate = seconds > 0.2 ? `, ${number(Math.round(((made.chunks - 1) / seconds) * 10) / 10)} tokens/s` : "";
  parts.figures.textContent = `${plural(made.chunks, "token")}${rate}`;
}

function done(made, begun, before) {
  if (made.first === null) {
    parts.figures.textContent = before || "No answer.";
    return;
  }
  const seconds = (performance.now() - begun - made.first) / 1000;
  const count = made.timings?.predicted_n ?? made.chunks;
  const rate = made.timings?.predicted_per_second ?? (seconds > 0 ? (made.chunks - 1) / seconds : 0);
  parts.figures.textContent = `${before}${plural(count, "token")}, ${number(Math.round(rate * 10) / 10)} tokens/s, the first after ${duration(made.first / 1000)}.`;
}

function bubble(who, words) {
  return h(`li.${who}`, {}, h("b.hide", {}, who), h("p.text", {}, words));
}
