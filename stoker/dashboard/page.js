// Draws the charts that the page holds as data, in the colours of the page.
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const font = () => {
    const style = getComputedStyle(document.body);
    return { color: style.color, family: style.fontFamily, size: 12 };
  };
  const options = { responsive: true, displayModeBar: false };
  for (const [place, chart] of Object.entries(charts)) {
    Plotly.newPlot(place, chart.data, { ...chart.layout, font: font() }, options);
  }
  dark.addEventListener("change", () => {
    for (const place of Object.keys(charts)) {
      Plotly.relayout(place, { font: font() });
    }
  });
})();
