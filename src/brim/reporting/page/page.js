"use strict";
(() => {
  const tip = document.getElementById("tip");
  const marks = (chart) =>
    [...chart.querySelectorAll('[role="graphics-symbol"][aria-label]')].filter((mark) => !mark.closest(".role-axis, .role-legend"));

  // The theme: as the system says, then light, then dark.
  const themes = ["system", "light", "dark"];
  const button = document.getElementById("theme");
  let theme = 0;
  const show = () => {
    button.textContent = `Theme: ${themes[theme]}`;
    if (theme) document.documentElement.dataset.theme = themes[theme];
    else delete document.documentElement.dataset.theme;
  };
  button.addEventListener("click", () => { theme = (theme + 1) % themes.length; show(); });

  // A mark's numbers beside it, by pointer and by arrow keys.
  let chosen = null;
  const choose = (mark) => {
    chosen?.classList.remove("chosen");
    chosen = mark;
    tip.hidden = !mark;
    if (!mark) return;
    mark.classList.add("chosen");
    tip.textContent = mark.getAttribute("aria-label");
    const place = mark.getBoundingClientRect();
    const x = place.left + place.width / 2 - tip.offsetWidth / 2;
    const above = place.top - tip.offsetHeight - 10;
    tip.style.left = `${Math.max(6, Math.min(x, innerWidth - tip.offsetWidth - 6))}px`;
    tip.style.top = `${above > 6 ? above : Math.min(place.bottom + 10, innerHeight - tip.offsetHeight - 6)}px`;
  };
  for (const chart of document.querySelectorAll(".chart")) {
    const all = marks(chart);
    chart.addEventListener("pointerover", (event) => choose(all.includes(event.target) ? event.target : null));
    chart.addEventListener("pointerleave", () => choose(null));
    chart.addEventListener("blur", () => choose(null));
    chart.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") choose(null);
      if (!step || !all.length) return;
      event.preventDefault();
      const now = all.indexOf(chosen);
      choose(all[now < 0 ? (step > 0 ? 0 : all.length - 1) : (now + step + all.length) % all.length]);
    });
  }
  addEventListener("scroll", () => choose(null), { passive: true, capture: true });

  // A table that is wider than its place says so; one that is folded away gets its width when it is opened.
  const sized = new ResizeObserver((entries) => {
    for (const { target } of entries) target.closest(".table").classList.toggle("is-wide", target.scrollWidth > target.clientWidth);
  });
  for (const place of document.querySelectorAll(".scroll")) sized.observe(place);

  // Copying: a table as tab-separated text, which spreadsheets take.
  const text = (source) => {
    if (source.dataset.copy === "text") return source.parentElement.querySelector("pre").textContent;
    const rows = source.closest(".table").querySelectorAll("tr");
    return [...rows].map((row) => [...row.cells].map((cell) => cell.textContent).join("\t")).join("\n") + "\n";
  };
  const copyByHand = (value) => {
    // A page from plain http has no clipboard of its own.
    const area = document.createElement("textarea");
    area.value = value;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  document.addEventListener("click", async (event) => {
    const source = event.target.closest?.("button.copy");
    if (!source) return;
    const before = source.dataset.name ??= source.textContent;
    const value = text(source);
    let done = true;
    try { await navigator.clipboard.writeText(value); } catch { done = copyByHand(value); }
    source.textContent = done ? "Copied" : "Select it and press Ctrl+C";
    setTimeout(() => { source.textContent = before; }, 2000);
  });
})();
