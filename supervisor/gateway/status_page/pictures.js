// Try a model that makes pictures.

import { h } from "./dom.js";

/** Build the form into `place`; `model` gives the chosen one. */
export function pictures(place, model) {
  place.replaceChildren(h("p.empty", {}, `${model() || "This model"} makes pictures, which this page can't ask for yet.`));
}
