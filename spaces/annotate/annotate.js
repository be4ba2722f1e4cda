// Main script of the page: displays one image after another, and passes each answer to the outbox.

import { Board } from "./canvas.js";
import { Controls } from "./controls.js";
import { enter } from "./entry.js";
import { placeInstructions } from "./introduction.js";
import { Mask } from "./mask.js";
import { Outbox } from "./outbox.js";
import { Pictures } from "./pictures.js";
import { Pieces } from "./pieces.js";
import { backoff, call, dropSecondClicks, kept, Refused, settled, showCompletion, stopped } from "./study.js";

const $ = (id) => document.getElementById(id);
const tell = (text) => ($("live").textContent = text);
const numbers = new Intl.NumberFormat("en");

let key, about, outbox, pictures;
let task = null; // the task on the screen
let queue = []; // the next tasks
const answered = []; // units answered in this tab, for the button Back
let startedAt = 0;
let ready = false; // whether the image has been on the screen long enough to be answered
let checked = null; // the server's feedback on a practice attempt, while it is on the screen
let asked = 0; // time when the page asked whether to discard a drawing
const board = new Board($("board"), { changed: keepDraft, announce: tell, find: findRegion });
let correcting = false; // whether a reviewer is drawing a correction
const reviewing = () => about?.role === "reviewer";

async function open() {
  const entered = await enter();
  key = entered.key;
  about = entered.state;
  outbox = new Outbox(key, { confirmed, refused, changed: showStatus });
  pictures = new Pictures(key);
  board.readOnly = reviewing();
  document.body.classList.toggle("reviewing", reviewing());
  for (const id of ["back", "skip", "none"]) $(id).hidden = reviewing();
  for (const id of ["reject", "correct", "others"]) $(id).hidden = !reviewing();
  $("person").textContent = about.person;
  $("link").value = `${location.origin}${location.pathname}#key=${key}`;
  document.querySelector("[data-tool=superpixel]").hidden = !about.assist;
  document.querySelector("[data-tool=segment]").hidden = !about.segment;
  const offered = { superpixel: about.assist, segment: about.segment, review: reviewing() };
  for (const row of document.querySelectorAll("[data-help]")) row.hidden = !offered[row.dataset.help];
  document.title = `${about.study} – ${reviewing() ? "review" : "annotate"}`;
  update(about);
  showStatus(outbox.items.length, "");
  outbox.send();
  const texts = await call("api/about");
  const seen = placeInstructions("", texts);
  if (!texts.instructions || reviewing() || kept.get(seen)) return;
  $("helpDialog").addEventListener("close", () => (kept.set(seen, "yes"), (startedAt = performance.now())), { once: true });
  $("helpDialog").showModal();
}

// Tasks

const idOf = (one) => (one.answer ? `answer ${one.answer}` : one.unit);

function update(state) {
  const total = wantedTotal(state);
  about = { ...about, stopped: "", ...state, total };
  const sent = new Set(outbox.items.map((item) => (item.body.answer ? `answer ${item.body.answer}` : item.body.unit)));
  queue = state.tasks.filter((one) => !sent.has(idOf(one)) && !(task && idOf(task) === idOf(one)));
  showProgress();
  pictures.keepOnly([...queue, ...(task ? [task] : [])]);
  if (!task) next();
}

// Keep displaying the initial total as long as it can be correct, because the number depends on other people's progress.
function wantedTotal(state) {
  const same = about.shown && about.practice === state.practice && !reviewing();
  about.shown = true;
  const over = state.tasks.length === 0;
  return same && !over ? Math.max(about.total, state.done + state.tasks.length) : state.total;
}

function showProgress() {
  const waiting = outbox ? outbox.items.length : 0;
  const done = Math.min(about.total, about.done + waiting);
  $("bar").max = Math.max(about.total, 1);
  $("bar").value = done;
  const count = `${numbers.format(done)} of ${numbers.format(about.total)}`;
  $("count").textContent = about.practice ? `Practice: ${count}` : count;
}

function next() {
  const coming = queue.shift();
  if (coming) return show(coming);
  task = null;
  ready = false;
  board.show(null, new Mask(1, 1));
  $("finished").hidden = false;
  showFinished();
  $("label").textContent = "–";
  enable();
}

