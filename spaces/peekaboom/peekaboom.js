import { Server, dropSecondClicks, kept, settled, showCompletion, stopped } from "./study.js";
import { placeInstructions } from "./introduction.js";

const $ = (id) => document.getElementById(id);
const percent = (share) => `${Math.round(share * 1000) / 10} %`;
const name = (label) => label.replaceAll("_", " ");

let state = null;
let seen = ""; // storage name under which this browser remembers that the instructions were read
let busy = true;
let since = 0; // time when the current pixels appeared

const server = new Server("peekaboom", (text) => {
  $("offline").textContent = text;
  $("offline").hidden = !text;
});

function wait(on) {
  busy = on;
  document.body.classList.toggle("waiting", on);
}

async function show(found) {
  state = found;
  $("bar").max = Math.max(1, state.total);
  $("bar").value = state.done;
  $("count").textContent = `${Math.min(state.done + 1, state.total)} of ${state.total}`;
  $("person").textContent = state.person;
  $("asking").hidden = state.place === null;
  $("finished").hidden = state.place !== null;
  if (state.place === null) return finish();
  const picture = await server.insist(`picture?place=${state.place}&step=${state.step}`, null, "blob");
  await draw(picture);
  $("shown").textContent = `${percent(state.exposure)} of the pixels`;
  const steps = Array.from({ length: 10 }, (_, index) => {
    const item = document.createElement("li");
    if (state.exposure > index / 10) item.className = "open";
    return item;
  });
  $("steps").replaceChildren(...steps);
  const last = state.next === null;
  $("unknown").firstElementChild.textContent = last ? "I don’t know" : "I don’t know, show more";
  $("choices").replaceChildren(...state.choices.map(choiceButton));
  await settle();
}

// The pixels are displayed. Accept answers from now on, except from a click that was meant for the previous question.
async function settle() {
  since = performance.now();
  wait(true);
  document.body.classList.add("settling");
  await settled();
  document.body.classList.remove("settling");
  wait(false);
}

function choiceButton(label, index) {
  const button = document.createElement("button");
  button.type = "button";
  const text = document.createElement("span");
  text.textContent = name(label);
  const key = document.createElement("kbd");
  key.textContent = index + 1;
  button.append(text, " ", key);
  if (state.tried.includes(label)) {
    button.classList.add("tried"); // marked, so that nobody chooses the label again by mistake
    button.setAttribute("aria-label", `${name(label)}, tried`);
    if (state.strike) button.setAttribute("aria-disabled", "true");
  }
  // A click with the keyboard has detail 0. For people who use the Tab key, move the focus to the next question's labels.
  button.addEventListener("click", (event) => answer(label, event.detail === 0));
  return button;
}

async function draw(blob) {
  const image = $("picture");
  const before = image.src;
  image.src = URL.createObjectURL(blob);
  await image.decode();
  image.style.setProperty("--ratio", `${image.naturalWidth} / ${image.naturalHeight}`);
  image.alt = `The image, with ${percent(state.exposure)} of its pixels visible`;
  if (before) URL.revokeObjectURL(before);
}

function finish() {
  wait(true);
  $("count").textContent = `${state.total} of ${state.total}`;
  $("finishedTitle").textContent = stopped(state)?.[0] ?? (state.total ? "All done. Thank you!" : "Nothing to do right now");
  $("finishedText").textContent = stopped(state)?.[1] ?? (state.total
    ? "Your answers are stored. You can close this page."
    : `All images are assigned to other people. Images that they do not finish become available again. Please come back in ${state.lease}.`);
  showCompletion($("completion"), state.completion);
}

function feedback(kind, text) {
  $("feedback").dataset.kind = kind;
  $("feedback").textContent = text;
}

async function answer(choice, byKeyboard = false) {
  if (busy || $("helpDialog").open || (state.strike && state.tried.includes(choice))) return;
  wait(true);
  const { place, step } = state;
  const seconds = (performance.now() - since) / 1000;
  try {
    const reply = await server.answer({ place, step, choice, seconds });
    const more = reply.state.place === place ? " More of the image is now visible." : " Here is the next image.";
    if (choice === null) feedback("unknown", more.trim());
    else if (reply.right) feedback("right", `Right: ${name(choice)}.` + more);
    else feedback("wrong", `It is not ${name(choice)}.` + more);
    await show(reply.state);
    if (byKeyboard) $("choices").querySelector("button:not([aria-disabled])")?.focus();
  } catch {
    // This question was answered in another tab, or it is no longer the current question.
    await show(await server.enter());
  }
}

function help(first) {
  $("start").firstChild.textContent = first ? "Start " : "Continue ";
  $("helpDialog").showModal();
}

dropSecondClicks("#unknown, #choices button");
$("unknown").addEventListener("click", () => answer(null));
$("help").addEventListener("click", () => help(false));
$("start").addEventListener("click", () => {
  $("helpDialog").close();
  if (!busy && state?.place !== null) settle(); // a second click could hit a label
});
$("helpDialog").addEventListener("close", () => {
  kept.set(seen, "yes");
  since = performance.now();
});
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || $("helpDialog").open) return;
  if (event.key === "?") return help(false);
  if (busy || !state || state.place === null) return;
  const onButton = event.target instanceof HTMLButtonElement;
  if (event.key === "0" || (event.key === " " && !onButton)) {
    event.preventDefault();
    answer(null);
  }
  const index = Number(event.key) - 1;
  if (/^[1-9]$/.test(event.key) && index < state.choices.length) answer(state.choices[index]);
});

try {
  const entered = await server.enter();
  seen = placeInstructions("peekaboom-", await server.insist("about"));
  await show(entered);
  if (state.place !== null && !kept.get(seen)) help(true);
} catch (error) {
  $("offline").textContent = `The study cannot be opened: ${error.message}`;
  $("offline").hidden = false;
}
