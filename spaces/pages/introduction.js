// Texts that people read before they begin: the consent and the owner's instructions.
// The server generates the HTML from a Markdown file. Raw HTML in the file is escaped.

let asking = null; // the promise of the consent dialog that is open

// Ask for consent. The promise resolves to the id of the consent when the person has agreed.
export function askConsent(consent) {
  asking ??= new Promise((agreed) => {
    const dialog = document.createElement("dialog");
    dialog.id = "consentDialog";
    dialog.setAttribute("aria-label", "Consent");
    const text = textOf(consent);
    text.tabIndex = 0; // focusable, so that keys scroll the text and screen readers start with it
    const menu = document.createElement("menu");
    menu.append(
      button("decline", "I do not agree", () => decline(dialog)),
      button("agree", "I agree", () => (dialog.remove(), (asking = null), agreed(consent.id)), "primary"),
    );
    dialog.append(text, menu);
    dialog.addEventListener("cancel", (event) => event.preventDefault()); // Esc must not close the dialog
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
  words.textContent = "You are not taking part, and no new data about you is stored. You can close this page.";
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

// Replace the page's instructions with the owner's instructions, if there are any, and add the consent below.
// Return the storage name under which the browser remembers that these instructions were read.
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
