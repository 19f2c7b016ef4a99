/* Tables that sort by their heads: ascending, descending, as written. Without a script they are read as written. */
"use strict";
(() => {
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
    const value = cell.dataset.value;
    if (value === undefined) return cell.textContent;
    return value === "" ? null : Number(value);
  }

  document.querySelectorAll(".table table").forEach(sortable);
})();
