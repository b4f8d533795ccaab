"use strict";
// Tables sort by a click on a heading, or by Enter or the space bar on it: up, down, up. Without this file all else works.
(() => {
  const words = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
  const leading = /^[+\-−]?[0-9][0-9,]*(\.[0-9]+)?(e[+\-]?[0-9]+)?/i;

  // A cell's number, as measured where it is recorded, else as its text begins ("1.05 to 1.12"); NaN: there is none.
  const numberOf = (cell) => {
    const value = cell.dataset.value;
    if (value !== undefined) {
      return { inf: Infinity, "-inf": -Infinity }[value] ?? Number(value);
    }
    const found = leading.exec(cell.textContent.trim());
    return found ? Number(found[0].replaceAll(",", "").replace("−", "-")) : NaN;
  };

  const keyOf = (cell) => {
    const text = cell.textContent.trim();
    const number = numberOf(cell);
    const missing = text === "" || cell.dataset.value === "nan";
    return { text, number, kind: missing ? 2 : Number.isNaN(number) ? 1 : 0 };
  };

  // Numbers, then words; what is missing comes last, whichever the direction.
  const compare = (one, other, direction) => {
    if (one.kind === 2 || other.kind === 2) {
      return one.kind - other.kind;
    }
    let order = one.kind - other.kind;
    if (order === 0 && one.kind === 0 && one.number !== other.number) {
      order = one.number < other.number ? -1 : 1;
    }
    return direction * (order || words.compare(one.text, other.text));
  };

  const sort = (table, heading) => {
    const column = heading.cellIndex;
    const direction = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of table.tHead.rows[0].cells) {
      other.removeAttribute("aria-sort");
    }
    heading.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row) => ({ row, key: keyOf(row.cells[column]) }));
    rows.sort((one, other) => compare(one.key, other.key, direction));
    body.append(...rows.map(({ row }) => row));
  };

  for (const table of document.querySelectorAll("table")) {
    for (const heading of table.tHead.rows[0].cells) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      button.addEventListener("click", () => sort(table, heading));
      heading.append(button);
    }
  }
})();
