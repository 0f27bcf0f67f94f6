// The tabs of the report, the values under the pointer, and the filters of sentences. Without
// it all parts are shown in order.
(() => {
  "use strict";
  document.documentElement.classList.add("scripted");

  // Tabs, one for each part. The address remembers the selected one, for reloads and links.
  const parts = [...document.querySelectorAll(".part")];
  const list = document.querySelector(".tabs");
  const nameOf = (part) => part.id.replace("part-", "");
  const tabs = parts.map((part) => {
    const tab = document.createElement("button");
    tab.type = "button";
    tab.id = part.id.replace("part-", "tab-");
    tab.textContent = part.dataset.name;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", part.id);
    part.setAttribute("role", "tabpanel");
    part.setAttribute("aria-labelledby", tab.id);
    tab.addEventListener("click", () => select(nameOf(part)));
    list.append(tab);
    return tab;
  });

  function select(name) { // ids of elements begin with "part-", so that the browser does not scroll to one
    const chosen = parts.some((part) => nameOf(part) === name) ? name : nameOf(parts[0]);
    parts.forEach((part, number) => {
      const isChosen = nameOf(part) === chosen;
      part.hidden = !isChosen;
      tabs[number].setAttribute("aria-selected", String(isChosen));
      tabs[number].tabIndex = isChosen ? 0 : -1;
      if (isChosen) list.scrollLeft = tabs[number].offsetLeft - (list.clientWidth - tabs[number].offsetWidth) / 2;
    });
    if (location.hash !== `#${chosen}`) history.replaceState(null, "", `#${chosen}`);
    window.dispatchEvent(new Event("resize")); // the selected part has a size now
    window.scrollTo(0, 0);
  }

  const isPlain = (event) => !(event.altKey || event.ctrlKey || event.metaKey); // other combinations belong to the browser

  list.addEventListener("keydown", (event) => {
    if (!isPlain(event)) return;
    const here = tabs.indexOf(document.activeElement);
    const last = tabs.length - 1;
    const to = { ArrowRight: here < last ? here + 1 : 0, ArrowLeft: here > 0 ? here - 1 : last, Home: 0, End: last }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    tabs[to].focus();
    select(nameOf(parts[to]));
  });
  window.addEventListener("hashchange", () => select(location.hash.slice(1)));
  list.hidden = false;
  select(location.hash.slice(1));

  // The values under the pointer, or at the point selected with the arrow keys.
  const number = (value) => Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));

  document.querySelectorAll(".chart").forEach((chart) => {
    const data = JSON.parse(chart.querySelector('script[type="application/json"]').textContent);
    const plot = chart.querySelector(".plot");
    const cursor = chart.querySelector(".cursor");
    const readout = chart.querySelector(".readout");
    const longest = data.lines.reduce((a, b) => (b.steps.length > a.steps.length ? b : a));
    let place = -1;

    const nearest = (line, x) => {
      let best = 0;
      const xs = line.steps;
      for (let i = 1; i < xs.length; i += 1) if (Math.abs(xs[i] - x) < Math.abs(xs[best] - x)) best = i;
      return best;
    };

    const show = (at) => {
      place = Math.max(0, Math.min(longest.steps.length - 1, at));
      const step = longest.steps[place];
      cursor.style.left = `${100 * (data.start + (step / data.last) * (data.end - data.start))}%`;
      cursor.hidden = false;
      const hours = longest.hours[place];
      const values = data.lines.map((line) => {
        const near = nearest(line, step);
        const where = line.steps[near] === step ? "" : ` (step ${number(line.steps[near])})`;
        return `${line.name} ${number(line.values[near])}${where}`;
      });
      const time = hours < 1 ? `${(60 * hours).toFixed(1)} min` : `${hours.toFixed(2)} h`;
      readout.textContent = `step ${number(step)}, ${time}: ${values.join(", ")}`;
    };

    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      const share = ((event.clientX - box.left) / box.width - data.start) / (data.end - data.start);
      show(nearest(longest, share * data.last));
    });
    chart.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by === undefined || !isPlain(event)) return;
      event.preventDefault();
      show(place + by);
    });
    const clear = () => { place = -1; cursor.hidden = true; readout.textContent = "\u00a0"; };
    plot.addEventListener("pointerleave", clear);
    chart.addEventListener("blur", clear);
  });

  // The filters of sentences, one form for each test set. The page holds all sentences; a few of them are shown at a time.
  const AT_A_TIME = 20;
  const ORDERS = {
    gap: (a, b) => spread(b) - spread(a),
    second: (a, b) => b.chrf[1] - b.chrf[0] - (a.chrf[1] - a.chrf[0]),
    first: (a, b) => b.chrf[0] - b.chrf[1] - (a.chrf[0] - a.chrf[1]),
    worst: (a, b) => a.chrf[0] - b.chrf[0],
    best: (a, b) => b.chrf[0] - a.chrf[0],
    longest: (a, b) => b.length - a.length,
    line: () => 0,
  };
  const spread = ({ chrf }) => Math.max(...chrf) - Math.min(...chrf);

  document.querySelectorAll(".filters").forEach((form) => {
    const list = form.nextElementSibling;
    const more = list.nextElementSibling;
    const sentences = [...list.children].map((element) => {
      const [src, ref, ...hyps] = [...element.querySelectorAll("bdi[lang]")].map((each) => each.textContent);
      return {
        element,
        line: Number(element.dataset.line),
        length: Number(element.dataset.length),
        chrf: element.dataset.chrf.split(" ").map(Number),
        text: [src, ref, ...hyps].join("\n").toLocaleLowerCase(),
        differs: new Set(hyps.length > 1 ? hyps : [ref, ...hyps]).size > 1,
      };
    }).sort((a, b) => a.line - b.line);
    let room = AT_A_TIME;

    const update = () => {
      const { order, lengths, text, differing } = form.elements;
      const [shortest, longest] = lengths.value.split(" ").map((each) => Number(each) || Infinity);
      const words = text.value.toLocaleLowerCase().split(/\s+/);
      const selected = sentences.filter((each) =>
        (!lengths.value || (Math.max(each.length, 1) >= shortest && each.length <= longest)) &&
        (!differing.checked || each.differs) && words.every((word) => each.text.includes(word)));
      selected.sort(ORDERS[order.value]);
      list.replaceChildren(...selected.map((each, at) => Object.assign(each.element, { hidden: at >= room })));
      more.hidden = selected.length <= room;
      form.querySelector("output").textContent = `${Math.min(room, selected.length)} of ${selected.length} shown`;
    };
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("input", () => {
      room = AT_A_TIME;
      update();
    });
    more.addEventListener("click", () => {
      const before = room;
      room += AT_A_TIME;
      update();
      list.children[before].tabIndex = -1;
      list.children[before].focus({ preventScroll: true }); // the button may be gone
    });
    form.hidden = false;
    update();
  });
})();
