/* Tables that sort by their heads (ascending, descending, as written) and can be filtered, values of figures that show
   at once, legends that hide what they name; all by keyboard, too. Without a script the page is read as written. */
"use strict";
(() => {
  const LEAST_ROWS = 8;         // of a table that can be filtered

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    const written = [...body.rows];
    if (written.length < 2) return;
    heads.forEach((head, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const next = now === "ascending" ? "descending" : now === "descending" ? null : "ascending";
        heads.forEach(other => other.removeAttribute("aria-sort"));
        if (next) head.setAttribute("aria-sort", next);
        body.append(...(next ? ordered(written, at, next === "ascending" ? 1 : -1) : written));
      });
    });
  }

  /* Rows by one column: numbers by value, what has none after them, texts as people order them. */
  function ordered(rows, at, way) {
    const keys = new Map(rows.map(row => [row, sortKey(row.cells[at])]));
    return [...rows].sort((one, two) => {
      const a = keys.get(one), b = keys.get(two);
      if (a === null || b === null) return (a === null) - (b === null);
      if (typeof a === "number" && typeof b === "number") return way * (a === b ? 0 : a < b ? -1 : 1);
      return way * String(a).localeCompare(String(b), "en", {numeric: true});
    });
  }

  function sortKey(cell) {
    const value = cell.dataset.value ?? cell.textContent;
    return value === "" ? null : isNaN(value) ? value : Number(value);
  }

  /* Above a long table a field: rows that have all its words stay. */
  function filterable(table) {
    const rows = [...table.tBodies[0].rows], [bar, label, field, count] = ["p", "label", "input", "span"].map(
      name => document.createElement(name));
    if (rows.length < LEAST_ROWS) return;
    bar.className = "filter";
    label.append("Filter rows ", field);
    bar.append(label, " ", count);
    field.type = "search";
    count.setAttribute("role", "status");
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/);
      rows.forEach(row => { row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word)); });
      count.textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length}`;
    });
    table.parentNode.before(bar);
  }

  /* Each value under the pointer, or reached by the arrow keys from its figure, stands in one note beside it. */
  const note = document.createElement("div");
  note.className = "note";
  note.setAttribute("aria-hidden", "true");             // a screen reader reads the mark itself
  document.body.append(note);

  function valued(svg) {
    const marks = [...svg.querySelectorAll("g > title")].map(title => title.parentNode);
    for (const mark of marks) {
      const [title, line] = [mark.querySelector("title"), mark.querySelector('path[style*="fill:none"]')];
      mark.setAttribute("role", "img");
      mark.setAttribute("aria-label", title.textContent);
      mark.setAttribute("tabindex", "-1");
      title.remove();
      if (line) mark.append(Object.assign(line.cloneNode(), {id: ""}));     // as wide as a finger, and not seen
      if (line) mark.lastChild.setAttribute("class", "wide");
      const show = () => {
        const place = mark.getBoundingClientRect(), width = document.documentElement.clientWidth;
        note.textContent = mark.getAttribute("aria-label");
        note.style.left = `${Math.max(0, Math.min(place.x + place.width / 2 + 8, width - note.offsetWidth))}px`;
        note.style.top = `${Math.max(0, place.y - note.offsetHeight - 4)}px`;
      };
      for (const name of ["pointerenter", "focus"]) mark.addEventListener(name, show);
      for (const name of ["pointerleave", "blur"]) mark.addEventListener(name, () => { note.textContent = ""; });
    }
    if (!marks.length) return;
    svg.setAttribute("tabindex", "0");
    svg.addEventListener("keydown", event => {
      const way = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
      if (event.key === "Escape") svg.focus();
      if (!way || event.target.dataset.entry) return;
      event.preventDefault();
      const seen = marks.filter(mark => mark.getClientRects().length), at = seen.indexOf(event.target);
      if (seen.length) seen[at < 0 && way < 0 ? seen.length - 1 : (at + way + seen.length) % seen.length].focus();
    });
  }

  function switchable(svg) {
    svg.setAttribute("role", "group");
    for (const name of new Set([...svg.querySelectorAll("[data-entry]")].map(part => part.dataset.entry))) {
      const parts = [...svg.querySelectorAll(`[data-entry="${name}"]`)];
      const text = parts.find(part => part.querySelector("text"));
      const flip = () => {
        const on = text.getAttribute("aria-checked") === "false";
        text.setAttribute("aria-checked", on);
        svg.querySelectorAll(`[data-series="${name}"]`).forEach(one => { one.style.display = on ? "" : "none"; });
        parts.forEach(part => { part.style.opacity = on ? "" : 0.35; });
      };
      for (const [key, value] of [["role", "checkbox"], ["aria-checked", true], ["tabindex", 0]])
        text.setAttribute(key, value);
      parts.forEach(part => part.addEventListener("click", flip));
      text.addEventListener("keydown", event => {
        if (event.key !== " " && event.key !== "Enter") return;
        event.preventDefault();
        flip();
      });
    }
  }

  document.querySelectorAll(".table table").forEach(table => { sortable(table); filterable(table); });
  document.querySelectorAll("figure svg").forEach(svg => { valued(svg); switchable(svg); });
})();
