// What the daemon has said, and what follows from it by sums alone.

const NEWS_KEPT = 200;
const RATE_SECONDS = 2.5;

export class Store {
  constructor() {
    this.sections = {};
    this.news = [];
    this.hour = null;
    this.rates = {};
    this.last = null;
    this.link = "connecting";
    this.admin = null;
    this._written = [];
  }

  /** Take a `state` event in; null takes a part away. */
  take(parts) {
    for (const [key, value] of Object.entries(parts)) {
      if (value === null && key.includes(":")) delete this.sections[key];
      else this.sections[key] = value;
    }
    this.measure(performance.now() / 1000);
  }

  /** Tokens a second by model, over the last seconds. */
  measure(now) {
    const written = this.sections.tokens_written ?? {};
    this._written.push([now, written]);
    while (this._written.length > 2 && this._written[1][0] < now - RATE_SECONDS) this._written.shift();
    const [since, before] = this._written[0];
    this.rates = {};
    if (now - since < 0.5) return;
    for (const [model, count] of Object.entries(written)) {
      this.rates[model] = Math.max(0, (count - (before[model] ?? 0)) / (now - since));
    }
  }

  /** Begin anew: another daemon answers, or the same one after a pause. */
  forget() {
    this.sections = {};
    this._written = [];
  }

  addNews(item) {
    if (this.news.some((known) => known.id === item.id && known.at === item.at)) return;
    this.news.unshift(item);
    this.news.sort((a, b) => b.at - a.at || b.id - a.id);
    this.news.length = Math.min(this.news.length, NEWS_KEPT);
  }

  /** A row for each model: the instance where there is one, and what its file says. */
  models() {
    const rows = new Map();
    for (const card of this.sections.models ?? []) rows.set(card.id, { card, instance: null, plan: null });
    for (const [key, instance] of Object.entries(this.sections)) {
      if (!key.startsWith("instance:") || !instance) continue;
      const row = rows.get(instance.model) ?? { card: null };
      rows.set(instance.model, { ...row, instance, plan: this.sections[`plan:${instance.id}`] ?? null });
    }
    return [...rows].map(([id, row]) => ({ id, ...row, state: row.instance?.state ?? (row.card?.broken ? "broken" : "stopped") }));
  }
}
