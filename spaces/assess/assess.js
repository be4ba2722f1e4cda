import { Server, dropSecondClicks, kept, randomId, settled, showCompletion, stopped } from "./study.js";
import { placeInstructions } from "./introduction.js";

const $ = (id) => document.getElementById(id);
const LETTERS = "ABCDE";

let state = null;
let seen = ""; // storage name under which this browser remembers that the instructions were read
let since = 0; // time when the last map was rated or the image appeared
let urls = []; // object URLs of images in memory
let saving = 0;

const server = new Server("assess", (text) => {
  $("offline").textContent = text;
  $("offline").hidden = !text;
});

const fieldsets = () => [...document.querySelectorAll("fieldset")];
const checked = (fieldset) => fieldset.querySelector("input:checked");

async function picture(path) {
  const url = URL.createObjectURL(await server.insist(path, null, "blob"));
  urls.push(url);
  return url;
}

async function show(found) {
  state = found;
  document.body.classList.add("waiting");
  $("bar").max = Math.max(1, state.total);
  $("bar").value = state.done;
  $("count").textContent = `${Math.min(state.done + 1, state.total)} of ${state.total}`;
  $("person").textContent = state.person;
  $("lastLevel").textContent = state.scale.length;
  const done = state.maps.length === 0;
  $("asking").hidden = done;
  $("finished").hidden = !done;
  urls.forEach(URL.revokeObjectURL);
  urls = [];
  if (done) return finish();
  $("task").textContent = `Which maps explain “${state.class.replaceAll("_", " ")}” well?`;
  $("scale").textContent = state.scale.map((level, index) => `${index + 1}  ${level}`).join("\n");
  $("maps").style.setProperty("--maps", state.maps.length);
  $("maps").style.setProperty("--questions", Object.keys(state.questions).length);
  const plain = await picture(`image?place=${state.maps[0].place}`);
  const maps = await Promise.all(state.maps.map((one) => picture(`map?place=${one.place}`)));
  $("image").src = plain;
  $("maps").replaceChildren(...state.maps.map((one, index) => card(one, index, maps[index], plain)));
  await Promise.all([...document.images].map((one) => one.decode().catch(() => {})));
  since = performance.now();
  update();
  scrollTo(0, 0);
  focusFirst();
  await settled();
  document.body.classList.remove("waiting");
}

function card(map, index, url, plain) {
  const section = document.createElement("section");
  section.className = "map";
  section.dataset.place = map.place;
  section.setAttribute("aria-label", `Map ${LETTERS[index]}`);
  const figure = document.createElement("figure");
  const image = new Image();
  image.src = url;
  image.alt = `The image with map ${LETTERS[index]} over it`;
  const under = new Image();
  under.src = plain;
  under.alt = "";
  under.className = "under";
  const caption = document.createElement("figcaption");
  caption.textContent = LETTERS[index];
  figure.append(image, under, caption);
  figure.addEventListener("click", () => enlarge(image, plain));
  section.append(figure);
  for (const [id, text] of Object.entries(state.questions)) section.append(question(map, id, text));
  return section;
}

// Display a map next to the image, as large as the window allows.
function enlarge(image, plain) {
  $("large").src = image.src;
  $("large").alt = image.alt;
  $("largePlain").src = plain;
  $("largePlain").alt = "The image";
  $("largeDialog").showModal();
}

function question(map, id, text) {
  const fieldset = document.createElement("fieldset");
  fieldset.dataset.question = id;
  const legend = document.createElement("legend");
  legend.textContent = text;
  const levels = document.createElement("div");
  levels.className = "levels";
  state.scale.forEach((level, index) => {
    const label = document.createElement("label");
    label.title = level;
    const input = document.createElement("input");
    Object.assign(input, { type: "radio", name: `${map.place}-${id}`, value: index + 1 });
    input.setAttribute("aria-label", `${index + 1}, ${level}`);
    input.checked = map.ratings?.[id] === index + 1;
    input.addEventListener("change", () => rated(fieldset));
    label.append(input, String(index + 1));
    levels.append(label);
  });
  fieldset.append(legend, levels);
  return fieldset;
}

function ratingsOf(section) {
  const found = [...section.querySelectorAll("fieldset")].map((one) => [one.dataset.question, checked(one)]);
  return found.every(([, input]) => input)
    ? Object.fromEntries(found.map(([id, input]) => [id, Number(input.value)]))
    : null;
}

