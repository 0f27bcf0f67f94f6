// The page of `mtx serve`. Texts and translations are only ever set as text, never as markup.
(() => {
  "use strict";

  const AUTO = "auto";
  const ALTERNATIVES = 3;
  const ids = [
    "form", "source", "target", "swap", "text", "mirror", "count", "clear", "translate", "output", "error", "note",
    "status", "copy", "others", "alternatives", "key-row", "key",
  ];
  const ui = Object.fromEntries(ids.map((id) => [id, document.getElementById(id)]));
  const { languages, settings } = JSON.parse(document.getElementById("data").textContent);
  const names = Object.fromEntries(languages.map(({ code, name }) => [code, name]));
  const sources = languages.filter(({ targets }) => targets.length > 0);
  // What is shown: the text, its language and the translations (the shown one first).
  const state = { running: null, text: "", source: "", target: "", translations: [] };

  fill(ui.source, [...(sources.length > 1 ? [AUTO] : []), ...sources.map(({ code }) => code)]);
  ui.source.value = settings.language.source.code;
  fillTargets(settings.language.target.code);
  ui["key-row"].hidden = !settings.keyRequired;
  ui.key.value = sessionStorage.getItem("key") ?? "";
  ui.key.addEventListener("change", () => sessionStorage.setItem("key", ui.key.value));
  ui.form.addEventListener("submit", (event) => {
    event.preventDefault();
    translate();
  });
  ui.text.addEventListener("input", changed);
  ui.source.addEventListener("change", () => {
    fillTargets(ui.target.value);
    changed();
  });
  ui.target.addEventListener("change", changed);
  ui.swap.addEventListener("click", swap);
  ui.clear.addEventListener("click", () => {
    ui.text.value = "";
    changed();
    ui.text.focus();
  });
  ui.copy.addEventListener("click", copy);
  document.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      translate();
    } else if (event.altKey && !event.ctrlKey && !event.metaKey && event.code === "KeyS") {
      event.preventDefault();
      swap();
    }
  });
  changed();
  if (document.activeElement === document.body) ui.text.focus();

  function fillTargets(wanted) {
    const codes = ui.source.value === AUTO ? sources.flatMap(({ targets }) => targets)
      : languages.find(({ code }) => code === ui.source.value).targets;
    fill(ui.target, [...new Set(codes)]);
    if (codes.includes(wanted)) ui.target.value = wanted;
  }

  // The text or a language has changed: the shown translation no longer belongs to the text.
  function changed() {
    const length = [...ui.text.value].length;
    const excess = length - settings.charLimit;
    ui.mirror.textContent = `${ui.text.value}\n`;
    ui.count.textContent = excess > 0 ? `${excess.toLocaleString("en")} characters too many`
      : length > 0 ? `${length.toLocaleString("en")} of ${settings.charLimit.toLocaleString("en")}` : "";
    ui.count.classList.toggle("is-too-long", excess > 0);
    ui.clear.hidden = length === 0;
    ui.text.lang = ui.source.value === AUTO ? "" : ui.source.value;
    ui.swap.disabled = !canSwap();
    ui.translate.disabled = !ui.text.value.trim() || excess > 0;
    const isStale = state.translations.length > 0
      && (ui.text.value !== state.text || ui.target.value !== state.target || ![AUTO, state.source].includes(ui.source.value));
    ui.output.classList.toggle("is-stale", isStale);
    if (isStale) setStatus("");
    if (length === 0) reset();
  }

  function reset() {
    state.running?.abort();
    Object.assign(state, { running: null, text: "", translations: [] });
    const empty = Object.assign(document.createElement("span"), { className: "quiet", textContent: "The translation appears here" });
    ui.output.replaceChildren(empty);
    ui.output.classList.remove("is-stale");
    ui.output.tabIndex = -1;
    for (const name of ["error", "note", "copy", "others"]) ui[name].hidden = true;
    setBusy(false);
    setStatus("");
  }

  async function translate() {
    if (ui.translate.disabled) return;
    state.running?.abort();
    const running = (state.running = new AbortController());
    const [text, source, target] = [ui.text.value, ui.source.value, ui.target.value];
    ui.error.hidden = true;
    setBusy(true);
    setStatus("Translating…");
    try {
      const found = await post("translate", { q: text, source, target, alternatives: ALTERNATIVES, quality: true }, running.signal);
      const detected = found.detectedLanguage?.language;
      Object.assign(state, { text, source: detected ?? source, target });
      setStatus(!detected ? "Translated" : `${detected === target ? "Already in" : "Translated from"} ${names[detected]}`);
      ui.note.hidden = !found.suspicion;
      ui.note.textContent = found.suspicion === "copy" ? "The translation is a copy of the text."
        : "The translation repeats words. Check it before use.";
      show([found.translatedText, ...found.alternatives], found.quality);
      changed();
    } catch (error) {
      if (running.signal.aborted) return;
      setStatus("");
      ui.error.textContent = error.message.charAt(0).toUpperCase() + error.message.slice(1);
      ui.error.hidden = false;
      if (error.status === 403) ui.key.focus();
    } finally {
      if (state.running === running) {
        state.running = null;
        setBusy(false);
      }
    }
  }

  // Shows the first of some translations, and the others below; lines that need a look are shaded.
  function show(translations, quality = []) {
    state.translations = translations;
    ui.output.replaceChildren(...translations[0].split("\n").flatMap((line, number) => {
      const { advice } = quality[number] ?? {};
      const shown = Object.assign(document.createElement("span"), { className: advice ? `is-${advice}` : "", textContent: line });
      if (advice && advice !== "use") {
        const expected = quality[number].quality;
        shown.title = expected === null ? "Unlike the text that this model was checked with" : `Expected quality ${expected} of 100`;
      }
      return number ? ["\n", shown] : [shown];
    }));
    ui.output.lang = state.target;
    ui.output.tabIndex = 0;
    ui.copy.hidden = false;
    ui.others.hidden = translations.length < 2;
    ui.alternatives.lang = state.target;
    ui.alternatives.replaceChildren(...translations.slice(1).map((translation) => {
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: translation, dir: "auto" });
      button.addEventListener("click", () => {
        show([translation, ...state.translations.filter((other) => other !== translation)]);
        setStatus("Shown instead");
        ui.output.focus();
      });
      const item = document.createElement("li");
      item.append(button);
      return item;
    }));
  }

  function canSwap() {
    const source = ui.source.value === AUTO ? state.source : ui.source.value;
    return languages.some(({ code, targets }) => code === ui.target.value && targets.includes(source));
  }

  function swap() {
    if (!canSwap()) return;
    const [source, target] = [ui.source.value === AUTO ? state.source : ui.source.value, ui.target.value];
    const isShown = state.translations.length > 0 && !ui.output.classList.contains("is-stale");
    if (isShown) ui.text.value = state.translations[0];
    ui.source.value = target;
    fillTargets(source);
    changed();
    if (isShown) translate();
  }

  async function copy() {
    try {
      await navigator.clipboard.writeText(state.translations[0]);
    } catch { // browsers have no clipboard without HTTPS
      const area = Object.assign(document.createElement("textarea"), { value: state.translations[0] });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      ui.copy.focus();
    }
    setStatus("Copied");
  }

  async function post(path, fields, signal) {
    const body = JSON.stringify(settings.keyRequired ? { ...fields, api_key: ui.key.value } : fields);
    let response;
    try {
      response = await fetch(path, { method: "POST", headers: { "content-type": "application/json" }, body, signal });
    } catch (error) {
      throw signal?.aborted ? error : new Error("The server does not respond. Try again in a moment.");
    }
    const value = await response.json().catch(() => ({ error: `The server responded with status ${response.status}.` }));
    if (!response.ok) throw Object.assign(new Error(value.error), { status: response.status });
    return value;
  }

  function fill(select, codes) {
    select.replaceChildren(...codes.map((code) => new Option(code === AUTO ? "Detect language" : names[code], code)));
  }

  function setBusy(isBusy) {
    ui.output.setAttribute("aria-busy", String(isBusy));
  }

  function setStatus(text) {
    ui.status.textContent = text;
  }
})();
