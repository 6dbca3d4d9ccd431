// The console page: shows one feed in order, each entry once, and posts what the user says or taps.
"use strict";

const page = document.body.dataset;
const byId = (id) => document.getElementById(id);
const [log, typing, form, input, suggestions] = ["log", "typing", "composer", "text", "suggestions"].map(byId);
const main = document.querySelector("main");

const [POLL_MS, POLLS_BEFORE_STREAM] = [1500, 20];
const [TYPING_MS, RETRY_MS] = [60_000, [600, 2000]];

const acts = new Map(); // event id -> our own message element
const bubbles = new Map(); // id in the feed, and id of the delivery -> the bot's message
const heard = new Set(); // what the server has told already: event ids, and ids of deliveries it may try twice
let lastId = "";
let typingTimer = 0;
let draft = null; // the answer as far as it has come

function show(id, entry) {
  lastId = id;
  const at = new Date(parseInt(id, 10));
  ({ user: showUser, tap: showTap, typing: showTyping, draft: showDraft, bubble: showBubble, edit: showEdit })[entry.type]?.(entry, at, id);
}

function showUser(entry, at) {
  if (!firstHeard(entry.event)) return;
  closeButtons();
  const known = acts.get(entry.event);
  if (known) settle(known);
  else addMessage("user", at, [element("div", "bubble", entry.text)]);
}

function showTap(entry) {
  const button = [...log.querySelectorAll(".buttons button")].find((each) => each.dataset.data === entry.data);
  if (!firstHeard(entry.event) || !button) return;
  settle(button.closest(".message"));
  choose(button);
}

function showTyping(_entry, at) {
  dropDraft();
  const left = TYPING_MS - (Date.now() - at);
  if (left > 0) setTyping(true, left);
}

// One draft at a time, in place of the dots. What is older than they would be belongs to nobody who still writes.
function showDraft(entry, at) {
  if (Date.now() - at > TYPING_MS) return;
  setTyping(false);
  draft ??= Object.assign(addMessage("bot", at, [element("div", "bubble draft")]), { ariaHidden: "true" }); // read out once
  const text = element("div", "text");
  text.innerHTML = entry.html;
  following(() => draft.querySelector(".bubble").replaceChildren(text));
}

function dropDraft() {
  draft?.remove();
  draft = null;
}

function showBubble(entry, at, id) {
  setTyping(false);
  dropDraft();
  if (!firstHeard(entry.delivery)) return bubbles.set(id, bubbles.get(entry.delivery));
  const message = addMessage("bot", at, partsOf(entry, id));
  for (const name of [id, entry.delivery]) bubbles.set(name, message);
}

// The message of that id says something else now. Its file stays; its buttons do not, unless the new words come with some.
function showEdit(entry) {
  const message = bubbles.get(entry.of);
  if (!firstHeard(entry.delivery) || !message) return;
  const [bubble, ...buttons] = partsOf(entry, entry.of);
  if (!entry.media) bubble.append(...message.querySelectorAll("figure, .file"));
  following(() => {
    message.querySelectorAll(".bubble, .buttons, .retry").forEach((part) => part.remove());
    message.querySelector(".sr").after(bubble, ...buttons);
  });
}

function partsOf(entry, id) {
  const text = element("div", "text");
  text.innerHTML = entry.html; // made by the server's Markdown renderer, which lets no HTML through
  const bubble = element("div", "bubble");
  bubble.append(text, ...(entry.media ? [mediaView(entry.media)] : []));
  return [bubble, ...(entry.buttons.length ? [buttonRow(entry.buttons, id)] : [])];
}

const firstHeard = (id) => !heard.has(id) && heard.add(id);

function element(tag, className = "", text = "") {
  const made = document.createElement(tag);
  made.className = className;
  made.textContent = text;
  return made;
}

const pressable = (className, text, onclick) => Object.assign(element("button", className, text), { type: "button", onclick });

// Whoever reads the end goes on reading the end.
function following(change) {
  const atBottom = main.scrollHeight - main.scrollTop - main.clientHeight < 120;
  change();
  if (atBottom) toBottom();
}

function addMessage(side, at, parts) {
  const message = element("article", `message ${side}${Date.now() - at < 5000 ? " new" : ""}`);
  message.append(element("span", "sr", side === "user" ? "You: " : "Bot: "), ...parts, timeOf(at));
  following(() => log.append(message));
  if (side === "user") toBottom();
  return message;
}

function timeOf(at) {
  const today = at.toDateString() === new Date().toDateString();
  const clock = { hour: "2-digit", minute: "2-digit" };
  const words = at.toLocaleString([], today ? clock : { day: "numeric", month: "short", ...clock });
  return Object.assign(element("time", "meta", words), { dateTime: at.toISOString() });
}

function mediaView(media) {
  if (!media.mime.startsWith("image/")) return fileCard(media);
  const figure = element("figure");
  const image = Object.assign(element("img"), { alt: media.filename || "Image from the bot", src: media.url, onload: toBottom });
  const caption = element("figcaption", "", media.filename);
  image.onerror = () => figure.replaceWith(fileCard(media, true));
  caption.append(downloadLink(media, "", "Download"));
  figure.append(image, caption);
  return figure;
}

