// What messages look like: text, files, buttons, marks. Every other script of the page uses it.
"use strict";

const COPIED_MS = 1500; // how long a button says "Copied"
const NEW_MS = 5000; // a message that is not older appears with an animation
const SOON_SECONDS = 10; // the time to answer is nearly over
const MARKS = { sending: "Sending…", sent: "Sent ✓", seen: "✓✓", unsent: "" };
const messageTexts = new WeakMap(); // a bot's message -> its text, for Copy

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

function pressable(className, text, onclick) {
  return Object.assign(element("button", className, text), { type: "button", onclick });
}

function addMessage(side, at, parts, name = "") {
  const isNew = place === log && Date.now() - at < NEW_MS;
  const message = element("article", `message ${side}${isNew ? " new" : ""}`);
  const meta = element("div", "meta");
  if (name) meta.append(Object.assign(element("span", "who", name), { dir: "auto" }));
  meta.append(timeOf(at));
  message.append(element("span", "sr", side === "user" ? "You: " : "Bot: "), ...parts, meta);
  place.append(message);
  if (place !== log) return message;
  if (side === "user") toBottom();
  showSuggestions(false);
  return message;
}

function edit(message, entry, at) {
  const [bubble, ...buttons] = partsOf(entry, entry.of, at);
  if (!entry.media) bubble.append(...message.querySelectorAll("figure, .file"));
  const answers = [...message.querySelectorAll(".buttons, .retry, .change")];
  const hadFocus = answers.some((part) => part.contains(document.activeElement));
  for (const part of [...answers, ...message.querySelectorAll(".bubble")]) part.remove();
  message.querySelector(".sr").after(bubble, ...buttons);
  messageTexts.set(message, entry.text);
  if (hadFocus) input.focus();
}

// Returns the bubble of a bot's message, and its row of buttons if it has some.
function partsOf(entry, id, at) {
  const bubble = element("div", "bubble");
  const text = textOf(entry);
  dressCode(text);
  bubble.append(text);
  if (entry.media) bubble.append(mediaView(entry.media));
  if (!entry.buttons.length) return [bubble];
  const until = entry.seconds ? at.getTime() + entry.seconds * 1000 : 0;
  return [bubble, buttonRow(entry.buttons, id, until, Math.ceil(entry.seconds))];
}

function textOf(entry) {
  const text = Object.assign(element("div", "text"), { dir: "auto" });
  text.innerHTML = entry.html; // made by the server's Markdown renderer, which escapes HTML
  return text;
}

function userBubble(text, files) {
  const bubble = element("div", "bubble");
  bubble.append(...files.map(mediaView));
  if (text) bubble.append(element("div", "words", text));
  return bubble;
}

// Shows the state of our message: being sent, stored by the server, read by a worker.
function setMark(message, state) {
  if (!message?.matches(".user")) return;
  const meta = message.querySelector(".meta");
  const sign = meta.querySelector(".sign") ?? meta.appendChild(element("span", "sign"));
  const label = state === "seen" ? "Read" : "";
  sign.textContent = MARKS[state];
  sign.title = label;
  sign.ariaLabel = label || null;
  if (label) sign.setAttribute("role", "img");
}

function copyButton(message) {
  const button = pressable("copy", "", () => copy(messageTexts.get(message), button));
  button.ariaLabel = "Copy";
  button.innerHTML = byId("copy-icon").innerHTML;
  return button;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyByHand(text); // a page without https has no clipboard
  }
}

async function copy(text, button) {
  await copyText(text);
  button.classList.add("copied");
  button.ariaLabel = "Copied";
  setTimeout(() => {
    button.classList.remove("copied");
    button.ariaLabel = "Copy";
  }, COPIED_MS);
}

