"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const root = document.documentElement;
  const text = byId("text");
  const overview = byId("overview");
  const [START, END, SCORE, RANK, KEPT, PROTECTED, ROLE] = [0, 1, 2, 3, 4, 5, 6];
  const number = (value) => value.toLocaleString("en");
  const MOST_MATCHES = 2000;

  // Pieces of each chunk: a chunk that is kept in part, or lies across two roles, has several.
  const pieces = data.chunks.map(() => []);
  for (const piece of text.querySelectorAll(".s")) pieces[piece.dataset.c].push(piece);

  let selected = -1;
  let hovered = -1;

  function mark(chunk, name, on) {
    for (const piece of pieces[chunk] || []) piece.classList.toggle(name, on);
  }

  function state(chunk) {
    const c = data.chunks[chunk];
    if (c[KEPT] === c[END] - c[START]) return "kept";
    return c[KEPT] ? `${number(c[KEPT])} tokens kept` : "dropped";
  }

  function summary(chunk) {
    const c = data.chunks[chunk];
    const rank = c[RANK] === null ? "" : ` · rank ${number(c[RANK])} of ${number(data.chunks.length)}`;
    return `chunk ${number(chunk)} · tokens ${number(c[START])}–${number(c[END] - 1)}${rank} · ${state(chunk)}`;
  }

  function element(name, content, className) {
    const node = document.createElement(name);
    node.textContent = content;
    if (className) node.className = className;
    return node;
  }

  function tokens(chunk) {
    const shown = document.createElement("p");
    const whole = pieces[chunk].map((piece) => piece.textContent).join("");
    if (!data.tokens) {
      shown.textContent = whole;
      return shown;
    }
    let at = 0;
    for (let i = data.chunks[chunk][START]; i < data.chunks[chunk][END]; i++) {
      const length = data.tokens.lengths[i];
      if (length) shown.append(element("span", whole.slice(at, at + length), `t l${data.tokens.levels[i]}`));
      at += length;
    }
    return shown;
  }

  function select(chunk, scroll) {
    if (!data.chunks[chunk]) return;
    mark(selected, "now", false);
    selected = chunk;
    const c = data.chunks[chunk];
    const list = document.createElement("dl");
    const rows = [
      ["index", `${number(chunk)} of ${number(data.chunks.length)}`],
      ["tokens", `${number(c[START])} to ${number(c[END] - 1)}`],
      ["score", c[SCORE] === null ? "none" : `${c[SCORE].toPrecision(4)}, rank ${number(c[RANK])}`],
      ["is", state(chunk) + (c[PROTECTED] ? `, ${number(c[PROTECTED])} tokens protected` : "")],
      ["role", c[ROLE]],
    ];
    if (data.leaders) rows.push(["layer", `${data.leaders[chunk]} scores it highest`]);
    for (const [name, value] of rows) list.append(element("dt", name), element("dd", value));
    byId("detail").replaceChildren(list, tokens(chunk));
    document.querySelector("#inspector .hint").hidden = true;
    if (scroll) show(pieces[chunk][0]);
    mark(chunk, "now", true);
    draw();
  }

  // Unfolds what hides a node, then brings it to the middle of the screen.
  function show(node) {
    if (!node) return;
    const run = node.closest(".drop");
    if (run) run.classList.add("open");
    node.scrollIntoView({ block: "center" });
  }

  /* Views */

  function firstVisible() {
    const top = byId("bar").getBoundingClientRect().bottom;
    const box = text.getBoundingClientRect();
    if (box.top > top) return null;
    for (let y = top + 8; y < innerHeight; y += 16) {
      const hit = document.elementFromPoint(box.left + 60, y);
      const piece = hit && hit.closest("#text .s, #text .drop");
      if (piece) return piece;
    }
    return null;
  }

  for (const input of document.querySelectorAll("input[name=view]")) {
    input.addEventListener("change", () => {
      const anchor = firstVisible();
      const before = anchor && anchor.getBoundingClientRect().top;
      root.dataset.view = input.value;
      for (const run of text.querySelectorAll(".drop.open")) run.classList.remove("open");
      if (anchor) {
        const still = anchor.offsetParent === null ? anchor.closest(".drop") || anchor : anchor;
        scrollBy(0, still.getBoundingClientRect().top - before);
      }
    });
  }
  byId("borders").addEventListener("change", (event) => {
    root.toggleAttribute("data-borders", event.target.checked);
  });

  text.addEventListener("click", (event) => {
    const piece = event.target.closest(".s");
    if (piece && getSelection().isCollapsed) select(Number(piece.dataset.c), false);
    const run = event.target.closest(".drop");
    if (run && !piece) run.classList.add("open");
  });
  text.addEventListener("pointerover", (event) => {
    const piece = event.target.closest(".s");
    const chunk = piece ? Number(piece.dataset.c) : -1;
    if (chunk === hovered) return;
    mark(hovered, "hover", false);
    mark(chunk, "hover", true);
    hovered = chunk;
    byId("readout").textContent = chunk < 0 ? "" : summary(chunk);
  });
  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-go]");
    if (button) select(Number(button.dataset.go), true);
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input, button") || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      byId("query").focus();
    } else if (selected >= 0 && (event.key === "ArrowLeft" || event.key === "ArrowRight")) {
      event.preventDefault();
      select(selected + (event.key === "ArrowLeft" ? -1 : 1), true);
    }
  });

  /* Overview: one column per screen pixel, as tall as the best chunk under it */

  function draw() {
    const scale = devicePixelRatio || 1;
    const width = Math.round(overview.clientWidth * scale);
    const height = Math.round(overview.clientHeight * scale);
    if (!width) return;
    overview.width = width;
    overview.height = height;
    const context = overview.getContext("2d");
    const style = getComputedStyle(root);
    const colour = (name) => style.getPropertyValue(name).trim();
    const kept = `rgb(${colour("--heat")})`;
    const total = data.chunks[data.chunks.length - 1][END];
    const column = Math.max(1, Math.round(scale));
    const tallest = new Map();
    data.chunks.forEach((c, i) => {
      const level = data.levels ? data.levels[i] + 1 : 6;
      const first = Math.floor((c[START] / total) * width / column);
      const last = Math.max(first, Math.ceil((c[END] / total) * width / column) - 1);
      for (let x = first; x <= last; x++) {
        const now = tallest.get(x);
        const isKept = c[KEPT] * 2 > c[END] - c[START];
        if (!now || isKept > now.isKept || (isKept === now.isKept && level > now.level)) tallest.set(x, { level, isKept });
      }
    });
    for (const [x, { level, isKept }] of tallest) {
      const tall = Math.max(2, (level / 10) * (height - 4 * scale));
      context.fillStyle = isKept ? kept : colour("--line");
      context.fillRect(x * column, height - tall, column, tall);
    }
    if (selected >= 0) {
      context.fillStyle = colour("--accent");
      context.fillRect((data.chunks[selected][START] / total) * width - scale, 0, 2 * scale, height);
    }
  }

  overview.addEventListener("click", (event) => {
    const total = data.chunks[data.chunks.length - 1][END];
    const token = ((event.offsetX + 0.5) / overview.clientWidth) * total;
    const chunk = data.chunks.findIndex((c) => c[END] > token);
    select(chunk < 0 ? data.chunks.length - 1 : chunk, true);
  });
  new ResizeObserver(() => {
    root.style.setProperty("--bar-height", `${byId("bar").offsetHeight + 14}px`);
    draw();
  }).observe(byId("bar"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  /* Search: matches may begin in one chunk and end in another */

  let index = null;
  let found = [];
  let current = -1;

  function buildIndex() {
    const nodes = [];
    const starts = [];
    let whole = "";
    const walker = document.createTreeWalker(text, NodeFilter.SHOW_TEXT);
    const parts = [];
    let at = 0;
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      nodes.push(node);
      starts.push(at);
      parts.push(node.data);
      at += node.length;
    }
    whole = parts.join("");
    return { nodes, starts, whole };
  }

  // The text node that holds a character, and the place in it.
  function place(offset) {
    let low = 0;
    let high = index.starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (index.starts[middle] <= offset) low = middle;
      else high = middle - 1;
    }
    return [index.nodes[low], offset - index.starts[low]];
  }

  function range(start, end) {
    const result = new Range();
    result.setStart(...place(start));
    const [node, offset] = place(end - 1);
    result.setEnd(node, offset + 1);
    return result;
  }

  function highlight(name, ranges) {
    if (globalThis.CSS && CSS.highlights) CSS.highlights.set(name, new Highlight(...ranges));
  }

  function search() {
    index = index || buildIndex();
    found = [];
    current = -1;
    const query = byId("query").value;
    if (query) {
      const pattern = new RegExp(query.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&"), "giu");
      for (const match of index.whole.matchAll(pattern)) {
        found.push(range(match.index, match.index + match[0].length));
        if (found.length === MOST_MATCHES) break;
      }
    }
    highlight("found", found);
    highlight("found-now", []);
    go(0);
  }

  function go(step) {
    const count = found.length === MOST_MATCHES ? `${number(MOST_MATCHES)}+` : number(found.length);
    if (!found.length) {
      byId("matches").textContent = byId("query").value ? "none" : "";
      return;
    }
    current = step ? (current + step + found.length) % found.length : 0;
    highlight("found-now", [found[current]]);
    show(found[current].startContainer.parentElement);
    byId("matches").textContent = `${number(current + 1)} of ${count}`;
  }

  let waiting = 0;
  byId("query").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(search, 120);
  });
  byId("query").addEventListener("keydown", (event) => {
    if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
  });
  byId("previous").addEventListener("click", () => go(-1));
  byId("next").addEventListener("click", () => go(1));
})();
