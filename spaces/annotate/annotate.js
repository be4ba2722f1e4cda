// What the page does: shows one image after the other, and hands each answer to the outbox.

import { Board } from "./canvas.js";
import { Mask } from "./mask.js";
import { Outbox } from "./outbox.js";
import { call, kept, randomId, Refused } from "./study.js";

const $ = (id) => document.getElementById(id);
const tell = (text) => ($("live").textContent = text);
const numbers = new Intl.NumberFormat("en");

let key, about, outbox;
let task = null; // what is on the screen
let queue = []; // tasks known to come
const history = []; // units answered in this tab, for going back
let startedAt = 0;
let ready = false; // the image is there
const pictures = new Map(); // unit -> promise of a bitmap
const board = new Board($("board"), { changed: keepDraft, said: tell });

// Who is here

async function enter() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (given) {
    kept.set("key", given);
    window.history.replaceState(null, "", location.pathname + location.search);
  }
  key = kept.get("key");
  if (!key) await join();
  let state;
  try {
    state = await call("api/state", { key });
  } catch (error) {
    if (!(error instanceof Refused && error.status === 401)) throw error;
    await join(); // the key of another study
    state = await call("api/state", { key });
  }
  outbox = new Outbox(key, { confirmed, refused, changed: showStatus });
  about = state;
  const reviewing = about.role === "reviewer";
  document.body.classList.toggle("reviewing", reviewing);
  board.readOnly = reviewing;
  for (const id of ["tools", "back", "skip", "none"]) $(id).hidden = reviewing && id !== "tools";
  $("reject").hidden = !reviewing;
  $("lead").textContent = reviewing ? "Does the mask show" : "Mark what shows";
  if (reviewing) $("saveText").textContent = "Accept";
  $("person").textContent = about.person;
  $("link").value = `${location.origin}${location.pathname}#key=${key}`;
  document.querySelector("[data-tool=superpixel]").hidden = !about.assist || reviewing;
  document.title = `${about.study} – ${reviewing ? "review" : "annotate"}`;
  update(state);
  showStatus(outbox.items.length, false);
  outbox.send();
}

async function join() {
  const request = kept.get("join") ?? randomId(); // a repeated request is the same person
  kept.set("join", request);
  key = (await call("api/join", { body: { request } })).key;
  kept.set("key", key);
  kept.remove("join");
}

// Tasks

const idOf = (one) => (one.answer ? `answer ${one.answer}` : one.unit);

function update(state) {
  about = { ...about, ...state };
  const sent = new Set(outbox.items.map((item) => (item.body.answer ? `answer ${item.body.answer}` : item.body.unit)));
  queue = state.tasks.filter((one) => !sent.has(idOf(one)) && !(task && idOf(task) === idOf(one)));
  showProgress();
  for (const one of queue) picture(one);
  const wanted = new Set([...queue, ...(task ? [task] : [])].map((one) => one.unit));
  for (const unit of pictures.keys()) if (!wanted.has(unit)) pictures.delete(unit);
  if (!task) next();
}

function showProgress() {
  const waiting = outbox ? outbox.items.length : 0;
  const done = Math.min(about.total, about.done + waiting);
  $("bar").max = Math.max(about.total, 1);
  $("bar").value = done;
  $("count").textContent = `${numbers.format(done)} of ${numbers.format(about.total)}`;
}

function picture(one) {
  if (one.error) return Promise.resolve(null);
  if (!pictures.has(one.unit)) {
    const loading = call(`api/image?unit=${encodeURIComponent(one.unit)}`, { key, as: "blob" }).then((blob) =>
      createImageBitmap(blob, { imageOrientation: "none" }),
    );
    loading.catch(() => pictures.delete(one.unit));
    pictures.set(one.unit, loading);
  }
  return pictures.get(one.unit);
}

function next() {
  const coming = queue.shift();
  if (coming) return show(coming);
  task = null;
  ready = false;
  board.show(null, new Mask(1, 1));
  const waiting = outbox.items.length > 0;
  $("finished").hidden = false;
  $("finishedTitle").textContent = waiting ? "One moment" : "All done";
  $("finishedText").textContent = waiting
    ? "Your last answers are being sent."
    : about.role === "reviewer"
      ? "There is nothing to review at the moment. Reload the page later."
      : `Thank you. You have done ${numbers.format(about.done)} images; no more are waiting for you.`;
  $("label").textContent = "–";
  enable();
}