function copyByHand(text) {
  const area = Object.assign(element("textarea", "sr"), { value: text });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

function timeOf(at) {
  const isToday = at.toDateString() === new Date().toDateString();
  const clock = { hour: "2-digit", minute: "2-digit" };
  const format = isToday ? clock : { day: "numeric", month: "short", ...clock };
  const words = at.toLocaleString([], format);
  return Object.assign(element("time", "", words), { dateTime: at.toISOString() });
}

function mediaView(media) {
  if (!media.mime.startsWith("image/")) return fileCard(media);
  const figure = element("figure");
  const image = Object.assign(element("img"), { alt: media.filename || "Image", src: media.url });
  const caption = element("figcaption", "", media.filename);
  image.onerror = () => figure.replaceWith(fileCard(media, !media.url.startsWith("blob:")));
  caption.append(downloadLink(media, "", "Download"));
  figure.append(image, caption);
  return figure;
}

function fileCard(media, isGone = false) {
  const card = isGone ? element("div", "file gone") : downloadLink(media, "file", "");
  const label = element("span", "label", media.filename || "File");
  const note = isGone ? "No longer available: ask for it again" : media.mime;
  card.append(badgeOf(media.filename), label, element("small", "", note));
  if (!isGone) card.append(element("span", "act", "Download"));
  return card;
}

function badgeOf(filename) {
  const ending = filename.split(".").pop() || "file";
  return element("span", "badge", ending.slice(0, 4).toUpperCase());
}

function downloadLink(media, className, text) {
  const link = element("a", className, text);
  return Object.assign(link, { href: media.url, download: media.filename });
}

function buttonRow(buttons, id, until, seconds) {
  const row = Object.assign(element("div", "buttons"), { role: "group", ariaLabel: "Your answer" });
  for (const each of buttons) {
    const button = pressable(each.style, each.label, (event) => tap(button, event));
    Object.assign(button.dataset, { data: each.data, message: id });
    row.append(button);
  }
  if (until) {
    Object.assign(row.dataset, { until, seconds });
    const left = element("span", "left");
    left.role = "timer"; // not read out each second
    row.append(left);
    countDown(row);
  }
  return row;
}

const buttonsIn = (node) => [...node.querySelectorAll(".buttons button")];

function countDown(row) {
  const ends = Math.ceil((row.dataset.until - Date.now() - CLOCK_AHEAD_MS) / 1000);
  const left = Math.min(ends, row.dataset.seconds); // our clock was compared when the page loaded
  if (left <= 0) return closeRow(row, "Time is up");
  for (const shown of [row, formOf(row)]) {
    if (!shown) continue;
    shown.querySelector(".left").textContent = timeLeft(left);
    shown.classList.toggle("soon", left <= SOON_SECONDS);
  }
}

// Returns the form that is open in the place of a row of buttons.
const formOf = (row) => row.parentNode?.querySelector(".change");

function timeLeft(left) {
  if (left >= 3600) return `${Math.floor(left / 3600)} h left`;
  const seconds = String(left % 60).padStart(2, "0");
  return `${Math.floor(left / 60)}:${seconds} left`;
}

// Disables the buttons. A user who was about to press one goes on in the composer.
function closeRow(row, words = "") {
  const hadFocus = row.contains(document.activeElement);
  for (const button of row.querySelectorAll("button")) button.disabled = true;
  delete row.dataset.until;
  const left = row.querySelector(".left");
  if (left) left.textContent = words;
  const form = formOf(row);
  if (form) {
    form.querySelector(".left").textContent = words;
    form.querySelector("[type=submit]").disabled = true;
  }
  if (hadFocus) input.focus();
}

function choose(button, isChosen = true) {
  for (const each of button.parentNode.querySelectorAll("button")) each.disabled = isChosen;
  button.classList.toggle("chosen", isChosen);
  button.ariaLabel = isChosen ? `${button.textContent}, chosen` : null;
}

// A typed message answers or drops the open question, so its buttons are disabled.
// An offer, such as Undo, stays.
function closeButtons() {
  for (const form of place.querySelectorAll(".change")) closeForm(form);
  for (const row of place.querySelectorAll(".buttons:has(.primary, .danger)")) closeRow(row);
}

function offerRetry(message, words, again) {
  removeRetry(message);
  const button = pressable("retry", words, (event) => {
    removeRetry(message);
    again(event);
    focusInput(event);
  });
  message.append(button);
}

function removeRetry(message) {
  message.querySelector(".retry")?.remove();
}
