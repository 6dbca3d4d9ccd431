// The form of a question: it takes the place of the question's buttons, and changes values before a yes.
"use strict";

const FORM_INPUTS = { date: "date", time: "time", datetime: "datetime-local" };
// What the browser's own pickers can show. Another value, such as a time with a zone, is typed.
const FORM_PATTERNS = {
  date: /^\d{4}-\d\d-\d\d$/,
  time: /^\d\d:\d\d$/,
  datetime: /^\d{4}-\d\d-\d\dT\d\d:\d\d(:00)?$/,
};
const FORM_UNSENT = "Not sent yet: there is no connection to the bot. Please try again.";
let formsOpened = 0; // makes the ids of fields different from those of other forms

// Shows the form that the tapped button has opened.
function openForm(button, described) {
  const row = button.closest(".buttons");
  if (!row?.isConnected) return;
  formsOpened += 1;
  const form = element("form", "change");
  Object.assign(form, { noValidate: true, autocomplete: "off", ariaLabel: described.title });
  form.lang = described.language;
  const views = described.fields.map(fieldView);
  const note = Object.assign(element("p", "note", described.note), { dir: "auto" });
  const problem = Object.assign(element("p", "problem"), { role: "alert", dir: "auto" });
  const submit = Object.assign(element("button", "primary", described.submit), { type: "submit" });
  const cancel = pressable("", described.cancel, () => closeForm(form, button));
  const actions = element("div", "actions");
  actions.append(submit, cancel, element("span", "left"));
  form.append(...views.map(({ view }) => view), note, problem, actions);
  form.onkeydown = (event) => {
    if (event.key === "Escape") closeForm(form, button);
  };
  form.onsubmit = (event) => {
    event.preventDefault();
    submitForm(form, views, button);
  };
  row.hidden = true;
  row.before(form);
  if (row.dataset.until) countDown(row);
  showFromTop(row.closest(".message"));
  // The user may be writing something else by now.
  if (!input.value) views[0]?.control.focus({ preventScroll: true });
}

// Shows until when a question is open now, also one whose time seemed to be up.
function keepOpen(row, until, seconds) {
  if (!row.querySelector(".left")) return;
  Object.assign(row.dataset, { until, seconds: Math.ceil(seconds) });
  const isChosen = row.querySelector(".chosen") !== null; // the tap that opens the form is on its way
  for (const button of row.querySelectorAll("button")) button.disabled = isChosen;
  countDown(row);
}

// Shows the question above its form. A form that is higher than the window goes on below it.
function showFromTop(message) {
  isScrolledUp = message.offsetHeight > main.clientHeight - END_PX;
  if (isScrolledUp) message.scrollIntoView({ block: "start" });
  else toBottom();
}

// Removes a form, and shows the buttons of its question again.
function closeForm(form, button = null) {
  const hadFocus = form.contains(document.activeElement);
  const row = form.parentNode.querySelector(".buttons");
  form.remove();
  if (row) row.hidden = false;
  if (!hadFocus) return;
  if (button?.isConnected && !button.disabled) button.focus();
  else input.focus();
}

// Returns a field, its control, and what the user has changed of it: undefined for nothing.
function fieldView(field, number) {
  const id = `change-${formsOpened}-${number}`;
  const control = controlOf(field);
  const error = Object.assign(element("small", "error"), { id: `${id}-error`, dir: "auto" });
  const hint = Object.assign(element("small", "hint", field.description), { id: `${id}-hint` });
  hint.dir = "auto";
  const label = Object.assign(element("label", "", field.label), { htmlFor: id, dir: "auto" });
  control.id = id;
  control.setAttribute("aria-describedby", `${error.id} ${hint.id}`);
  if (field.required && field.type !== "boolean") control.ariaRequired = "true";
  const view = element("div", `field ${field.type}`);
  if (field.type === "boolean") view.append(control, label);
  else view.append(label, control);
  view.append(hint, error);
  const current = () => (field.type === "boolean" ? String(control.checked) : control.value);
  const before = current();
  const changed = () => (current() === before ? undefined : current());
  return { name: field.name, view, control, error, changed };
}

function controlOf(field) {
  if (field.type === "boolean") {
    const box = Object.assign(element("input"), { type: "checkbox" });
    box.checked = field.value === "true";
    return box;
  }
  if (field.type === "choice") return menuOf(field);
  if (field.isLong) {
    const area = Object.assign(element("textarea"), { rows: 4, value: field.value, dir: "auto" });
    if (field.type === "text") area.maxLength = field.maxChars;
    return area;
  }
  return inputOf(field);
}

function menuOf(field) {
  const menu = element("select");
  const isKnown = field.choices.includes(field.value);
  const choices = isKnown && field.required ? field.choices : ["", ...field.choices];
  for (const choice of choices) menu.add(new Option(choice, choice));
  menu.value = field.value;
  return menu;
}

function inputOf(field) {
  const made = Object.assign(element("input"), { type: "text", dir: "auto" });
  if (field.type === "integer") made.inputMode = "numeric";
  if (field.type === "number") made.inputMode = "decimal";
  if (field.type === "text") made.maxLength = field.maxChars;
  if (!field.value || FORM_PATTERNS[field.type]?.test(field.value)) {
    made.type = FORM_INPUTS[field.type] ?? "text";
  }
  made.value = field.value;
  return made;
}

// Sends what was changed. The same values have the same id, so a repeat changes nothing twice.
async function submitForm(form, views, button) {
  const entries = views.map(({ name, changed }) => [name, changed()]);
  const values = Object.fromEntries(entries.filter(([, value]) => value !== undefined));
  const sent = JSON.stringify(values);
  if (form.dataset.sent !== sent) Object.assign(form.dataset, { sent, id: newId() });
  const id = form.dataset.id;
  const { data, message } = button.dataset;
  const submit = form.querySelector("[type=submit]");
  showErrors(form, views, {});
  submit.disabled = true;
  const answer = await post({ id, tap: data, message, form: values });
  submit.disabled = false;
  if (!form.isConnected) return; // the question was answered in another way
  if (answer.errors) return showErrors(form, views, answer.errors);
  if (answer.words) {
    form.querySelector(".problem").textContent = answer.isFinal ? answer.words : FORM_UNSENT;
    return;
  }
  addWaiting(id, { sent: true });
  closeForm(form);
  choose(button);
}

// Shows errors beside their fields, and moves the focus to the first one.
function showErrors(form, views, errors) {
  form.querySelector(".problem").textContent = "";
  for (const { name, control, error } of views) {
    error.textContent = errors[name] ?? "";
    control.ariaInvalid = errors[name] ? "true" : null;
  }
  views.find(({ name }) => errors[name])?.control.focus();
}