async function rated(fieldset) {
  const section = fieldset.closest("section");
  const ratings = ratingsOf(section);
  update();
  if (!ratings) return;
  const seconds = (performance.now() - since) / 1000;
  since = performance.now();
  saving += 1;
  update();
  try {
    await server.answer({ place: Number(section.dataset.place), ratings, seconds, request: randomId() });
  } catch (error) {
    $("status").textContent = error.message;
  }
  saving -= 1;
  update();
}

function update() {
  const sections = [...document.querySelectorAll(".map")];
  sections.forEach((one) => one.classList.toggle("rated", Boolean(ratingsOf(one))));
  const left = fieldsets().filter((one) => !checked(one)).length;
  $("status").textContent = left ? `${left} ${left === 1 ? "answer" : "answers"} left` : saving ? "Saving…" : "All saved";
  $("next").setAttribute("aria-disabled", String(left > 0));
}

function focusOn(fieldset) {
  const input = checked(fieldset) ?? fieldset.querySelector("input");
  input.focus({ preventScroll: true });
  fieldset.scrollIntoView({ block: "nearest" });
}

function focusFirst() {
  if (document.querySelector("dialog[open]")) return;
  const open = fieldsets().find((one) => !checked(one));
  if (open) focusOn(open);
}

function move(steps) {
  const all = fieldsets();
  const at = all.indexOf(document.activeElement?.closest?.("fieldset"));
  const to = at < 0 ? 0 : at + steps;
  if (to >= 0 && to < all.length) focusOn(all[to]);
  else if (to >= all.length && $("next").getAttribute("aria-disabled") === "false") $("next").focus();
}

async function next() {
  const open = fieldsets().find((one) => !checked(one));
  if (open) return focusOn(open);
  if (document.body.classList.contains("waiting")) return;
  document.body.classList.add("waiting");
  await server.last;
  await show(await server.insist("state"));
}

function finish() {
  $("count").textContent = `${state.total} of ${state.total}`;
  $("task").textContent = "Rate the maps";
  $("finishedTitle").textContent = stopped(state)?.[0] ?? (state.total ? "All done. Thank you!" : "Nothing to do right now");
  $("finishedText").textContent = stopped(state)?.[1] ?? (state.total
    ? "Your answers are stored. You can close this page."
    : `All images are assigned to other people. Images that they do not finish become available again. Please come back in ${state.lease}.`);
  showCompletion($("completion"), state.completion);
}

function help(first) {
  $("start").firstChild.textContent = first ? "Start " : "Continue ";
  $("helpDialog").showModal();
}

$("closeLarge").addEventListener("click", () => $("largeDialog").close());
dropSecondClicks("#next");
$("next").addEventListener("click", next);
$("help").addEventListener("click", () => help(false));
$("start").addEventListener("click", () => $("helpDialog").close());
$("helpDialog").addEventListener("close", () => {
  kept.set(seen, "yes");
  since = performance.now();
  focusFirst();
});
addEventListener("keyup", (event) => event.key.toLowerCase() === "h" && document.body.classList.remove("plain"));
addEventListener("blur", () => document.body.classList.remove("plain"));
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") || !state?.maps.length) return;
  if (event.key.toLowerCase() === "h") document.body.classList.add("plain");
  if (event.repeat && event.key.length === 1) return;
  const steps = { ArrowDown: 1, ArrowUp: -1, ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (steps) {
    event.preventDefault();
    const sideways = event.key === "ArrowRight" || event.key === "ArrowLeft";
    return move(sideways ? steps * Object.keys(state.questions).length : steps);
  }
  if (event.key === "?") return help(false);
  if (event.key === "Enter" && !(event.target instanceof HTMLButtonElement)) return next();
  const fieldset = document.activeElement?.closest?.("fieldset");
  if (/^[1-9]$/.test(event.key) && fieldset && Number(event.key) <= state.scale.length) {
    const input = fieldset.querySelectorAll("input")[Number(event.key) - 1];
    input.checked = true;
    rated(fieldset);
    move(1);
  }
});

try {
  const entered = await server.enter();
  seen = placeInstructions("assess-", await server.insist("about"));
  await show(entered);
  if (state.maps.length && !kept.get(seen)) help(true);
} catch (error) {
  $("offline").textContent = `The study cannot be opened: ${error.message}`;
  $("offline").hidden = false;
}