async function show(one) {
  task = one;
  ready = false;
  const draft = about.role === "reviewer" ? null : JSON.parse(kept.get(draftName(one)) ?? "null");
  const fits = draft && draft.reduce((sum, run) => sum + run, 0) === one.width * one.height;
  const mask = new Mask(one.width, one.height, fits ? draft : one.runs);
  $("finished").hidden = true;
  $("label").textContent = one.label || "the class";
  showNote();
  board.show(null, mask);
  enable();
  try {
    const image = await picture(one);
    if (task !== one) return;
    board.image = image;
    ready = true;
    startedAt = performance.now();
    board.draw();
    enable();
    tell(`Image ${about.done + outbox.items.length + 1} of ${about.total}: ${one.label}`);
    if (about.assist && board.tool === "superpixel") loadSuperpixels();
  } catch (error) {
    if (task !== one) return;
    note(`The image cannot be loaded: ${error.message}. Trying again.`);
    setTimeout(() => task === one && !ready && show(one), 3000);
  }
}

function showNote() {
  const said = task.kind === "no_region" ? "no region" : task.kind === "skip" ? "skipped" : "";
  if (task.error) note(`This image cannot be shown (${task.error}). Skip it.`);
  else if (about.role === "reviewer" && said) note("The answer is: no region shows the class.");
  else if (task.comment) note(`Sent back by a reviewer: ${task.comment}`);
  else if (task.again && task.comment !== null) note("Sent back by a reviewer, without a comment.");
  else if (task.again && said) note(`You answered: ${said}.`);
  else note("");
}

function note(text, urgent = false) {
  $("note").textContent = text;
  $("note").hidden = !text;
  $("note").classList.toggle("urgent", urgent);
  if (text) tell(text);
}

// Answers

function answer(kind, extra = {}) {
  if (!task || (!ready && kind !== "skip")) return;
  board.liftPen();
  const body = { unit: task.unit, kind, seconds: (performance.now() - startedAt) / 1000, ...extra };
  if (kind === "mask") {
    if (board.mask.isEmpty()) return note("Nothing is marked. Mark the region, or choose “No region” (N).", true);
    body.runs = board.mask.runs();
  }
  const sent = task;
  history.push(sent.unit);
  task = null;
  kept.remove(draftName(sent));
  outbox.add("api/answer", body);
  showProgress();
  next();
}

function review(verdict, comment = "") {
  if (!task || !ready) return;
  const sent = task;
  task = null;
  outbox.add("api/review", { answer: sent.answer, verdict, comment });
  next();
}

function confirmed(reply) {
  if (outbox.items.length === 0 || !task) update(reply);
}

function refused(item, text) {
  if (item.body.runs) kept.set("draft:" + item.body.unit, JSON.stringify(item.body.runs));
  call("api/state", { key }).then(update).catch(() => {});
  note(`An answer was not stored: ${text}`, true);
}

const draftName = (one) => "draft:" + one.unit;

function keepDraft() {
  if (task && about.role !== "reviewer") kept.set(draftName(task), JSON.stringify(board.mask.runs()));
  if ($("note").classList.contains("urgent")) showNote();
  enable();
}

async function back() {
  const unit = history.pop() ?? about.latest;
  if (!unit) return;
  if (outbox.has(unit)) {
    history.push(unit);
    return note("The last answer is still being sent.", true);
  }
  try {
    const again = await call(`api/again?unit=${encodeURIComponent(unit)}`, { key });
    if (task) queue.unshift(task);
    about.latest = null;
    show(again);
  } catch (error) {
    note(error.message, true);
  }
}

function showStatus(waiting, offline) {
  const text = offline ? `Offline: ${waiting} kept here` : waiting ? "Saving…" : "All saved";
  $("status").textContent = text;
  $("status").dataset.state = offline ? "offline" : waiting ? "saving" : "saved";
}

// Tools

function enable() {
  const { mask } = board;
  $("undo").disabled = !mask?.done.length;
  $("redo").disabled = !mask?.undone.length;
  $("clear").disabled = !mask || mask.isEmpty();
  $("save").disabled = !task || !ready || Boolean(task.error);
  for (const id of ["none", "reject"]) $(id).disabled = !task || !ready;
  $("skip").disabled = !task;
  $("back").disabled = !history.length && !about?.latest;
  $("size").value = Board.sizes.indexOf(board.size);
  $("sizeShown").textContent = board.size;
}

function choose(tool) {
  const button = document.querySelector(`[data-tool=${tool}]`);
  if (button.hidden || board.readOnly) return;
  for (const one of document.querySelectorAll("[data-tool]")) one.setAttribute("aria-pressed", one === button);
  board.choose(tool);
  if (tool === "superpixel") loadSuperpixels();
}

async function loadSuperpixels() {
  const one = task;
  if (!one || board.superpixels) return;
  try {
    const bytes = await call(`api/superpixels?unit=${encodeURIComponent(one.unit)}`, { key, as: "bytes" });
    if (task === one) board.superpixels = new Uint16Array(bytes);
  } catch (error) {
    note(`The pieces cannot be loaded: ${error.message}`, true);
  }
}

function undo() {
  board.liftPen();
  if (board.corners.length) board.corners.pop();
  else if (board.mask.undo()) keepDraft();
  board.draw();
}

