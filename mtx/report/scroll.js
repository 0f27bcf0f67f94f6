// A box of class `scroll` that shows only a part of what it holds gets a class for each edge behind which there is more.
(() => {
  "use strict";
  const mark = (box) => {
    const [right, below] = [box.scrollWidth - box.clientWidth, box.scrollHeight - box.clientHeight];
    const isMore = { left: box.scrollLeft > 2, right: box.scrollLeft < right - 2, above: box.scrollTop > 2, below: box.scrollTop < below - 2 };
    for (const [side, value] of Object.entries(isMore)) box.classList.toggle(`more-${side}`, value);
    if (right > 2 && !box.matches("[role]")) box.tabIndex = 0; // so that arrow keys can scroll it
  };
  const sizes = new ResizeObserver((entries) => entries.forEach(({ target }) => mark(target.closest(".scroll"))));
  document.querySelectorAll(".scroll").forEach((box) => {
    box.addEventListener("scroll", () => mark(box), { passive: true });
    [box, ...box.children].forEach((each) => sizes.observe(each));
  });
})();
