// The owner's page: state of a study and actions of its owner.

import { backoff, call, keyOfAddress, randomId, Refused } from "./study.js";

const $ = (id) => document.getElementById(id);
const key = keyOfAddress("owner-");
const EVERY = 15000; // milliseconds between two updates
const MOST = 100; // maximum number of images in the table
let state = null;
let timer = 0;

const number = (value, digits = 0) => (value === null ? "–" : value.toLocaleString("en", { maximumFractionDigits: digits, minimumFractionDigits: digits }));
const ago = (time) => {
  if (!time) return "–";
  const minutes = (Date.now() - new Date(time)) / 60000;
  return minutes < 1 ? "now" : minutes < 90 ? `${Math.round(minutes)} min` : minutes < 2880 ? `${Math.round(minutes / 60)} h` : `${Math.round(minutes / 1440)} days`;
};

function element(name, text = "", kind = "") {
  const made = document.createElement(name);
  made.textContent = text;
  made.className = kind;
  return made;
}

function button(text, run, label = text) {
  const made = element("button", text);
  made.type = "button";
  made.setAttribute("aria-label", label);
  made.addEventListener("click", run);
  return made;
}

// rows: arrays of texts or elements.
function table(place, header, rows) {
  const head = element("tr");
  head.append(...header.map((text) => Object.assign(element("th", text), { scope: "col" })));
  const body = rows.map((cells) => {
    const row = element("tr");
    row.append(...cells.map((cell, column) => {
      const made = element("td");
      made.dataset.name = header[column]; // displayed next to the cell if the screen is too narrow for columns
      made.append(cell);
      return made;
    }));
    return row;
  });
  place.replaceChildren(head, ...body);
}

function marks(row) {
  const made = element("span");
  made.append(...row.marks.map((text) => element("span", text, "mark")));
  if (row.excluded !== null && row.excluded !== undefined) made.append(element("span", "excluded", "mark out"));
  return made;
}

function show(found) {
  state = found;
  document.title = `${state.study} – owner`;
  $("name").textContent = state.study;
  $("state").textContent = state.status;
  $("state").dataset.state = state.status;
  $("pause").hidden = state.status === "closed";
  $("pause").textContent = state.status === "paused" ? "Resume" : "Pause";
  $("close").hidden = false;
  $("close").textContent = state.status === "closed" ? "Reopen" : "Close…";
  $("board").hidden = false;
  $("amount").textContent = `${number(state.done)} of ${number(state.wanted)} answers (${number((100 * state.done) / Math.max(1, state.wanted))} %)`;
  $("bar").max = Math.max(1, state.wanted);
  $("bar").value = state.done;
  const left = state["days left"] === null ? "" : `; at this speed, ${number(state["days left"], 1)} days remain`;
  $("speed").textContent = `${number(state["last day"])} in the last 24 hours${left}`;
  showDays();
  showPeople();
  showImages();
  $("actions").replaceChildren(...state.actions.toReversed().map((event) => {
    const who = event.person ? ` ${event.person}` : "";
    return element("li", `${event.when.slice(0, 16).replace("T", " ")}  ${event.action}${who}${event.reason ? `: ${event.reason}` : ""}`);
  }));
  if (!state.actions.length) $("actions").append(element("li", "Nothing yet.", "quiet"));
}

function showDays() {
  const days = Object.entries(state["by day"]);
  const most = Math.max(1, ...days.map(([, count]) => count));
  const time = days.length > 1 ? `${days[0][0]} to ${days.at(-1)[0]}` : days[0]?.[0];
  $("daysText").textContent = time ? `Answers per day, ${time}; maximum: ${number(most)} a day` : "";
  $("days").replaceChildren(...days.map(([day, count]) => {
    const item = element("li");
    const stick = element("span", "", "stick");
    stick.style.height = `${Math.max(4, (100 * count) / most)}%`;
    item.title = `${day}: ${count}`;
    item.setAttribute("aria-label", item.title);
    item.append(stick);
    return item;
  }));
}

