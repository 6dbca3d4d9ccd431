// Code in answers: a button that copies it, and colors for the languages of highlight.min.js.
"use strict";

const MAX_COLORED_CHARS = 50_000;
const HIGHLIGHTER = document.currentScript.dataset.highlighter;
let highlighter = null; // the promise of the library, which is loaded when code has a language

// Puts each code block of an answer into a box with its language and a copy button.
function dressCode(text) {
  for (const pre of text.querySelectorAll("pre")) {
    const code = pre.querySelector("code");
    if (!code) continue;
    const language = /(?:^|\s)language-([\w+#.-]{1,30})/.exec(code.className)?.[1] ?? "";
    const box = element("div", "code");
    const bar = element("div", "bar");
    const button = pressable("copy-code", "Copy", () => copyCode(code, button));
    button.ariaLabel = `Copy ${language || "the"} code`;
    bar.append(element("span", "", language), button);
    pre.replaceWith(box);
    box.append(bar, pre);
    pre.tabIndex = 0; // so that wide code can be scrolled with the keyboard
    if (language) colorCode(code, language);
  }
}

async function copyCode(code, button) {
  await copyText(code.textContent.replace(/\n$/, ""));
  button.textContent = "Copied";
  setTimeout(() => {
    button.textContent = "Copy";
  }, COPIED_MS);
}

// The library escapes the code that it colors. Code in an unknown language keeps one color.
async function colorCode(code, language) {
  const source = code.textContent;
  if (source.length > MAX_COLORED_CHARS) return;
  highlighter ??= loadHighlighter();
  const library = await highlighter;
  if (!library?.getLanguage(language)) return;
  code.innerHTML = library.highlight(source, { language, ignoreIllegals: true }).value;
}

function loadHighlighter() {
  const script = Object.assign(element("script"), { src: HIGHLIGHTER });
  return new Promise((done) => {
    script.onload = () => done(window.hljs);
    script.onerror = () => done(null);
    document.head.append(script);
  });
}
