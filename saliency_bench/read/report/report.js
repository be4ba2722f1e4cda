// Sort tables when a header is clicked, copy tables as text, and filter samples. All content is visible without JavaScript.
"use strict";
(() => {
  const make = (tag, properties) => Object.assign(document.createElement(tag), properties);
  const plain = (text) => text.replace(/\s+/g, " ").trim();

  // Return the text of a cell without the text that is only for screen readers.
  function textOf(cell) {
    const copy = cell.cloneNode(true);
    copy.querySelectorAll(".spoken, .tools").forEach((node) => node.remove());
    return plain(copy.textContent);
  }

  const ascii = (text) => text.replace(/−/g, "-").replace(/^–$/, "");

  // Return [[text, ...], ...] with the header first, omitting rows that only divide the table.
  function rowsOf(table) {
    const rows = [...table.rows].filter((row) => !row.classList.contains("divider"));
    return rows.map((row) => [...row.cells].map(textOf));
  }

  // Return [value, low, high, remaining text] of "0.372 [0.356, 0.389] #1 best", or of "0.372 n = 8".
  function partsOf(text) {
    const written = ascii(text).replace(/\+(?=\d)/g, "");
    const found = /^(\S+) \[(\S+), (\S+)\] ?(.*)$/.exec(written) || /^(\S+)()() (n = .*)$/.exec(written);
    return found ? found.slice(1) : null;
  }

  // Split columns with intervals into four columns, so that a spreadsheet reads numbers.
  function numeric(rows) {
    const split = rows[0].map((_, column) => rows.slice(1).some((row) => partsOf(row[column])));
    return rows.map((row, number) =>
      row.flatMap((text, column) => {
        if (!split[column]) return [ascii(text)];
        if (number === 0) return [text, `${text} low`, `${text} high`, `${text} note`];
        return partsOf(text) || [ascii(text), "", "", ""];
      }),
    );
  }

  const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);
  const csv = (rows) => numeric(rows).map((row) => row.map(quoted).join(",")).join("\n") + "\n";

  function markdown(rows) {
    const line = (cells) => `| ${cells.map((text) => text.replace(/\|/g, "\\|")).join(" | ")} |`;
    return [line(rows[0]), line(rows[0].map(() => "---")), ...rows.slice(1).map(line)].join("\n") + "\n";
  }

  const SIGNS = {
    "\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", "&": "\\&", "%": "\\%", "$": "\\$", "#": "\\#", "_": "\\_",
    "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "$<$", ">": "$>$",
    "−": "$-$", "–": "--", "↑": "$\\uparrow$", "↓": "$\\downarrow$", "×": "$\\times$",
  };
  const tex = (text) => text.replace(/[\\{}&%$#_~^<>−–↑↓×]/g, (sign) => SIGNS[sign]);

  function latex(rows) {
    const line = (cells) => `${cells.map(tex).join(" & ")} \\\\`;
    return [
      `\\begin{tabular}{${"l".repeat(rows[0].length)}}`, "\\toprule", line(rows[0]), "\\midrule",
      ...rows.slice(1).map(line), "\\bottomrule", "\\end{tabular}", "",
    ].join("\n");
  }

  // The clipboard interface may be unavailable to a page that was opened as a file.
  async function copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      const area = make("textarea", { value: text });
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  }

  function copyButton(name, text) {
    const button = make("button", { type: "button", textContent: name, title: `Copy as ${name}` });
    button.addEventListener("click", async () => {
      button.textContent = (await copy(text())) ? "copied" : "cannot copy";
      setTimeout(() => (button.textContent = name), 1500);
    });
    return button;
  }

  function toolbar(table) {
    const bar = make("div", { className: "tools" });
    const forms = { CSV: csv, Markdown: markdown, LaTeX: latex };
    bar.append(...Object.entries(forms).map(([name, form]) => copyButton(name, () => form(rowsOf(table)))));
    (table.closest(".scroll") || table).after(bar);
  }

  // Return the sort key of a cell: its first number, else its text. Cells without a value come last.
  function keyOf(cell) {
    const text = ascii(textOf(cell)).replace(/^< /, "");
    const found = /^[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?/.exec(text);
    return text === "" ? null : found ? Number(found[0].replace(/,/g, "")) : text.toLowerCase();
  }

  function compare(one, other) {
    if (one === null || other === null) return (one === null) - (other === null);
    return typeof one === typeof other ? (one < other ? -1 : one > other ? 1 : 0) : typeof one === "number" ? -1 : 1;
  }

  function sort(table, column, descending) {
    for (const body of table.tBodies) {
      const rows = [...body.rows].filter((row) => !row.classList.contains("divider"));
      const keyed = rows.map((row) => [keyOf(row.cells[column]), row]);
      const sign = descending ? -1 : 1;
      keyed.sort(([one], [other]) => (one === null || other === null ? compare(one, other) : sign * compare(one, other)));
      body.append(...keyed.map(([, row]) => row));
    }
  }

  function sortable(table) {
    const head = table.tHead && table.tHead.rows.length === 1 ? table.tHead.rows[0] : null;
    if (!head || table.querySelector("tbody [rowspan]")) return;
    [...head.cells].forEach((cell, column) => {
      if (cell.tagName !== "TH" || cell.querySelector("a")) return;
      const button = make("button", { type: "button", className: "sort", title: "Sort" });
      button.append(...cell.childNodes);
      cell.append(button);
      button.addEventListener("click", () => {
        const descending = cell.getAttribute("aria-sort") === "ascending";
        [...head.cells].forEach((other) => other.removeAttribute("aria-sort"));
        cell.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sort(table, column, descending);
      });
    });
  }

  function filter(section) {
    const samples = [...section.querySelectorAll(".sample")];
    const bar = make("div", { className: "tools filter" });
    const shown = make("span", { className: "small", role: "status" });
    const chosen = {};
    let within = () => true;
    const apply = () => {
      const is = (one) => Object.entries(chosen).every(([key, value]) => !value || one.dataset[key] === value) && within(one);
      samples.forEach((one) => (one.hidden = !is(one)));
      shown.textContent = `${samples.filter((one) => !one.hidden).length} of ${samples.length} samples`;
      section.querySelectorAll(".kind").forEach((kind) => (kind.hidden = !kind.querySelector(".sample:not([hidden])")));
    };
    for (const [key, name] of [["label", "class"], ["outcome", "prediction"]]) {
      const values = [...new Set(samples.map((one) => one.dataset[key]).filter(Boolean))].sort();
      if (values.length < 2) continue;
      const select = make("select");
      select.append(new Option("all", ""), ...values.map((value) => new Option(value, value)));
      select.addEventListener("change", () => { chosen[key] = select.value; apply(); });
      const label = make("label", { textContent: `${name} ` });
      label.append(select);
      bar.append(label);
    }
    within = scoreFilter(bar, samples, apply);
    if (!bar.children.length) return;
    bar.append(shown);
    section.querySelector("h2").after(bar);
    apply();
  }

  // Return {explainer: {metric: score}} of a sample, read from its captions.
  const scoresOf = (sample) => Object.fromEntries([...sample.querySelectorAll("figcaption")].map((caption) => [
    plain(caption.querySelector("b").textContent),
    Object.fromEntries([...caption.querySelectorAll(".score")].map((row) => {
      const [name, value] = [...row.children].map((cell) => plain(cell.textContent));
      return [name, parseFloat(ascii(value))];
    })),
  ]));

  // Return whether the score of a sample lies between two ends, where "" means no end. False for a sample without a score.
  function between(score, low, high) {
    if (low === "" && high === "") return true;
    return score >= (low === "" ? -Infinity : Number(low)) && score <= (high === "" ? Infinity : Number(high));
  }

  // Add controls for an explainer, a metric and the ends of a range to a bar; return a function that tests a sample.
  function scoreFilter(bar, samples, apply) {
    const found = new Map(samples.map((one) => [one, scoresOf(one)]));
    const named = Object.entries(found.get(samples[0]) || {}).filter(([, scores]) => Object.keys(scores).length);
    if (!named.length) return () => true;
    const add = (text, control) => {
      const label = make("label", { textContent: `${text} ` });
      control.addEventListener("input", apply);
      label.append(control);
      bar.append(label);
      return control;
    };
    const select = (names) => {
      const control = make("select");
      control.append(...names.map((name) => new Option(name, name)));
      return control;
    };
    const explainer = add("score of", select(named.map(([name]) => name)));
    const metric = add("by", select(Object.keys(named[0][1])));
    const [low, high] = ["from", "to"].map((text) => add(text, make("input", { type: "number", step: "any" })));
    return (one) => between((found.get(one)[explainer.value] || {})[metric.value], low.value, high.value);
  }

  // Return a plot as a separate file with its heading and with the colours of the page.
  function svgOf(plot) {
    const drawn = plot.querySelector("svg");
    const { width, height } = drawn.viewBox.baseVal;
    const style = getComputedStyle(document.documentElement);
    const copy = drawn.cloneNode(true);
    const headings = [...plot.closest("section").querySelectorAll("h3, h4")];
    const heading = headings.filter((one) => one.compareDocumentPosition(plot) & Node.DOCUMENT_POSITION_FOLLOWING).pop();
    const title = [heading && textOf(heading), textOf(plot.querySelector("figcaption"))].filter(Boolean).join(": ");
    const put = (tag, attributes, text) => {
      const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
      Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
      node.textContent = text || "";
      copy.prepend(node);
    };
    const top = 18; // for the heading
    const size = { width: Math.round(width), height: Math.round(height + top) };
    Object.entries({ ...size, viewBox: `0 ${-top} ${size.width} ${size.height}` }).forEach(([name, value]) => copy.setAttribute(name, value));
    put("text", { x: 4, y: -5, "font-size": 9, "font-family": "sans-serif", fill: "var(--text)" }, title);
    put("rect", { y: -top, ...size, fill: "var(--page)" });
    const text = new XMLSerializer().serializeToString(copy);
    return text.replace(/var\((--[a-z]+)[^)]*\)/g, (_, name) => style.getPropertyValue(name).trim());
  }

  // The page may only load images from data URIs.
  const dataOf = (svg) => `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;

  // Return a PNG of twice the size as a data URI.
  async function pngOf(svg) {
    const image = new Image();
    image.src = dataOf(svg);
    await image.decode();
    const canvas = make("canvas", { width: 2 * image.width, height: 2 * image.height });
    canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
    return canvas.toDataURL("image/png");
  }

  function downloads(plot) {
    const bar = make("span", { className: "tools" });
    for (const [name, form] of [["SVG", dataOf], ["PNG", pngOf]]) {
      const button = make("button", { type: "button", textContent: name, title: `Download as ${name}` });
      button.addEventListener("click", async () => {
        const link = make("a", { href: await form(svgOf(plot)), download: `plot.${name.toLowerCase()}` });
        link.click();
      });
      bar.append(button);
    }
    plot.querySelector("figcaption").append(bar);
  }

  document.querySelectorAll("table.scores").forEach((table) => { toolbar(table); sortable(table); });
  document.querySelectorAll("figure.plot").forEach(downloads);
  document.querySelectorAll("section.samples").forEach(filter);
  document.querySelectorAll("pre").forEach((block) => {
    const bar = make("div", { className: "tools" });
    bar.append(copyButton(block.dataset.form || "command", () => block.textContent));
    block.after(bar);
  });
})();