// Display the end of the study, or what the page is waiting for, if there is no next image.
function showFinished() {
  const waiting = outbox.items.length > 0;
  $("finishedTitle").textContent = waiting ? (outbox.offline ? "Waiting for the server" : "One moment") : stopped(about)?.[0] ?? "All done";
  $("finishedText").textContent = waiting
    ? outbox.offline
      ? `${outbox.offline} The next image appears when your answers have been sent. You can leave this tab open, or come back later in this browser.`
      : "Your last answers are being sent."
    : stopped(about) ? stopped(about)[1]
    : reviewing()
      ? "There is nothing to review at the moment. Reload the page later."
      : about.done
        ? `Thank you. You have done ${numbers.format(about.done)} images; there are no more images for you.`
        : `All images are assigned to other people. Images that they do not finish become available again. Please come back in ${about.lease}.`;
  showCompletion($("completion"), waiting ? null : about.completion);
}

async function show(one, tries = 0) {
  task = one;
  checked = null;
  draw(!reviewing());
  const kind = one.practice ? "Practice: mark" : isSentBack(one) ? "Sent back: mark" : "Mark";
  $("lead").textContent = reviewing() ? "Does the mask show" : `${kind} what shows`;
  showOthers(null);
  ready = false;
  asked = 0;
  const mask = new Mask(one.width, one.height, (reviewing() ? null : draftOf(one)) ?? one.runs);
  $("finished").hidden = true;
  $("label").textContent = one.label || "the class";
  showNote();
  board.show(null, mask);
  enable();
  try {
    const image = await pictures.get(one);
    if (task !== one) return;
    board.image = image;
    startedAt = performance.now();
    board.draw();
    tell(`Image ${about.done + outbox.items.length + 1} of ${about.total}: ${one.label}`);
    if (about.assist && board.tool === "superpixel") loadPieces();
    await settled();
    if (task !== one) return;
    ready = true;
    enable();
  } catch (error) {
    if (task !== one) return;
    note(`The image cannot be loaded: ${error.message}. Trying again.`);
    setTimeout(() => task === one && !ready && show(one, tries + 1), backoff(tries));
  }
}

// Enable drawing: always for annotators, and for reviewers while they draw a correction.
function draw(can) {
  correcting = reviewing() && can;
  board.readOnly = !can;
  document.body.classList.toggle("correcting", correcting);
  $("correct").textContent = correcting ? "Cancel" : "Correct…";
  $("none").hidden = reviewing() && !correcting;
  $("reject").hidden = !reviewing() || correcting;
  $("saveText").replaceChildren(...(reviewing() ? [correcting ? "Save correction" : "Accept"] : saveText));
}

const isSentBack = (one) => Boolean(one.again) && one.comment !== null && one.comment !== undefined;

function showNote() {
  const without = task.kind === "no_region" ? "no region" : task.kind === "skip" ? "skipped" : "";
  if (task.error) note(`This image cannot be displayed (${task.error}). Please skip it.`);
  else if (correcting) note("Correct the mask. Your correction replaces the original mask and is stored under your name.");
  else if (reviewing() && task.corrected) note(`A reviewer has corrected this answer${without ? ": no region" : ""}.`);
  else if (reviewing() && without) note("The annotator answered that no region shows the class.");
  else if (task.practice) note(task.kind ? "Try again and correct your region." : "Practice: the expected region is displayed when you save.");
  else if (isSentBack(task)) note(`Sent back by a reviewer${without ? ` (you answered: ${without})` : ""}: ${task.comment || "without a comment."}`);
  else if (task.again && without) note(`You answered: ${without}.`);
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
  if (!task || checked || board.readOnly || (!ready && kind !== "skip")) return;
  board.liftPen();
  const body = { unit: task.unit, kind, seconds: (performance.now() - startedAt) / 1000, ...extra };
  if (kind === "mask") {
    if (board.mask.isEmpty()) return note("Nothing is marked. Mark the region, or choose “No region” (N).", true);
    body.runs = board.mask.runs();
  }
  const sent = task;
  if (correcting) return correct({ ...body, answer: sent.answer });
  if (sent.practice) return practise(body);
  answered.push(sent.unit);
  task = null;
  if (kind === "mask" || board.mask.isEmpty()) kept.remove(draftName(sent)); // otherwise, Back restores the draft
  outbox.add("api/answer", body);
  showProgress();
  next();
}

// A practice attempt stays on the screen until the server has compared it with the known mask.
function practise(body) {
  ready = false;
  board.readOnly = true;
  note("Comparing…");
  outbox.add("api/answer", body);
  enable();
}

