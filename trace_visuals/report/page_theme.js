// Colours of the light or dark theme, pictures for download, and the page's contents.

const THEME = {}, DARK = matchMedia("(prefers-color-scheme: dark)");

// Reads the colours that scripts draw with from the style sheet.
function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["paper", "ink", "soft", "faint", "floor", "line", "axis", "loss", "black"]) THEME[name] = style.getPropertyValue(`--${name}`).trim();
}

readTheme();
DARK.addEventListener("change", () => { readTheme(); window.dispatchEvent(new Event("theme")); });

// A button that saves `picture`, a canvas as PNG or an SVG element as SVG, in the colours of the theme.
function pictureButton(picture, title) {
  const button = element("button", { class: "picture", "aria-label": `save picture: ${title}` }, "save picture");
  button.addEventListener("click", async () => {
    const canvas = picture.tagName === "CANVAS", blob = canvas ? await canvasPicture(picture) : svgPicture(picture);
    const link = element("a", { href: URL.createObjectURL(blob), download: `${fileName(title)}.${canvas ? "png" : "svg"}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  return button;
}

function fileName(title) { return title.replace(/[^A-Za-z0-9.]+/g, "-").replace(/^[-.]+|-+$/g, "").slice(0, 80) || "picture"; }

function canvasPicture(canvas) {
  const copy = element("canvas", { width: canvas.width, height: canvas.height }), g = copy.getContext("2d");
  g.fillStyle = THEME.paper;
  g.fillRect(0, 0, copy.width, copy.height);
  g.drawImage(canvas, 0, 0);
  return new Promise((resolve) => { copy.toBlob(resolve, "image/png"); });
}

// The style sheet is not part of the picture, so each shape gets its colours and font as attributes.
function svgPicture(svg) {
  const copy = svg.cloneNode(true), shapes = svg.querySelectorAll("*");
  copy.querySelectorAll("*").forEach((shape, place) => {
    const style = getComputedStyle(shapes[place]);
    for (const name of ["fill", "stroke", "font-family", "font-size", "font-weight"]) shape.setAttribute(name, style.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.prepend(svgElement("rect", { width: "100%", height: "100%", fill: THEME.paper }));
  return new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
}

// Adds a link to each section that has content, then shows the section that the page's address names.
function addContents() {
  const list = document.querySelector("#contents ul");
  for (const section of document.querySelectorAll("main > section:not([hidden])")) {
    const link = element("a", { href: `#${section.id}` }, section.querySelector("h2").textContent);
    list.append(element("li", {}, link));
  }
  document.getElementById("contents").hidden = false;
  const named = [...document.querySelectorAll("main > section")].find((section) => `#${section.id}` === location.hash);
  if (named) named.scrollIntoView();
}
