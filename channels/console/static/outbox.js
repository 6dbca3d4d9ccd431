// Sends messages, taps and files in order, and again when the connection is back.
"use strict";

const RETRY_MS = [600, 2000];
const RESEND_MS = 4000; // to send again, a little later each time
const RESEND_MAX_MS = 30_000;
const ENDED = "Your session has ended. Please reload the page.";
const BUSY = "The bot is busy. The message will be sent again shortly; tap to send it now.";
const UNSENT =
  "Not sent yet. The message will be sent when the connection is back; tap to send it now.";
const GONE = "this file was moved or changed: attach it again";
const REFUSED = "Not sent: the bot does not accept this.";

let outbox = []; // what waits to be sent, in order: { body, files, message, done, opens, failed }
let isSending = false;
let resendTimer = 0;
let resends = 0;

const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

function newId() {
  const bytes = Array.from(crypto.getRandomValues(new Uint8Array(16)));
  return bytes.map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

// Posts once more with the same id if the connection is lost: the server takes each id once.
// Returns what the server answered: the form that a tap opens, or errors of a form. If it failed,
// returns why, in words, and whether that is final.
async function post(body, attempt = 0) {
  const named = page.chat ? { chat: page.chat, ...body } : body;
  try {
    const signal = AbortSignal.timeout(ANSWER_TIMEOUT_MS);
    const answer = await fetch(page.hook, { ...jsonPost(named), signal });
    if (answer.ok || answer.status === 422) return await answer.json().catch(() => ({}));
    if ([401, 403].includes(answer.status)) return { words: ENDED, isFinal: true };
    if (answer.status < 500 && answer.status !== 429) return { words: REFUSED, isFinal: true };
    return { words: answer.status === 503 ? BUSY : UNSENT };
  } catch {
    if (attempt >= RETRY_MS.length) return { words: UNSENT };
    await pause(RETRY_MS[attempt]);
    return post(body, attempt + 1);
  }
}

// `seen` is the last entry that the user saw: a late yes must not answer a later question.
function sendText(text, files = []) {
  const id = newId();
  const views = files.map(({ file, url }) => ({ url, mime: file.type, filename: file.name }));
  const message = addMessage("user", new Date(), [userBubble(text, views)], page.person);
  ownMessages.set(id, message);
  if (text) sentTexts.push(text);
  sendFrom(message, { id, text, seen: lastId }, files);
}

function sendFrom(message, body, files = []) {
  setMark(message, "sending");
  addWaiting(body.id, { text: files.length ? "" : body.text, body });
  enqueue({
    body,
    files,
    message,
    done: () => setMark(message, "sent"),
    failed: (words) => {
      setMark(message, "unsent");
      offerRetry(message, words, () => retry(message, body, files));
    },
  });
}

function retry(message, body, files) {
  if (outbox.some((job) => job.body.id === body.id)) flush(true);
  else sendFrom(message, body, files);
}

// Sends a text before the outbox, which may hold a large file.
async function sendAtOnce(text) {
  const id = newId();
  const message = addMessage("user", new Date(), [userBubble(text, [])], page.person);
  const body = { id, text, seen: lastId };
  ownMessages.set(id, message);
  setMark(message, "sending");
  const { words } = await post(body);
  if (words) return sendFrom(message, body);
  addWaiting(id, { text, sent: true, body });
  if (!receivedIds.has(id)) {
    setMark(message, "sent");
    return;
  }
  markSeen(id);
  checkWaiting();
}

function tap(button, event) {
  const id = newId();
  const message = button.closest(".message");
  const again = (event) => {
    if (outbox.some((job) => job.body.id === id)) {
      choose(button);
      flush(true);
    } else {
      tap(button, event);
    }
  };
  choose(button);
  focusInput(event);
  addWaiting(id, {});
  enqueue({
    body: { id, tap: button.dataset.data, message: button.dataset.message },
    files: [],
    message,
    done: () => choose(button),
    // Nothing is under work: the server keeps nothing of a tap that opens a form.
    opens: (form) => {
      removeWaiting(id);
      choose(button, false);
      openForm(button, form);
    },
    failed: (words) => {
      if (!button.isConnected) return;
      choose(button, false);
      offerRetry(message, words, again);
    },
  });
}

// A job takes the place of the one for the same message, unless that is being sent.
function enqueue(job) {
  const current = isSending ? outbox[0] : null;
  const others = outbox.filter((other) => other === current || other.message !== job.message);
  outbox = [...others, job];
  flush();
}

// Sends the outbox in order.
// A job that cannot be sent now delays the later ones until the connection is back.
async function flush(isBack = false) {
  if (isBack) resends = 0;
  if (isSending) return;
  clearTimeout(resendTimer);
  isSending = true;
  while (outbox.length && (await sendFirst(outbox[0])));
  isSending = false;
}

// Returns whether the job left the outbox. A message that the feed has shown meanwhile is sent.
async function sendFirst(job) {
  const { body, files, message } = job;
  const isReceived = () => receivedIds.has(body.id);
  removeRetry(message);
  const { failure, refused } = isReceived() ? {} : await uploadAll(message, files);
  let answer = {};
  if (!refused && !isReceived()) {
    const named = files.length ? { ...body, files: files.map(({ name }) => name) } : body;
    answer = failure || (await post(named));
  }
  const words = isReceived() ? "" : answer.words;
  if (words && !answer.isFinal) {
    retryLater(words);
    return false;
  }
  outbox = outbox.filter((other) => other !== job);
  resends = 0;
  if (refused) returnToComposer(job, refused);
  else if (words) giveUp(job, words);
  else if (answer.form) job.opens(answer.form);
  else markSent(job);
  return true;
}

function giveUp({ body, failed }, words) {
  removeWaiting(body.id);
  failed(words);
}

function removeWaiting(id) {
  waiting.delete(id);
  store();
  showBusy();
}

function markSent({ body, done }) {
  const act = waiting.get(body.id);
  if (act) act.sent = true;
  if (!receivedIds.has(body.id)) done();
  store();
  if (act?.seen) checkWaiting();
}

function retryLater(words) {
  for (const job of outbox) job.failed(words);
  resendTimer = setTimeout(flush, Math.min(RESEND_MS * 2 ** resends, RESEND_MAX_MS));
  resends += 1;
}

// Uploads the files that the server does not have. Returns nothing, a failure to retry, or the file
// that was refused.
async function uploadAll(message, files) {
  const missing = files.filter(({ name }) => !name);
  if (!missing.length) return {};
  const total = sizeOfAll(files);
  const bar = Object.assign(element("progress"), { max: total, value: total - sizeOfAll(missing) });
  bar.ariaLabel = "Sending files";
  message.append(bar);
  for (const each of missing) {
    const before = sizeOfAll(files.filter(({ name }) => name));
    const answer = await upload(each.file, (loadedBytes) => {
      bar.value = before + loadedBytes;
    });
    if (!answer.name) {
      bar.remove();
      if (answer.refused) return { refused: { each, why: answer.refused } };
      return answer;
    }
    each.name = answer.name;
  }
  bar.remove();
  return {};
}

const sizeOfAll = (files) => files.reduce((total, { file }) => total + file.size, 0);

// Uses XMLHttpRequest because fetch reports no progress.
function upload(file, showProgress) {
  const request = new XMLHttpRequest();
  const filename = file.name.toWellFormed?.() ?? file.name;
  return new Promise((done) => {
    request.open("POST", page.files);
    for (const [name, value] of Object.entries(HEADERS)) request.setRequestHeader(name, value);
    request.setRequestHeader("X-Sayso-Filename", encodeURIComponent(filename));
    request.upload.onprogress = ({ loaded }) => showProgress(Math.min(loaded, file.size));
    request.onerror = async () => {
      const failure = { failure: { words: UNSENT } };
      done((await isReadable(file)) ? failure : { refused: GONE });
    };
    request.onload = () => done(uploadResult(request));
    request.send(file);
  });
}

// A file that was moved or changed after it was picked cannot be sent, however often it is tried.
async function isReadable(file) {
  try {
    await file.slice(0, 1).arrayBuffer();
    return true;
  } catch {
    return false;
  }
}

function uploadResult({ status, responseText }) {
  if (status === 201) return { name: JSON.parse(responseText).file };
  if ([401, 403, 413, 415, 429].includes(status)) return { refused: responseText.trim() };
  return { failure: { words: status === 503 ? BUSY : UNSENT } };
}