function showFeedback(reply) {
  checked = reply;
  const { iou, needed, passed, again, runs } = reply.feedback;
  kept.remove(draftName(task));
  board.showKnown(new Mask(task.width, task.height, runs));
  const percent = (share) => `${Math.round(share * 100)} %`;
  const words = passed ? "Well done" : again ? "Not yet" : "Please note the difference and continue";
  note(`${words}: your region (pink) and the expected region (blue) have ${percent(iou)} of their area in common; ${percent(needed)} is required.`);
  $("saveText").textContent = again ? "Try again" : "Continue";
  ready = true;
  enable();
}

function leaveFeedback() {
  const reply = checked;
  checked = task = null;
  update(reply);
}

function review(verdict, comment = "") {
  if (!task || !ready) return;
  const sent = task;
  task = null;
  outbox.add("api/review", { answer: sent.answer, verdict, comment });
  next();
}

// Start or cancel a correction.
function startCorrection() {
  if (!task || !ready) return;
  if (correcting) {
    kept.remove(draftName(task));
    return show(task);
  }
  draw(true);
  const draft = draftOf(task);
  if (draft) board.show(board.image, new Mask(task.width, task.height, draft));
  showNote();
  enable();
}

function correct(body) {
  kept.remove(draftName(task));
  task = null;
  draw(false);
  outbox.add("api/correct", body);
  next();
}

// Show or hide the consensus of the other people below the mask under review.
async function toggleOthers() {
  const one = task;
  if (!one || !ready || !reviewing()) return;
  if (board.known) return showOthers(null);
  try {
    const others = await call(`api/others?answer=${one.answer}`, { key });
    if (task === one) showOthers(others);
  } catch (error) {
    if (task === one) note(error.message, true);
  }
}

function showOthers(others) {
  board.showKnown(others?.runs ? new Mask(task.width, task.height, others.runs) : null);
  $("others").setAttribute("aria-pressed", Boolean(others?.runs));
  if (!others) return showNote();
  const people = others.people === 1 ? "another person" : `at least half of ${others.people} other people`;
  note(others.runs ? `Blue: marked by ${people}.` : "Nobody else has marked a region in this image.");
}

function confirmed(reply) {
  if (reply.feedback && task?.unit === reply.feedback.unit) return showFeedback(reply);
  if (outbox.items.length === 0 || !task) update(reply);
}

function refused(item, text) {
  if (task?.practice) show(task);
  if (item.body.runs) kept.set(draftName(item.body), JSON.stringify(item.body.runs));
  call("api/state", { key }).then(update).catch(() => {});
  note(`An answer was not stored: ${text}`, true);
}

const draftName = (one) => "draft:" + idOf(one);

// Return the mask that was drawn on an image in this browser but not saved, or null.
function draftOf(one) {
  const runs = JSON.parse(kept.get(draftName(one)) ?? "null");
  return runs && runs.reduce((sum, run) => sum + run, 0) === one.width * one.height ? runs : null;
}

function keepDraft() {
  if (task && !board.readOnly) kept.set(draftName(task), JSON.stringify(board.mask.runs()));
  asked = 0;
  if ($("note").classList.contains("urgent")) showNote();
  enable();
}