function redo() {
  if (board.mask.redo()) keepDraft();
  board.draw();
}

function skip() {
  if (!task) return;
  $("reasonText").value = "";
  $("skipDialog").returnValue = "";
  $("skipDialog").showModal();
}

function save() {
  if (about.role === "reviewer") return review("accept");
  if (!board.closePolygon()) answer("mask");
}

const resize = (step) => (board.resizeBrush(step), enable());
const KEYS = {
  b: () => choose("brush"), e: () => choose("eraser"), p: () => choose("polygon"), a: () => choose("superpixel"),
  h: () => choose("pan"), "[": () => resize(-1), "]": () => resize(1), z: undo, y: redo,
  x: () => board.step(() => board.mask.clear()), n: () => answer("no_region"), s: skip, ",": back, Enter: save,
  "+": () => board.zoom(1.25), "=": () => board.zoom(1.25), "-": () => board.zoom(0.8), 0: () => board.fit(),
  "?": () => $("helpDialog").showModal(), " ": () => board.pressSpace(), Escape: () => ((board.corners = []), board.draw()),
  Backspace: () => board.corners.length && undo(),
};
const REVIEW_KEYS = { Enter: save, a: save, r: () => $("rejectDialog").showModal() };
for (const name of ["+", "=", "-", "0", "?"]) REVIEW_KEYS[name] = KEYS[name];
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]") || event.isComposing || !about) return;
  const name = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const focused = document.activeElement;
  const onButton = focused?.matches("button, input") && (name === "Enter" || name === " " || name.startsWith("Arrow"));
  if (onButton && !(name === "Enter" && focused.type === "range")) return;
  if (name in ARROWS) {
    event.preventDefault();
    return board.moveCursor(...ARROWS[name], event.shiftKey);
  }
  const command = event.ctrlKey || event.metaKey;
  const brackets = name === "[" || name === "]"; // AltGr on many keyboards
  if ((command || event.altKey) && !brackets && !(command && (name === "z" || name === "y"))) return;
  if (name === "m") board.opacity = 0;
  const keys = about.role === "reviewer" ? REVIEW_KEYS : KEYS;
  const run = name === "z" && event.shiftKey ? redo : keys[name];
  if (!run || (event.repeat && ["Enter", "n", "s", " ", ",", "r", "a"].includes(name))) return name === "m" && board.draw();
  event.preventDefault();
  run();
  enable();
});
addEventListener("keydown", (event) => {
  if (event.key === "Tab" || event.key in ARROWS) document.body.classList.add("keys");
}, true);
addEventListener("pointerdown", () => document.body.classList.remove("keys"), true);
addEventListener("keyup", (event) => {
  if (event.key.toLowerCase() !== "m") return;
  board.opacity = Number($("opacity").value);
  board.draw();
});

for (const button of document.querySelectorAll("[data-tool]")) button.onclick = () => choose(button.dataset.tool);
for (const button of document.querySelectorAll("[data-close]")) button.onclick = () => button.closest("dialog").close("");
for (const [id, run] of Object.entries({
  undo, redo, save, skip, back, clear: KEYS.x, fit: KEYS[0], none: KEYS.n, help: KEYS["?"], reject: REVIEW_KEYS.r,
})) {
  $(id).onclick = () => (run(), enable());
}
// A button that was clicked gives the keys back to the image; one that was reached by Tab keeps them.
addEventListener("click", (event) => {
  if (event.detail && event.target.closest("#tools button, footer button") && !document.querySelector("dialog[open]")) {
    $("board").focus({ preventScroll: true });
  }
});
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("close", () => $("board").focus({ preventScroll: true }));
}
$("size").max = Board.sizes.length - 1;
$("size").oninput = () => ((board.size = Board.sizes[$("size").value]), enable(), board.draw());
$("opacity").oninput = () => ((board.opacity = Number($("opacity").value)), board.draw());
$("skipDialog").onclose = () => {
  if ($("skipDialog").returnValue !== "skip") return;
  const chosen = $("skipDialog").querySelector("input[type=radio]:checked").value;
  answer("skip", { reason: [chosen, $("reasonText").value.trim()].filter(Boolean).join(": ") });
};
$("rejectDialog").onclose = () => {
  if ($("rejectDialog").returnValue === "reject") review("reject", $("comment").value.trim());
  $("comment").value = $("rejectDialog").returnValue = "";
};
addEventListener("beforeunload", (event) => {
  board.liftPen();
  if (outbox?.offline) event.preventDefault();
});

async function start() {
  try {
    await enter();
  } catch (error) {
    $("status").textContent = "Offline";
    $("status").dataset.state = "offline";
    note(`The study cannot be reached (${error.message}). Trying again.`, true);
    setTimeout(start, 3000);
  }
}
start();
