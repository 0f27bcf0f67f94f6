// The viewer of attention weights, one for every element of class `attention` in the page.
// Pieces come from untrusted models and texts, so they are only ever set as text.
(() => {
  "use strict";

  // For each kind of attention: the pieces of its rows and columns, the labels of the axes, and an explanation.
  const KINDS = {
    cross: {
      rows: "tgt", columns: "src", y: "subword being written", x: "source subword attended to",
      about: "Each row is a subword of the translation. It shows how much each source subword counted when it was written.",
    },
    encoder: {
      rows: "src", columns: "src", y: "source subword", x: "source subword attended to",
      about: "Each row is a source subword. It shows how much each source subword counted when it was read.",
    },
    decoder: {
      rows: "tgt", columns: "inputs", y: "subword being written", x: "earlier subword attended to",
      about: "Each row is a subword of the translation. It shows how much each earlier subword counted when it was " +
        "written. Every translation starts from <pad>.",
    },
  };
  const SMALLEST_WORD = 9; // pixels; smaller cells of the overview have no words next to them
  const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  document.querySelectorAll(".attention").forEach(start);

  function start(root, number) {
    const part = (name) => root.querySelector(`[data-part="${name}"]`);
    const pairs = JSON.parse(root.querySelector("script").textContent);
    const tabs = [...root.querySelectorAll("[role=tab]")];
    // The number after the last head is the average of all heads.
    const state = { pair: 0, kind: "cross", layer: 0, head: 0, isLarge: false, row: null, column: null };
    let scale = colours(root);

    part("panel").id = `attention-${number}`;
    tabs.forEach((tab) => {
      tab.id = `attention-${number}-${tab.dataset.kind}`;
      tab.setAttribute("aria-controls", part("panel").id);
      tab.addEventListener("click", () => change({ kind: tab.dataset.kind }));
      tab.addEventListener("keydown", (event) => moveTab(event, tab));
    });
    fill(part("pair"), pairs.map((pair) => pair.text[0]));
    part("choice").hidden = pairs.length < 2;
    for (const name of ["pair", "layer", "head"]) {
      part(name).addEventListener("change", () => change({ [name]: Number(part(name).value) }));
    }
    part("back").addEventListener("click", back);
    part("save").addEventListener("click", save);
    part("map").addEventListener("keydown", moveCell);
    part("map").addEventListener("focus", () => state.row ?? point(0, 0));
    part("cells").addEventListener("pointermove", pointAt);
    part("cells").addEventListener("pointerdown", pointAt);
    dark.addEventListener("change", () => {
      scale = colours(root);
      draw();
    });
    change({});
    new ResizeObserver(() => fit()).observe(part("panel"));

    function change(changes) {
      Object.assign(state, "pair" in changes || "kind" in changes ? { row: null, column: null } : {}, changes);
      const [layers, heads] = shape();
      state.layer = Math.min(state.layer, layers - 1); // the encoder may have fewer than the decoder
      for (const tab of tabs) {
        const isChosen = tab.dataset.kind === state.kind;
        tab.setAttribute("aria-selected", String(isChosen));
        tab.tabIndex = isChosen ? 0 : -1;
        if (isChosen) part("panel").setAttribute("aria-labelledby", tab.id);
      }
      const [src, tgt] = pairs[state.pair].text;
      part("text").replaceChildren(label(src), " → ", label(tgt));
      part("about").textContent = KINDS[state.kind].about;
      part("hint").textContent = state.isLarge ? "Point at a cell, or use the arrow keys; Escape returns to all maps."
        : "Select a map to enlarge it and read its weights.";
      part("all").hidden = state.isLarge;
      part("large").hidden = !state.isLarge;
      fill(part("layer"), numbered(layers));
      fill(part("head"), [...numbered(heads), "average of heads"]);
      part("layer").value = state.layer;
      part("head").value = state.head;
      draw();
    }

    function draw() {
      if (state.isLarge) drawLarge();
      else drawOverview();
    }

    function drawOverview() {
      const [layers, heads, rows, columns] = shape();
      const buttons = numbered(layers * heads).map((_, index) => {
        const [layer, head] = [Math.floor(index / heads), index % heads];
        const name = `layer ${layer + 1} head ${head + 1}`;
        const button = create("button", { type: "button", className: "attention-small" });
        const canvas = create("canvas");
        canvas.setAttribute("aria-hidden", "true");
        paint(canvas, weights(layer, head), rows, columns, scale);
        button.append(canvas, create("span", { textContent: name }));
        button.addEventListener("click", () => {
          change({ layer, head, isLarge: true });
          part("map").focus({ preventScroll: true });
          part("large").scrollIntoView();
        });
        return button;
      });
      const strip = (axis) => {
        const words = create("div", { className: `attention-words is-${axis}`, ariaHidden: "true" });
        words.append(...tokens(axis).map(label));
        return words;
      };
      const kind = KINDS[state.kind];
      const corner = create("span", { className: "attention-corner", textContent: `${kind.y} ↓` });
      const above = create("span", { className: "attention-above", textContent: `${kind.x} →` });
      const lines = numbered(layers).flatMap((_, layer) => [strip("rows"), ...buttons.slice(layer * heads, (layer + 1) * heads)]);
      const overview = part("overview");
      for (const [name, value] of Object.entries({ heads, rows, columns })) overview.style.setProperty(`--${name}`, value);
      overview.replaceChildren(above, corner, ...numbered(heads).map(() => strip("columns")), ...lines);
      fit();
    }

    // Uses the whole width: sets the size of the words in the overview, or that of the cells in a large map.
    function fit() {
      const [, , rows, columns] = shape();
      if (!state.isLarge) {
        const canvas = part("overview").querySelector("canvas");
        part("overview").classList.remove("is-wordless");
        const cell = Math.min(canvas.clientWidth / columns, canvas.clientHeight / rows);
        part("overview").classList.toggle("is-wordless", cell < SMALLEST_WORD);
        part("overview").style.setProperty("--cell", `${Math.min(cell, 13)}px`);
        return;
      }
      const room = part("scroll").clientWidth - part("rows").offsetWidth - part("y").offsetWidth - 24;
      const height = Math.max(14, Math.min(32, Math.floor(640 / rows)));
      const width = Math.max(14, Math.min(96, Math.floor(room / columns)));
      const sizes = { "--cell-x": width, "--cell-y": height, "--label": Math.min(14, width - 2, height - 2) };
      for (const [name, value] of Object.entries(sizes)) part("map").style.setProperty(name, `${value}px`);
    }

    function drawLarge() {
      const [, , rows, columns] = shape();
      const kind = KINDS[state.kind];
      part("map").setAttribute("aria-label", `${title()}: rows are ${kind.y}, columns ${kind.x}; arrow keys move`);
      part("x").textContent = `${kind.x} →`;
      part("y").textContent = `← ${kind.y}`;
      part("rows").replaceChildren(...tokens("rows").map(label));
      part("columns").replaceChildren(...tokens("columns").map(label));
      paint(part("canvas"), weights(state.layer, state.head), rows, columns, scale);
      part("canvas").style.width = `calc(${columns} * var(--cell-x))`;
      part("canvas").style.height = `calc(${rows} * var(--cell-y))`;
      fit();
      if (state.row === null) unpoint();
      else point(state.row, state.column);
    }

    function unpoint() {
      part("row").hidden = part("column").hidden = part("cell").hidden = true;
      part("status").textContent = title();
    }

    function point(row, column) {
      const [, , rows, columns] = shape();
      state.row = Math.max(0, Math.min(row, rows - 1));
      state.column = Math.max(0, Math.min(column, columns - 1));
      for (const [axis, index] of [["rows", state.row], ["columns", state.column]]) {
        part(axis).querySelector(".is-current")?.classList.remove("is-current");
        part(axis).children[index].classList.add("is-current");
      }
      part("row").hidden = part("column").hidden = part("cell").hidden = false;
      part("row").style.top = part("cell").style.top = `calc(var(--cell-y) * ${state.row})`;
      part("column").style.left = part("cell").style.left = `calc(var(--cell-x) * ${state.column})`;
      const value = weights(state.layer, state.head)[state.row * columns + state.column];
      const [from, to] = [tokens("rows")[state.row], tokens("columns")[state.column]];
      part("status").replaceChildren(
        "from ‘", label(from), "’ to ‘", label(to), `’: ${value.toFixed(3)}`,
      );
    }

    function pointAt(event) {
      const [, , rows, columns] = shape();
      const box = part("canvas").getBoundingClientRect();
      point(
        Math.floor(((event.clientY - box.top) / box.height) * rows),
        Math.floor(((event.clientX - box.left) / box.width) * columns),
      );
    }

    function moveCell(event) {
      if (event.key === "Escape") back();
      const step = STEPS[event.key];
      if (!step) return;
      event.preventDefault();
      point(state.row + step[0], state.column + step[1]);
      part("rows").children[state.row].scrollIntoView({ block: "nearest", inline: "nearest" });
      part("columns").children[state.column].scrollIntoView({ block: "nearest", inline: "nearest" });
    }

    function moveTab(event, tab) {
      const last = tabs.length - 1;
      const at = tabs.indexOf(tab);
      const next = { ArrowLeft: at ? at - 1 : last, ArrowRight: at < last ? at + 1 : 0, Home: 0, End: last }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      change({ kind: tabs[next].dataset.kind });
      tabs[next].focus();
    }

    function back() {
      const [, heads] = shape();
      const index = state.layer * heads + Math.min(state.head, heads - 1);
      change({ isLarge: false });
      part("overview").querySelectorAll("button")[index].focus();
    }

    // Draws the large map with its subwords on a separate canvas for download.
    function save() {
      const [, , rows, columns] = shape();
      const [cell, margin] = [24, 150];
      const canvas = create("canvas", { width: margin + columns * cell, height: margin + rows * cell });
      const context = canvas.getContext("2d");
      context.fillStyle = "white";
      context.fillRect(0, 0, canvas.width, canvas.height);
      Object.assign(context, { fillStyle: "black", font: "14px sans-serif", imageSmoothingEnabled: false });
      context.drawImage(part("canvas"), margin, margin, columns * cell, rows * cell);
      context.fillText(title(), 8, 18, canvas.width - 16);
      tokens("rows").forEach((token, row) => context.fillText(token, 8, margin + row * cell + 17, margin - 16));
      context.rotate(-Math.PI / 2);
      tokens("columns").forEach((token, at) => context.fillText(token, 8 - margin, margin + at * cell + 17, margin - 40));
      create("a", { href: canvas.toDataURL(), download: "attention.png" }).click();
    }

    function shape() {
      return pairs[state.pair].kinds[state.kind].shape;
    }

    function tokens(axis) {
      return pairs[state.pair][KINDS[state.kind][axis]];
    }

    function title() {
      const [, heads] = shape();
      const head = state.head < heads ? `head ${state.head + 1}` : "average of heads";
      return `${state.kind} attention, layer ${state.layer + 1}, ${head}`;
    }

    // The weights of a head, row by row; the average of all heads if `head` is one above the last.
    function weights(layer, head) {
      const map = pairs[state.pair].kinds[state.kind];
      map.values ??= decoded(map.data);
      const [, heads, rows, columns] = map.shape;
      const size = rows * columns;
      const of = (one) => map.values.subarray((layer * heads + one) * size, (layer * heads + one + 1) * size);
      if (head < heads) return of(head);
      const sum = new Float32Array(size);
      for (let one = 0; one < heads; one += 1) of(one).forEach((value, index) => (sum[index] += value / heads));
      return sum;
    }
  }

  // Decodes base64 of little-endian float32, the byte order of every browser.
  function decoded(data) {
    return new Float32Array(Uint8Array.from(atob(data), (char) => char.charCodeAt(0)).buffer);
  }

  // 256 colours, [256 * 3], interpolated between the four stops that the style sheet sets for each colour scheme.
  function colours(root) {
    const style = getComputedStyle(root);
    const stops = [0, 1, 2, 3].map((stop) => {
      const hex = style.getPropertyValue(`--weight-${stop}`).trim();
      return [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    });
    return Uint8ClampedArray.from({ length: 256 * 3 }, (_, index) => {
      const at = (Math.floor(index / 3) / 255) * 3;
      const low = Math.min(2, Math.floor(at));
      const [from, to] = [stops[low][index % 3], stops[low + 1][index % 3]];
      return from + (to - from) * (at - low);
    });
  }

  // Draws one pixel for each weight; the style sheet enlarges the canvas.
  function paint(canvas, values, rows, columns, scale) {
    canvas.width = columns;
    canvas.height = rows;
    const image = new ImageData(columns, rows);
    const { data } = image;
    values.forEach((value, index) => {
      const colour = Math.round(value * 255) * 3;
      for (let channel = 0; channel < 3; channel += 1) data[index * 4 + channel] = scale[colour + channel];
      data[index * 4 + 3] = 255;
    });
    canvas.getContext("2d").putImageData(image, 0, 0);
  }

  function create(tag, properties) {
    return Object.assign(document.createElement(tag), properties);
  }

  function label(token) {
    return create("bdi", { textContent: token });
  }

  function fill(select, names) {
    select.replaceChildren(...names.map((name, index) => create("option", { value: index, textContent: name })));
  }

  function numbered(count) {
    return Array.from({ length: count }, (_, index) => String(index + 1));
  }
})();
