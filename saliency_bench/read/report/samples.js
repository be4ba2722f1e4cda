// Filter and sort samples, and add more samples to the page while the user scrolls.
"use strict";
(() => {
  const { folder, explainers, metrics, labels, samples } = JSON.parse(document.getElementById("content").textContent);
  const [form, shown, list, more] = ["choose", "shown", "list", "more"].map((id) => document.getElementById(id));
  const make = (tag, properties, ...children) => {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  };
  const STEP = 40; // samples that are added at a time
  const all = samples.map(([id, label, prediction, confidence, correct, scores, size], index) =>
    ({ id, label, prediction, confidence, correct, scores, size, index }));

  const choice = (name, options) => {
    const control = make("select");
    control.append(...options.map(([value, text]) => new Option(text, value)));
    form.append(make("label", { textContent: `${name} ` }, control));
    return control;
  };
  const field = (name, properties) => {
    const control = make("input", properties);
    form.append(make("label", { textContent: `${name} ` }, control));
    return control;
  };
  const byClass = choice("Class", [["", "all"], ...labels.map((label, number) => [number, label])]);
  const outcome = choice("Prediction", [["", "all"], ["true", "right"], ["false", "wrong"]]);
  const metric = choice("Score", metrics.map(([title], number) => [number, title]));
  const order = choice("Order", [["", "as in the run"], ["best", "best first"], ["worst", "worst first"], ["spread", "most disputed first"]]);
  const apart = field("Explainers differ by at least", { type: "number", step: "any", min: 0, placeholder: "0" });
  const search = field("Id contains", { type: "search" });

  // Return the scores on the chosen metric of the explainers that use the network, oriented so that higher is better.
  const methods = explainers.map((_, row) => row).filter((row) => !explainers[row][1]);
  function of(sample) {
    const column = Number(metric.value);
    if (!metrics.length) return [];
    const sign = metrics[column][2] ? 1 : -1;
    const rows = methods.length ? methods : explainers.map((_, row) => row);
    return rows.map((row) => sample.scores[row][column]).filter((value) => value !== null).map((value) => sign * value);
  }
  const mean = (values) => (values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null);
  const spread = (values) => (values.length > 1 ? Math.max(...values) - Math.min(...values) : null);
  const KEYS = { best: (values) => mean(values), worst: (values) => { const of = mean(values); return of === null ? null : -of; }, spread };

  function matches(sample) {
    if (byClass.value !== "" && sample.label !== Number(byClass.value)) return false;
    if (outcome.value !== "" && String(sample.correct) !== outcome.value) return false;
    if (search.value && !sample.id.toLowerCase().includes(search.value.toLowerCase())) return false;
    if (Number(apart.value) > 0) {
      const by = spread(of(sample));
      if (by === null || by < Number(apart.value)) return false;
    }
    return true;
  }

  function chosen() {
    const kept = all.filter(matches);
    const key = KEYS[order.value];
    if (!key) return kept;
    const keyed = kept.map((sample) => [key(of(sample)), sample]);
    keyed.sort(([one, { index: a }], [other, { index: b }]) =>
      one === null || other === null ? (one === null) - (other === null) || a - b : other - one || a - b);
    return keyed.map(([, sample]) => sample);
  }

  const number = (value) => (value === null ? "–" : value.toFixed(3).replace("-", "−"));
  const name = (label) => (label === null || label === undefined ? "–" : labels[label]);

  function picture(sample, place, title) {
    const [width, height] = sample.size;
    const image = make("img", {
      src: `${folder}/${String(sample.index).padStart(5, "0")}.jpg`, alt: `${title} of sample ${sample.id}`,
      loading: "lazy", decoding: "async", width, height,
    });
    image.style.objectPosition = `${-place * width}px 0`;
    return image;
  }

  // Return a tile of a sample's picture, or only the caption if there is no picture (place is null).
  function tile(sample, place, title, score, isBest) {
    const caption = make("figcaption", {}, title.replace(/[_:,]/g, "$&\u200b"));
    if (score !== undefined) caption.append(make("b", { textContent: score }));
    const pictures = sample.size && place !== null ? [picture(sample, place, title)] : [];
    return make("figure", { className: isBest ? "best" : "" }, ...pictures, caption);
  }

  function card(sample) {
    const verdict = { true: ["right", "✓ right"], false: ["wrong", "✗ wrong"] }[sample.correct];
    const about = make("p", {}, "label ", make("b", { textContent: name(sample.label) }), ", prediction ", make("b", { textContent: name(sample.prediction) }));
    if (sample.confidence !== null) about.append(` (${(100 * sample.confidence).toFixed(1)} %)`);
    if (verdict) about.append(" ", make("span", { className: verdict[0], textContent: verdict[1] }));
    const tiles = make("div", { className: "tiles" });
    if (sample.size) tiles.append(tile(sample, 0, "image"));
    const column = Number(metric.value);
    const best = Math.max(...of(sample));
    let place = 0;
    explainers.forEach(([title, isBaseline, hasMap], row) => {
      if (hasMap) place += 1;
      const value = metrics.length ? sample.scores[row][column] : undefined;
      const isBest = !isBaseline && value !== null && value !== undefined && (metrics[column][2] ? value : -value) === best;
      const text = value === undefined ? undefined : number(value) + (isBest ? " best" : "");
      if (hasMap || text !== undefined) tiles.append(tile(sample, hasMap ? place : null, title, text, isBest));
    });
    return make("article", {}, make("h2", { textContent: sample.id }), about, tiles);
  }

  let found = [];
  let until = 0;
  function grow() {
    const next = found.slice(until, until + STEP);
    until += next.length;
    list.append(...next.map(card));
    more.hidden = until >= found.length;
  }
  function apply() {
    found = chosen();
    until = 0;
    list.replaceChildren();
    shown.textContent = `${found.length.toLocaleString("en")} of ${all.length.toLocaleString("en")} samples`;
    grow();
  }
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", () => {
    const last = list.lastElementChild;
    grow();
    const next = last && last.nextElementSibling;
    if (next) { next.tabIndex = -1; next.focus({ preventScroll: true }); }
  });
  new IntersectionObserver((entries) => { if (entries.some((entry) => entry.isIntersecting) && !more.hidden) grow(); }, { rootMargin: "1200px" }).observe(more);
  apply();
})();
