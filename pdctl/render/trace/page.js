"use strict";
// Everything on the page works without this; it links marks with rows, walks them by arrow keys and copies the fix.
for (const room of document.querySelectorAll("section.room")) {
  const tip = room.querySelector(".tip");
  const marks = Array.from(room.querySelectorAll("a.mark"));
  const light = (mark, on) => {
    const row = document.getElementById(mark.hash.slice(1));
    mark.classList.toggle("lit", on);
    row.classList.toggle("lit", on);
    if (!on || !tip) return;
    const [place, text] = [document.createElement("div"), document.createElement("div")];
    place.className = "place";
    place.textContent = mark.dataset.head;
    text.className = "mono";
    text.textContent = mark.dataset.text;
    tip.replaceChildren(place, text);
  };
  for (const mark of marks) {
    for (const [begin, end] of [["mouseenter", "mouseleave"], ["focus", "blur"]]) {
      mark.addEventListener(begin, () => light(mark, true));
      mark.addEventListener(end, () => light(mark, false));
    }
    const row = document.getElementById(mark.hash.slice(1));
    row.addEventListener("mouseenter", () => mark.classList.add("lit"));
    row.addEventListener("mouseleave", () => mark.classList.remove("lit"));
  }
  const inOrder = marks.slice().sort((a, b) => Number(a.dataset.at) - Number(b.dataset.at));
  room.addEventListener("keydown", (event) => {
    const at = inOrder.indexOf(document.activeElement);
    const way = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (at < 0 || !way) return;
    event.preventDefault();
    inOrder[Math.min(inOrder.length - 1, Math.max(0, at + way))].focus();
  });
  const copy = room.querySelector("button.copy");
  if (copy && navigator.clipboard) {
    copy.hidden = false;
    copy.addEventListener("click", async () => {
      await navigator.clipboard.writeText(room.querySelector(".fix pre").textContent);
      copy.textContent = "Copied";
    });
  }
}
