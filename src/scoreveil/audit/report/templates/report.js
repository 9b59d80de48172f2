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
// a sign at what is wider than its box, for as long as there is more to the right
const boxes = [...document.querySelectorAll(".box")];
const signs = () => boxes.forEach((box) => {
  const left = box.scrollWidth - box.clientWidth;
  box.classList.toggle("wide", left > 1);
  box.classList.toggle("ended", box.scrollLeft >= left - 1);
  if (box.previousElementSibling?.classList.contains("more")) box.previousElementSibling.hidden = left <= 1;
});
boxes.forEach((box) => box.addEventListener("scroll", signs, { passive: true }));
document.querySelectorAll("details").forEach((d) => d.addEventListener("toggle", signs));
addEventListener("resize", signs);
signs();
let opened = [];
addEventListener("beforeprint", () => { opened = [...document.querySelectorAll("details:not(#every):not([open])")]; opened.forEach((d) => { d.open = true; }); });
addEventListener("afterprint", () => opened.forEach((d) => { d.open = false; }));
