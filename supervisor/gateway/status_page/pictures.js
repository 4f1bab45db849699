// Try a model that makes pictures: a job, followed to its end.

import { duration, h, number } from "./dom.js";
import { Refused, ask, events, named, post, send } from "./wire.js";

const STATES = { queued: "Waiting for its turn", starting: "The model is being loaded", loading: "The model is being loaded", drawing: "Drawing", decoding: "Finishing the picture", done: "Done", failed: "Failed", cancelled: "Cancelled" };

/** Build the form into `place`; `current` gives the chosen model, `{id, pictures}`. The answer is to be called when another is chosen. */
export function pictures(place, current) {
  const prompt = h("textarea", { id: "pic-prompt", rows: 3, placeholder: "What is to be seen" });
  const size = h("input", { id: "pic-size", pattern: "[0-9]+x[0-9]+", spellcheck: "false" });
  const steps = h("input", { id: "pic-steps", type: "number", min: 1, max: 1000, inputmode: "numeric" });
  const seed = h("input", { id: "pic-seed", type: "number", min: 0, inputmode: "numeric", placeholder: "by chance" });
  const source = h("input", { id: "pic-source", type: "file", accept: "image/png,image/jpeg", multiple: true });
  const sources = h("div.field.wide", {}, h("label", { for: "pic-source" }, "Source picture"), source);
  const draw = h("button.main", { type: "submit" }, "Draw");
  const cancel = h("button", { type: "button", disabled: true }, "Cancel");
  const state = h("p.note", { role: "status" });
  const bar = h("progress", { max: 1, value: 0, hidden: true, "aria-label": "Drawn" });
  const shown = h("div.pictures", {});
  const fields = [
    h("div.field.wide", {}, h("label", { for: "pic-prompt" }, "Prompt"), prompt),
    h("div.field", {}, h("label", { for: "pic-size" }, "Size"), size),
    h("div.field", {}, h("label", { for: "pic-steps" }, "Steps"), steps),
    h("div.field", {}, h("label", { for: "pic-seed" }, "Seed"), seed),
    sources,
  ];
  const form = h("form", {}, h("div.fields", {}, fields), h("div.actions", {}, draw, cancel));
  place.replaceChildren(form, bar, state, shown);
  let job = null;
  let cut = null;

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (!job && prompt.value.trim()) make();
  });
  cancel.addEventListener("click", () => {
    cancel.disabled = true;
    if (job) send(`v1/images/jobs/${named(job)}`, { method: "DELETE" }).catch((error) => tell(error.message));
    else cut?.abort();
  });

  async function make() {
    draw.disabled = true;
    cancel.disabled = false;
    cut = new AbortController();
    tell("Asking…");
    try {
      const body = { model: current().id, prompt: prompt.value.trim(), ...wishes() };
      const given = await Promise.all([...source.files].map(asText));
      if (given.length && !sources.hidden) body.images = given;
      job = (await post("v1/images/jobs", body, { signal: cut.signal })).id;
      for await (const frame of events(`v1/images/jobs/${named(job)}/events`, { signal: cut.signal })) follow(JSON.parse(frame.data));
      show(await ask(`v1/images/jobs/${named(job)}`));
    } catch (error) {
      tell(cut.signal.aborted ? "Cancelled." : error instanceof Refused ? error.message : `The line was cut: ${error.message}`);
    } finally {
      job = null;
      bar.hidden = true;
      draw.disabled = false;
      cancel.disabled = true;
    }
  }

  function wishes() {
    const made = {};
    if (size.value.trim()) made.size = size.value.trim();
    if (steps.value) made.steps = Number(steps.value);
    if (seed.value) made.seed = Number(seed.value);
    return made;
  }

  function follow(event) {
    const known = event.steps > 0 && event.step !== undefined;
    bar.hidden = false;
    if (known) bar.value = event.step / event.steps;
    else bar.removeAttribute("value");
    const rest = event.eta_seconds ? `, about ${duration(event.eta_seconds)} more` : "";
    const how = known ? `, step ${event.step} of ${event.steps}${rest}` : event.position ? `, number ${event.position}` : "";
    tell(`${STATES[event.state] ?? event.state}${how}.`);
  }

  function show(document) {
    if (document.error) {
      tell(`${STATES[document.status] ?? document.status}: ${document.error.message}`);
      return;
    }
    const made = document.result;
    if (!made) return;
    const type = `image/${made.output_format ?? "png"}`;
    const items = made.data.map((row, at) => picture(`data:${type};base64,${row.b64_json}`, made, at));
    shown.prepend(...items);
    const notes = made.settings_notes?.length ? ` ${made.settings_notes.join("; ")}.` : "";
    tell(`Done in ${duration((made.duration_ms ?? 0) / 1000)}.${notes}`);
  }

  function picture(address, made, at) {
    const words = `${made.size}, ${number(made.steps)} steps, seed ${made.seeds?.[at] ?? made.seed}`;
    return h("figure", {}, h("img", { src: address, alt: prompt.value.trim() }), h("figcaption", {}, h("span", {}, words), h("a", { href: address, download: `${made.model}-${made.seeds?.[at] ?? at}.${made.output_format ?? "png"}` }, "Save")));
  }

  function tell(words) {
    state.textContent = words;
  }

  return function chosen() {
    const can = current()?.pictures;
    size.placeholder = can?.defaultSize ?? "as the model says";
    steps.placeholder = can ? String(can.defaultSteps) : "as the model says";
    sources.hidden = !can?.supportsImg2Img;
    source.required = Boolean(can?.editOnly);
  };
}

function asText(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => done(reader.result));
    reader.addEventListener("error", () => failed(reader.error));
    reader.readAsDataURL(file);
  });
}