function showPeople() {
  const agrees = state.people.some((person) => person.agreement !== null);
  const header = ["Person", "", "Answers", "Seconds", "Checks", ...(agrees ? ["Agreement"] : []), "Open", "Last", ""];
  table($("people"), header, state.people.map((person) => [
    element("strong", person.person), marks(person), number(person.answers), number(person.seconds),
    person.checks ? `${person["checks right"]} of ${person.checks}` : "–",
    ...(agrees ? [person.agreement === null ? "–" : `${number(person.agreement, 2)} (${person.shared})`] : []),
    number(person.open), ago(person.last),
    person.excluded === null
      ? button("Exclude…", () => ask("exclude", person.person), `Exclude ${person.person}`)
      : button("Readmit", () => act("include", person.person), `Readmit ${person.person}`),
  ]));
  if (!state.people.length) $("people").append(element("caption", "Nobody has joined yet."));
}

function showImages() {
  const images = state.images ?? [];
  $("imagesSection").hidden = !images.length;
  const again = images.filter((image) => image.marks.length).length;
  $("imagesText").textContent = `${number(images.length)} with an answer, ${number(again)} to check` +
    (images.length > MOST ? `; the first ${MOST} are shown.` : ".");
  table($("images"), ["Image", "", "Class", "People", "IoU", ""], images.slice(0, MOST).map((image) => [
    element("strong", image.unit), marks(image), image.label, `${image.people} of ${state.annotators}`, number(image.iou, 2),
    button("Show", () => showPicture(image), `Show ${image.unit}`),
  ]));
}

async function showPicture(image) {
  const blob = await call(`api/votes?unit=${encodeURIComponent(image.unit)}`, { key, as: "blob" });
  URL.revokeObjectURL($("picture").src);
  $("picture").src = URL.createObjectURL(blob);
  $("picture").alt = `Regions of ${image.unit} marked by ${image.people} people`;
  const marked = [`nobody has marked a region${image.marks.includes("skipped") ? ", but the image was skipped" : ""}`, "marked by one person"][image.people];
  $("caption").textContent = `${image.unit}: ${marked ?? `the stronger the colour, the more of the ${image.people} people marked this place`}.`;
  $("pictureDialog").showModal();
}

const WORDS = {
  exclude: ["Exclude", "The answers of this person remain stored but no longer count. The results mention the exclusion. The images are assigned to other people, and the person gets no new images. You can readmit the person later.", "Exclude"],
  close: ["Close the study?", "Nobody gets new images. Answers that people still send are stored. You can reopen the study later.", "Close"],
};

function ask(action, person = null) {
  const [title, text, confirm] = WORDS[action];
  $("reasonTitle").textContent = person ? `${title} ${person}?` : title;
  $("reasonText").textContent = text;
  $("confirm").textContent = confirm;
  $("reason").value = "";
  $("reasonDialog").returnValue = "";
  $("reasonDialog").onclose = () => $("reasonDialog").returnValue === "yes" && act(action, person, $("reason").value.trim());
  $("reasonDialog").showModal();
}

async function act(action, person = null, reason = "") {
  try {
    await call("api/act", { key, body: { action, person, reason, request: randomId() } });
  } catch (error) {
    return say(error.message);
  }
  look();
}

function say(text) {
  $("offline").textContent = text;
  $("offline").hidden = !text;
}

async function look(tries = 0) {
  clearTimeout(timer);
  try {
    show(await call("api/overview", { key: key ?? "" }));
    say("");
    timer = setTimeout(look, EVERY);
  } catch (error) {
    if (error instanceof Refused && [401, 403].includes(error.status)) return say("This is not the owner's link. To print the owner's link, run the study's saliency-bench command with --owner.");
    say(`The server does not respond (${error.message}). Trying again.`);
    timer = setTimeout(() => look(tries + 1), backoff(tries));
  }
}

$("pause").addEventListener("click", () => act(state.status === "paused" ? "open" : "pause"));
$("close").addEventListener("click", () => (state.status === "closed" ? act("open") : ask("close")));
$("cancel").addEventListener("click", () => $("reasonDialog").close());
$("closePicture").addEventListener("click", () => $("pictureDialog").close());
document.addEventListener("visibilitychange", () => document.hidden ? clearTimeout(timer) : look());
look();
