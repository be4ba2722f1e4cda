// Buttons, keys and selection of tools.

import { Board } from "./canvas.js";

const $ = (id) => document.getElementById(id);
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const ONCE = ["Enter", "n", "s", " ", ",", "r", "a", "c", "o", "t"]; // keys that do not repeat while they are held
const FOR_REVIEWS = ["+", "=", "-", "0", "?"];
const FOR_CORRECTIONS = ["s", ","]; // keys that are disabled while a reviewer draws

export class Controls {
  // page: functions of the page, { isOpen, reviewing, save, skip, back, none, reject, correct, others, changed, enable, loadPieces }.
  constructor(board, page) {
    this.board = board;
    this.page = page;
    this.keys = this.drawingKeys();
    this.reviewKeys = {
      Enter: page.save, a: page.save, r: page.reject, c: page.correct, o: page.others,
    };
    for (const name of FOR_REVIEWS) this.reviewKeys[name] = this.keys[name];
    this.connectButtons();
    this.connectSliders();
    addEventListener("keydown", (event) => this.keyDown(event));
    addEventListener("keyup", (event) => this.keyUp(event));
    addEventListener("keydown", (event) => {
      if (event.key === "Tab" || event.key in ARROWS) document.body.classList.add("keys");
    }, true);
    addEventListener("pointerdown", () => document.body.classList.remove("keys"), true);
  }

  drawingKeys() {
    const { board, page } = this;
    return {
      b: () => this.choose("brush"), e: () => this.choose("eraser"), p: () => this.choose("polygon"),
      a: () => this.choose("superpixel"), g: () => this.choose("segment"), h: () => this.choose("pan"),
      t: () => this.subtract(),
      "[": () => board.resizeBrush(-1), "]": () => board.resizeBrush(1), z: () => this.undo(), y: () => this.redo(),
      x: () => (board.strokes.forget(), board.step(() => board.mask.clear())), n: page.none, s: page.skip, ",": page.back, Enter: page.save,
      "+": () => board.zoom(1.25), "=": () => board.zoom(1.25), "-": () => board.zoom(0.8), 0: () => board.fit(),
      "?": () => $("helpDialog").showModal(), " ": () => board.pressSpace(),
      Escape: () => ((board.corners = []), board.draw()), Backspace: () => board.corners.length && this.undo(),
    };
  }

  choose(tool) {
    const button = document.querySelector(`[data-tool=${tool}]`);
    if (button.hidden || this.board.readOnly) return;
    const { pending } = this.board.strokes;
    if (pending) return void pending.then(() => this.choose(tool)); // otherwise, the pending region would be lost
    for (const one of document.querySelectorAll("[data-tool]")) one.setAttribute("aria-pressed", one === button);
    this.board.choose(tool);
    if (tool === "superpixel") this.page.loadPieces();
    this.page.enable();
  }

  // Switch polygons and strokes between adding and removing.
  subtract() {
    if ($("subtract").disabled) return;
    this.board.takes = !this.board.takes;
    this.board.draw();
  }

  undo() {
    const { board } = this;
    board.liftPen();
    if (board.corners.length) board.corners.pop();
    else if (board.strokes.undo()) this.page.changed();
    else if (board.mask.undo()) this.page.changed();
    board.draw();
  }

  redo() {
    if (this.board.strokes.redo() || this.board.mask.redo()) this.page.changed();
    this.board.draw();
  }

  connectButtons() {
    const { keys, page } = this;
    for (const button of document.querySelectorAll("[data-tool]")) button.onclick = () => this.choose(button.dataset.tool);
    for (const button of document.querySelectorAll("[data-close]")) {
      button.onclick = () => button.closest("dialog").close("");
    }
    for (const [id, run] of Object.entries({
      undo: keys.z, redo: keys.y, clear: keys.x, fit: keys[0], back: keys[","], skip: keys.s, none: keys.n,
      save: keys.Enter, help: keys["?"], reject: this.reviewKeys.r, correct: this.reviewKeys.c,
      others: this.reviewKeys.o, subtract: keys.t,
    })) {
      $(id).onclick = () => (run(), page.enable());
    }
    // After a click on a button, return the focus to the image. A button that was reached by Tab keeps the focus.
    addEventListener("click", (event) => {
      const button = event.detail && event.target.closest("#tools button, footer button");
      if (button && !document.querySelector("dialog[open]")) this.focus();
    });
    for (const dialog of document.querySelectorAll("dialog")) dialog.addEventListener("close", () => this.focus());
  }

  connectSliders() {
    const { board, page } = this;
    $("size").max = Board.sizes.length - 1;
    $("size").oninput = () => ((board.brush = Board.sizes[$("size").value]), page.enable(), board.draw());
    $("opacity").oninput = () => ((board.opacity = Number($("opacity").value)), board.draw());
  }

  focus() {
    $("board").focus({ preventScroll: true });
  }

  keyDown(event) {
    const { board, page } = this;
    if (document.querySelector("dialog[open]") || event.isComposing || !page.isOpen()) return;
    const name = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (isForButton(name)) return;
    if (name in ARROWS) {
      event.preventDefault();
      return board.moveCursor(...ARROWS[name], event.shiftKey);
    }
    if (isForBrowser(event, name)) return;
    if (name === "m") board.opacity = 0;
    const run = name === "z" && event.shiftKey ? this.keys.y : this.keysNow()[name];
    if (!run || (event.repeat && ONCE.includes(name))) return name === "m" && board.draw();
    event.preventDefault();
    run();
    page.enable();
  }

  keysNow() {
    const { page, keys, reviewKeys } = this;
    if (!page.reviewing()) return keys;
    if (this.board.readOnly) return reviewKeys;
    const { c, o } = reviewKeys;
    return { ...Object.fromEntries(Object.entries(keys).filter(([name]) => !FOR_CORRECTIONS.includes(name))), c, o };
  }

  keyUp(event) {
    if (event.key.toLowerCase() !== "m") return;
    this.board.opacity = Number($("opacity").value);
    this.board.draw();
  }
}

// Return whether the focused button or slider uses a key.
function isForButton(name) {
  const focused = document.activeElement;
  if (!focused?.matches("button, input")) return false;
  return name === " " || name.startsWith("Arrow") || (name === "Enter" && focused.type !== "range");
}

function isForBrowser(event, name) {
  const command = event.ctrlKey || event.metaKey;
  const brackets = name === "[" || name === "]"; // AltGr on many keyboards
  return (command || event.altKey) && !brackets && !(command && (name === "z" || name === "y"));
}
