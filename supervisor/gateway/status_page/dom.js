// Elements from values. A string only ever becomes text: nothing here, and nothing on this page, reads markup.

const SVG = "http://www.w3.org/2000/svg";

/** An element: `h("p.note", {title: "…"}, "text", child)`. Null, undefined and false children are left out. */
export function h(name, attributes, ...children) {
  return build(document.createElement(tagOf(name)), name, attributes, children);
}

/** The same for what is drawn. */
export function s(name, attributes, ...children) {
  return build(document.createElementNS(SVG, tagOf(name)), name, attributes, children);
}

function tagOf(name) {
  return name.split(".", 1)[0] || "div";
}

function build(element, name, attributes, children) {
  const classes = name.split(".").slice(1);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "grow") element.style.flexGrow = value;
    else if (key === "width") element.style.width = value;
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...flat(children));
  return element;
}

function flat(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Make `target` hold these children with as few changes as possible: what has the focus or is open stays so. */
export function fill(target, ...children) {
  const wanted = document.createElement(target.tagName);
  wanted.append(...flat(children));
  merge(target, wanted);
}

function merge(old, wanted) {
  const keyed = new Map();
  for (const child of old.children) if (child.dataset?.key) keyed.set(child.dataset.key, child);
  let at = old.firstChild;
  for (const next of [...wanted.childNodes]) {
    const key = next.dataset?.key;
    const match = key ? keyed.get(key) : at && !at.dataset?.key && same(at, next) ? at : null;
    if (!match) {
      old.insertBefore(next, at);
      continue;
    }
    if (match === at) at = at.nextSibling;
    else old.insertBefore(match, at);
    update(match, next);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function same(old, wanted) {
  return old.nodeType === wanted.nodeType && old.nodeName === wanted.nodeName;
}

function update(old, wanted) {
  if (old.nodeType === Node.TEXT_NODE) {
    if (old.data !== wanted.data) old.data = wanted.data;
    return;
  }
  for (const { name } of [...old.attributes]) {
    if (name !== "open" && name !== "style" && !wanted.hasAttribute(name)) old.removeAttribute(name);
  }
  for (const { name, value } of [...wanted.attributes]) {
    if (name !== "style" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  if (old.style.cssText !== wanted.style.cssText) old.style.cssText = wanted.style.cssText;
  if (old.dataset.leave === undefined) merge(old, wanted);
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(count) {
  if (count === null || count === undefined) return "not known";
  let value = count;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit < 2 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "not known";
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} days`;
}

export function clock(at) {
  const moment = new Date(typeof at === "number" ? at * 1000 : at);
  const today = moment.toDateString() === new Date().toDateString();
  return today ? moment.toLocaleTimeString() : moment.toLocaleString();
}

export function plural(count, word, words = `${word}s`) {
  return `${count} ${count === 1 ? word : words}`;
}

export function number(value) {
  return value === null || value === undefined ? "not known" : String(Math.round(value * 100) / 100);
}