function fileCard(media, gone = false) {
  const card = gone ? element("div", "file gone") : downloadLink(media, "file", "");
  const ending = (media.filename.split(".").pop() || "file").slice(0, 4).toUpperCase();
  card.append(element("span", "badge", ending), element("span", "label", media.filename || "File"));
  card.append(element("small", "", gone ? "No longer available: ask for it again" : media.mime));
  if (!gone) card.append(element("span", "act", "Download"));
  return card;
}

function downloadLink(media, className, text) {
  return Object.assign(element("a", className, text), { href: media.url, download: media.filename });
}

function buttonRow(buttons, id) {
  const row = Object.assign(element("div", "buttons"), { role: "group", ariaLabel: "Your answer" });
  for (const each of buttons) {
    const button = pressable(each.style, each.label, () => tap(button));
    Object.assign(button.dataset, { data: each.data, message: id });
    row.append(button);
  }
  return row;
}

function choose(button, chosen = true) {
  for (const each of button.parentNode.children) each.disabled = chosen;
  button.classList.toggle("chosen", chosen);
  button.ariaLabel = chosen ? `${button.textContent}, chosen` : null;
}

// Words settle or drop whatever was waiting, so its answers have nothing left to say. An offer, such as Undo, stays.
function closeButtons() {
  for (const button of log.querySelectorAll(".buttons :is(.primary, .danger)")) button.disabled = true;
}

function setTyping(shown, milliseconds = 0) {
  clearTimeout(typingTimer);
  typing.hidden = !shown;
  if (!shown) return;
  typingTimer = setTimeout(() => setTyping(false), milliseconds);
  toBottom();
}

const toBottom = () => (main.scrollTop = main.scrollHeight);

function setState(state, words = state) {
  const shown = byId("state");
  if (shown.textContent !== words) shown.textContent = words;
  shown.dataset.state = state;
}

const newId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

// Tries a lost connection again with the same id: the server takes each id once. Returns "" or why it failed.
async function post(body, attempt = 0) {
  try {
    const answer = await fetch(page.hook, {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Sayso-Console": "1" },
      body: JSON.stringify(body),
      signal: AbortSignal.timeout(15_000),
    });
    if (answer.ok) return "";
    if (answer.status === 503) return "The bot is busy. Please try again shortly.";
    if (answer.status === 403) return "Your session has ended. Please reload the page.";
    return "Not sent, tap to retry";
  } catch {
    if (attempt >= RETRY_MS.length) return "Not sent, tap to retry";
    await pause(RETRY_MS[attempt]);
    return post(body, attempt + 1);
  }
}

async function say(text) {
  const id = newId();
  const message = addMessage("user", new Date(), [element("div", "bubble", text)]);
  acts.set(id, message);
  await sendFrom(message, { id, text });
}

async function sendFrom(message, body) {
  message.classList.add("sending");
  const failure = await post(body);
  message.classList.remove("sending");
  if (failure && !heard.has(body.id)) offerRetry(message, failure, () => sendFrom(message, body));
}

async function tap(button, id = newId()) {
  settle(button.closest(".message"));
  choose(button);
  const failure = await post({ id, tap: button.dataset.data, message: button.dataset.message });
  if (!failure || heard.has(id) || !button.isConnected) return;
  choose(button, false);
  offerRetry(button.closest(".message"), failure, () => tap(button, id));
}

function offerRetry(message, words, again) {
  settle(message);
  message.append(pressable("retry", words, () => (settle(message), again())));
}

// The message has arrived after all, or is about to be sent again.
function settle(message) {
  message.classList.remove("sending");
  message.querySelector(".retry")?.remove();
}

function listen() {
  const stream = new EventSource(`${page.events}?after=${encodeURIComponent(lastId)}`);
  let lost = 0;
  stream.onopen = () => (clearTimeout(lost), (lost = 0), setState("live"));
  stream.onmessage = (event) => show(event.lastEventId, JSON.parse(event.data));
  stream.onerror = () => {
    if (stream.readyState === EventSource.CLOSED) return clearTimeout(lost), poll(POLLS_BEFORE_STREAM);
    lost ||= setTimeout(() => setState("offline"), 3000); // a stream that ended is back within a second
  };
}

async function poll(left) {
  if (!left) return listen();
  const answer = await fetch(`${page.poll}?after=${encodeURIComponent(lastId)}`).catch(() => null);
  if (answer?.status === 403) return setState("offline", "session ended, reload");
  setState(answer?.ok ? "polling" : "offline");
  if (answer?.ok) for (const { at, ...entry } of (await answer.json()).entries) show(at, entry);
  setTimeout(poll, POLL_MS, left - 1);
}

function composed() {
  input.style.height = "auto";
  input.style.height = `${input.scrollHeight}px`;
  byId("send").disabled = !input.value.trim();
  if (suggestions) suggestions.hidden = input.value !== "";
}

form.onsubmit = (event) => {
  event.preventDefault();
  const text = input.value.trim();
  if (!text) return;
  input.value = "";
  composed();
  say(text);
};

input.oninput = composed;
input.onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
};

suggestions?.addEventListener("click", (event) => {
  if (event.target.matches("button")) say(event.target.textContent);
});

composed();
listen();