async function back() {
  const unit = answered.pop() ?? about.latest;
  if (!unit) return;
  if (outbox.has(unit)) {
    answered.push(unit);
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
  const text = offline ? `Offline: ${waiting} stored in this browser` : waiting ? "Saving…" : "All saved";
  $("status").textContent = text;
  $("status").dataset.state = offline ? "offline" : waiting ? "saving" : "saved";
  $("status").title = offline;
  if (!task && !$("finished").hidden) showFinished();
}

function save() {
  if (reviewing() && !correcting) return review("accept");
  if (checked) return leaveFeedback();
  const { pending } = board.strokes;
  const one = task;
  if (pending) return void pending.then(() => task === one && save());
  if (!board.closePolygon()) answer("mask");
}

function skip() {
  if (!task || checked) return;
  $("reasonText").value = "";
  $("skipDialog").returnValue = "";
  $("skipDialog").showModal();
}

function reject() {
  $("commentMissing").hidden = true;
  $("rejectDialog").showModal();
}

// Pieces and controls

const COMPUTING = "The pieces are being computed.";
let piecesOf = null; // the task whose pieces are being loaded

async function loadPieces() {
  const one = task;
  if (!one || board.pieces || piecesOf === one) return;
  piecesOf = one;
  note(COMPUTING);
  try {
    const bytes = await call(`api/superpixels?unit=${encodeURIComponent(one.unit)}`, { key, as: "bytes" });
    if (task !== one) return;
    board.pieces = new Pieces(new Uint16Array(bytes), one.width);
    board.draw();
    if ($("note").textContent === COMPUTING) showNote();
  } catch (error) {
    if (task === one) note(`The pieces cannot be loaded: ${error.message}`, true);
  } finally {
    if (piecesOf === one) piecesOf = null;
  }
}

const FINDING = "The region for your strokes is being computed.";

// Return the run lengths of the region for strokes, or null if there is no response or another image is displayed.
async function findRegion(strokes) {
  const one = task;
  note(FINDING);
  try {
    const found = await call("api/segment", { key, body: { unit: one.unit, strokes } });
    if (task === one && $("note").textContent === FINDING) showNote();
    return task === one ? found.runs : null;
  } catch (error) {
    if (task === one) note(`The region cannot be computed: ${error.message}`, true);
    return null;
  }
}

function enable() {
  const { mask } = board;
  const { list, undone } = board.strokes;
  $("undo").disabled = !(mask?.done.length || list.length) || Boolean(checked);
  $("redo").disabled = !(mask?.undone.length || undone.length) || Boolean(checked);
  $("clear").disabled = !mask || mask.isEmpty() || Boolean(checked);
  $("save").disabled = !task || !ready || Boolean(task.error);
  for (const id of ["none", "reject", "correct", "others"]) $(id).disabled = !task || !ready || Boolean(checked);
  $("skip").disabled = !task || Boolean(checked);
  $("back").disabled = !answered.length && !about?.latest;
  $("size").value = Board.sizes.indexOf(board.brush);
  $("sizeShown").textContent = board.brush;
  $("subtract").disabled = !["polygon", "segment"].includes(board.tool);
  $("subtract").setAttribute("aria-pressed", board.takes && !$("subtract").disabled);
}

// Discard a drawing only if the button is clicked twice.
function none() {
  if (!task || !ready || checked) return;
  board.liftPen();
  const isDrawn = !board.mask.isEmpty() || board.corners.length > 0;
  if (isDrawn && !asked) {
    asked = performance.now();
    return note("You have drawn a region. Choose “No region” (N) again to discard it; Back (,) restores it.", true);
  }
  if (!isDrawn || performance.now() - asked > 400) answer("no_region");
}

const saveText = [...$("saveText").childNodes];
dropSecondClicks("#none, #save, #skip, #back");
const isOpen = () => Boolean(about);
new Controls(board, {
  isOpen, reviewing, save, skip, back, none, reject, correct: startCorrection, others: toggleOthers, changed: keepDraft,
  enable, loadPieces,
});

$("skipDialog").onclose = () => {
  if ($("skipDialog").returnValue !== "skip") return;
  const chosen = $("skipDialog").querySelector("input[type=radio]:checked").value;
  answer("skip", { reason: [chosen, $("reasonText").value.trim()].filter(Boolean).join(": ") });
};
$("rejectDialog").onsubmit = (event) => {
  if ($("comment").value.trim()) return;
  event.preventDefault();
  $("commentMissing").hidden = false;
  $("comment").focus();
};
$("rejectDialog").onclose = () => {
  if ($("rejectDialog").returnValue === "reject") review("reject", $("comment").value.trim());
  $("comment").value = $("rejectDialog").returnValue = "";
};
// When a person returns to a page without tasks, load new tasks, such as answers that were sent back.
document.addEventListener("visibilitychange", () => {
  if (document.hidden || !about || task || outbox.items.length) return;
  call("api/state", { key }).then(update).catch(() => {});
});
addEventListener("beforeunload", (event) => {
  board.liftPen();
  if (outbox?.offline) event.preventDefault();
});

async function start(tries = 0) {
  try {
    await open();
  } catch (error) {
    $("status").textContent = "Offline";
    $("status").dataset.state = "offline";
    if (error instanceof Refused && error.status === 403) return note(`You cannot take part: ${error.message}.`, true);
    note(`The study cannot be reached (${error.message}). Trying again.`, true);
    setTimeout(() => start(tries + 1), backoff(tries));
  }
}
start();
