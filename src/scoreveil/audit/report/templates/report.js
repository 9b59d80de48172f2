"use strict";
document.documentElement.classList.add("js");
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows].at(-1).cells;
  [...headings].forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
      const rows = [...body.rows];
      const numbers = rows.every((row) => key(row) === "" || Number.isFinite(+key(row)));
      rows.sort((a, b) => {
        const [x, y] = [key(a), key(b)];
        if (x === "" || y === "") return (x === "") - (y === ""); // what is missing comes last, either way
        const order = numbers ? x - y : x.localeCompare(y, "en", { numeric: true });
        return down ? -order : order;
      });
      body.append(...rows);
    });
  });
}
let opened = [];
addEventListener("beforeprint", () => { opened = [...document.querySelectorAll("details:not(#every):not([open])")]; opened.forEach((d) => { d.open = true; }); });
addEventListener("afterprint", () => opened.forEach((d) => { d.open = false; }));
