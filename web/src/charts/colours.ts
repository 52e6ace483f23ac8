// Colours and font for canvases, read from the style sheet: a canvas does not know custom properties, and light-dark() is only
// worked out on an element.

const NAMES = [
  "ink",
  "ink-soft",
  "line",
  "line-strong",
  "raised",
  "fill",
  "accent",
  "warn-line",
  "crit-line",
  "c1",
  "c2",
  "c3",
  "c4",
  "c5",
  "c6",
  "c7",
  "c8",
] as const;
export type ColourName = (typeof NAMES)[number];
export type Colours = Record<ColourName, string>;

let known: { scheme: string; colours: Colours } | undefined;

/** Read once for each scheme: reading costs a style calculation for every colour. */
export function readColours(): Colours {
  const scheme = `${document.documentElement.dataset["theme"]}/${matchMedia("(prefers-color-scheme: dark)").matches}`;
  if (known?.scheme !== scheme) known = { scheme, colours: probeColours() };
  return known.colours;
}

function probeColours(): Colours {
  const probe = document.body.appendChild(document.createElement("i"));
  const colours = {} as Colours;
  for (const name of NAMES) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return colours;
}

/** The page's font at a size in pixels of the canvas. */
export const canvasFont = (size: number): string => `${size}px ${getComputedStyle(document.body).fontFamily}`;

export const seriesColour = (colours: Colours, place: number): string => colours[`c${(place % 8) + 1}` as ColourName];

export const LIMIT_COLOURS = { notice: "ink-soft", warning: "warn-line", critical: "crit-line" } as const;
