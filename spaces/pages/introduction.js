// What people read before they begin: the consent that they are asked for, and the instructions of the owner.
// The server has made the HTML of a Markdown file, without any HTML of the file.

let asking = null; // a question that is on the screen

// The id of the consent, once whoever sits here has agreed to it.
export function askConsent(consent) {
  asking ??= new Promise((agreed) => {
    const dialog = document.createElement("dialog");
    dialog.id = "consentDialog";
    dialog.setAttribute("aria-label", "Consent");
    const text = textOf(consent);
    text.tabIndex = 0; // scrolled by keys, and read first
    const menu = document.createElement("menu");
    menu.append(
      button("decline", "I do not agree", () => decline(dialog)),
      button("agree", "I agree", () => (dialog.remove(), (asking = null), agreed(consent.id)), "primary"),
    );
    dialog.append(text, menu);
    dialog.addEventListener("cancel", (event) => event.preventDefault()); // Esc is no answer
    dialog.addEventListener("close", () => dialog.isConnected && dialog.showModal());
    document.body.append(dialog);
    dialog.showModal();
    text.focus();
  });
  return asking;
}

function decline(dialog) {
  const before = [...dialog.childNodes];
  const words = document.createElement("p");
  words.textContent = "You do not take part, and nothing new about you is stored. You can close this page.";
  const again = document.createElement("menu");
  again.append(button("reread", "Read it again", () => dialog.replaceChildren(...before)));
  dialog.replaceChildren(words, again);
}

function button(id, text, run, kind = "") {
  const made = document.createElement("button");
  Object.assign(made, { type: "button", id, textContent: text, className: kind });
  made.addEventListener("click", run);
  return made;
}

function textOf(text) {
  const made = document.createElement("div");
  made.className = "markdown";
  made.innerHTML = text.html;
  return made;
}

// Puts the owner's instructions, where there are any, in the place of those of the page, and what was agreed to below.
// Returns the name under which a browser keeps that these instructions were read.
export function placeInstructions(prefix, { instructions, consent }) {
  const place = document.getElementById("instructions");
  if (instructions) place.replaceChildren(textOf(instructions));
  if (consent) {
    const details = document.createElement("details");
    const summary = document.createElement("summary");
    summary.textContent = "What you have agreed to";
    details.append(summary, textOf(consent));
    place.append(details);
  }
  return `${prefix}seen${instructions ? `-${instructions.id.slice(0, 16)}` : ""}`;
}
