// The composer: the text and the files of the next message, suggestions, and what was sent before.
"use strict";

const form = byId("composer");
const input = byId("text");
const suggestions = byId("suggestions");
const more = byId("more");
const picker = byId("picker");
const chips = byId("picked");
const attached = byId("attached");
const notice = byId("notice");
const send = byId("send");
const stop = byId("stop");

const sentTexts = []; // for arrow-up
let recallIndex = -1; // the index in `sentTexts`
let attachments = []; // files of the next message: { file, url, name }; the server gives the name

function updateComposer() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
  send.disabled = !input.value.trim() && !attachments.length;
  const them = attachments.length > 1 ? ` to ${attachments.length} files` : "";
  input.placeholder = attachments.length ? `Add a caption${them}` : "Message";
  if (suggestions) suggestions.parentNode.hidden = input.value !== "" || attachments.length > 0;
  showBusy();
}

form.onsubmit = (event) => {
  event.preventDefault();
  const text = input.value.trim();
  const files = attachments;
  if (!text && !files.length) return;
  input.value = "";
  setAttachments([]);
  sendText(text, files);
};

// Focuses the composer after a press with mouse or keyboard.
// After a touch it would open the on-screen keyboard.
function focusInput({ detail }) {
  if (detail === 0 || matchMedia("(hover: hover)").matches) input.focus();
}

input.oninput = () => {
  recallIndex = -1;
  updateComposer();
};
input.onkeydown = (event) => {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (step && recall(step)) event.preventDefault();
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
};

// Brings back an earlier message, unless another one is being written. Returns whether it did.
function recall(step) {
  const isRecalled = recallIndex >= 0;
  if (isRecalled && input.value !== sentTexts[recallIndex]) return false;
  if (!isRecalled && (input.value || step > 0 || !sentTexts.length)) return false;
  const index = (isRecalled ? recallIndex : sentTexts.length) + step;
  recallIndex = index < sentTexts.length ? Math.max(index, 0) : -1;
  input.value = sentTexts[recallIndex] ?? "";
  updateComposer();
  input.setSelectionRange(input.value.length, input.value.length);
  return true;
}

suggestions?.addEventListener("click", (event) => {
  if (!event.target.matches("button") || event.detail > 1) return; // a double click sends it once
  focusInput(event);
  sendText(event.target.textContent);
});

// Suggestions are open in an empty chat, and behind one button later.
function showSuggestions(isOpen) {
  if (!more) return;
  more.ariaExpanded = String(isOpen);
  suggestions.hidden = !isOpen;
}

if (more) more.onclick = () => showSuggestions(suggestions.hidden);

stop.onclick = (event) => {
  focusInput(event);
  sendAtOnce("/stop");
};

byId("attach").onclick = () => picker.click();
picker.onchange = () => {
  attach(picker.files);
  picker.value = ""; // so that the same file can be picked again
};

// Takes pasted files wherever the focus is.
// Office programs put a picture beside the copied text: then the text is meant.
document.onpaste = (event) => {
  const { files, types } = event.clipboardData;
  if (!files.length || (types.includes("text/plain") && types.includes("text/html"))) return;
  event.preventDefault();
  attach(files);
};

const holdsFiles = (event) => event.dataTransfer.types.includes("Files");
const showDropArea = (isShown) => document.body.classList.toggle("dropping", isShown);
document.ondragover = (event) => {
  if (!holdsFiles(event)) return;
  event.preventDefault();
  showDropArea(true);
};
document.ondragleave = (event) => {
  if (!event.relatedTarget) showDropArea(false); // it left the window
};
document.ondrop = (event) => {
  showDropArea(false);
  if (!holdsFiles(event)) return;
  event.preventDefault();
  attachDropped(event.dataTransfer);
};

// Browsers give a folder as a file that cannot be read.
function attachDropped({ items, files }) {
  const fileItems = [...items].filter(({ kind }) => kind === "file");
  const isFolder = fileItems.map((item) => item.webkitGetAsEntry?.()?.isDirectory);
  attach([...files].filter((_, at) => !isFolder[at]));
  if (!isFolder.includes(true)) return;
  const complaints = [notice.textContent, "A folder cannot be sent: drop its files."];
  notice.textContent = complaints.filter(Boolean).join("\n");
}

function attach(files) {
  const taken = [...attachments];
  const complaints = [];
  for (const file of files) {
    const isFull = taken.length >= page.maxFiles;
    const problem = isFull ? `at most ${page.maxFiles} files at once` : problemOf(file);
    if (problem) complaints.push(`${file.name}: ${problem}`);
    else taken.push({ file: withOwnName(file, taken), url: URL.createObjectURL(file), name: "" });
  }
  const added = taken.slice(attachments.length).map(({ file }) => file.name);
  attached.textContent = added.length ? `Attached: ${added.join(", ")}.` : "";
  setAttachments(taken, complaints.join("\n"));
}

// Every pasted picture is called image.png: the second one gets a number.
function withOwnName(file, others) {
  const [, stem, ending] = /^(.*?)(\.[^.]*)?$/s.exec(file.name);
  const isTaken = (name) => others.some((other) => other.file.name === name);
  let name = file.name;
  for (let number = 2; isTaken(name); number += 1) name = `${stem}-${number}${ending ?? ""}`;
  return name === file.name ? file : new File([file], name, { type: file.type });
}

function setAttachments(files, complaint = "") {
  attachments = files;
  chips.replaceChildren(...attachments.map(chipOf));
  chips.hidden = !attachments.length;
  notice.textContent = complaint;
  updateComposer();
  input.focus();
}

function problemOf({ size }) {
  if (!size) return "this file is empty";
  if (size <= page.maxBytes) return "";
  return `${sizeOf(size)} is too large, at most ${sizeOf(page.maxBytes)}`;
}

function sizeOf(bytes) {
  if (bytes < 2 ** 20) return `${Math.ceil(bytes / 1024)} KB`;
  return `${Number((bytes / 2 ** 20).toFixed(1))} MB`;
}

function chipOf(each) {
  const chip = element("li", "chip");
  const words = element("span", "label", each.file.name);
  const image = Object.assign(element("img"), { alt: "", src: each.url });
  image.onerror = () => image.replaceWith(badgeOf(each.file.name));
  const remove = pressable("remove", "×", () => removeAttachment(each));
  remove.ariaLabel = `Remove ${each.file.name}`;
  words.append(element("small", "", sizeOf(each.file.size)));
  const view = each.file.type.startsWith("image/") ? image : badgeOf(each.file.name);
  chip.append(view, words, remove);
  return chip;
}

function removeAttachment(each) {
  URL.revokeObjectURL(each.url);
  setAttachments(attachments.filter((other) => other !== each));
}

// Puts an unsent message back into the composer: its text and its files without the refused one.
function returnToComposer({ message, body, files }, { each, why }) {
  message.remove();
  ownMessages.delete(body.id);
  markAnswered(body.id);
  URL.revokeObjectURL(each.url);
  input.value = [body.text, input.value].filter(Boolean).join("\n");
  const others = files.filter((other) => other !== each);
  setAttachments([...others, ...attachments], `${each.file.name}: ${why}`);
}
