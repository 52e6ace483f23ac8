// Pictures of views, small enough to keep: scaled down 4:1, at most 256 colours, written and read as palette PNG. They are
// compared in blocks, so that another Chromium's smoothing of edges passes, and a missing panel, a clipped cell or a wrong colour
// does not. A picture is { width, height, pixels }, with three bytes for each pixel.
import { deflateSync, inflateSync } from "node:zlib";

export const SCALE = 4;
/** In pixels of the small picture: 16 on the screen. */
const BLOCK = 16 / SCALE;
/** How far a block may have moved: 4 px on the screen. */
const MAX_SHIFT = 1;
/** Between the mean colours of two blocks, in one channel of 255. */
const MAX_DIFFERENCE = 20;
const COLOUR_STEP = 8;
const SIGNATURE = Buffer.from([137, 80, 78, 71, 13, 10, 26, 10]);

/** A screenshot scaled down: each pixel is the mean of 4×4. Chromium decodes it; `page` shows anything. */
export async function scaleDown(page, screenshot) {
  const url = `data:image/png;base64,${screenshot.toString("base64")}`;
  const { width, height, text } = await page.evaluate(
    async ([source, scale]) => {
      const image = new Image();
      image.src = source;
      await image.decode();
      const { naturalWidth, naturalHeight } = image;
      const canvas = new OffscreenCanvas(naturalWidth, naturalHeight);
      const context = canvas.getContext("2d");
      context.drawImage(image, 0, 0);
      const { data } = context.getImageData(0, 0, naturalWidth, naturalHeight);
      const width = Math.floor(naturalWidth / scale);
      const height = Math.floor(naturalHeight / scale);
      const pixels = new Uint8Array(3 * width * height);
      for (let y = 0; y < height; y += 1)
        for (let x = 0; x < width; x += 1)
          for (let channel = 0; channel < 3; channel += 1) {
            let sum = 0;
            for (let row = y * scale; row < (y + 1) * scale; row += 1)
              for (
                let column = x * scale;
                column < (x + 1) * scale;
                column += 1
              )
                sum += data[4 * (row * naturalWidth + column) + channel];
            pixels[3 * (y * width + x) + channel] = sum / scale ** 2;
          }
      const text = Array.from(pixels, (one) => String.fromCharCode(one));
      return { width, height, text: btoa(text.join("")) };
    },
    [url, SCALE],
  );
  return reduceColours({ width, height, pixels: Buffer.from(text, "base64") });
}

/** At most 256 colours: coarse steps, the frequent ones kept, the others moved to the nearest of them. */
function reduceColours({ width, height, pixels }) {
  const rounded = pixels.map((one) =>
    Math.min(255, Math.round(one / COLOUR_STEP) * COLOUR_STEP),
  );
  const counts = new Map();
  for (let at = 0; at < rounded.length; at += 3) {
    const colour = rounded.readUIntBE(at, 3);
    counts.set(colour, (counts.get(colour) ?? 0) + 1);
  }
  const kept = [...counts.entries()]
    .sort(([left, many], [right, more]) => more - many || left - right)
    .slice(0, 256)
    .map(([colour]) => colour);
  const nearest = new Map(kept.map((colour) => [colour, colour]));
  for (const colour of counts.keys())
    if (!nearest.has(colour)) nearest.set(colour, findNearest(kept, colour));
  for (let at = 0; at < rounded.length; at += 3)
    rounded.writeUIntBE(nearest.get(rounded.readUIntBE(at, 3)), at, 3);
  return { width, height, pixels: rounded };
}

function findNearest(colours, wanted) {
  const distance = (colour) =>
    [16, 8, 0].reduce(
      (sum, shift) =>
        sum + (((colour >> shift) & 255) - ((wanted >> shift) & 255)) ** 2,
      0,
    );
  return colours.reduce((best, one) =>
    distance(one) < distance(best) ? one : best,
  );
}

/** Blocks of `actual` that are found nowhere near their place in `golden`, as { x, y } on the screen. */
export function findDifferences(golden, actual) {
  if (golden.width !== actual.width || golden.height !== actual.height)
    return [{ x: 0, y: 0 }];
  const found = [];
  for (let y = 0; y + BLOCK <= actual.height; y += BLOCK)
    for (let x = 0; x + BLOCK <= actual.width; x += BLOCK)
      if (!isNear(golden, actual, x, y))
        found.push({ x: x * SCALE, y: y * SCALE });
  return found;
}

function isNear(golden, actual, x, y) {
  for (let down = -MAX_SHIFT; down <= MAX_SHIFT; down += 1)
    for (let right = -MAX_SHIFT; right <= MAX_SHIFT; right += 1)
      if (blockDifference(golden, actual, x, y, right, down) <= MAX_DIFFERENCE)
        return true;
  return false;
}

/** Between the mean colours, the largest of the three channels, with the golden's block moved. Nothing lies beyond the edge. */
function blockDifference(golden, actual, x, y, right, down) {
  const { width, height } = golden;
  if (x + right < 0 || x + right + BLOCK > width) return Infinity;
  if (y + down < 0 || y + down + BLOCK > height) return Infinity;
  const sums = [0, 0, 0];
  for (let row = y; row < y + BLOCK; row += 1)
    for (let column = x; column < x + BLOCK; column += 1)
      for (let channel = 0; channel < 3; channel += 1) {
        const there = 3 * ((row + down) * width + column + right) + channel;
        const here = 3 * (row * width + column) + channel;
        sums[channel] += golden.pixels[there] - actual.pixels[here];
      }
  return Math.max(...sums.map(Math.abs)) / BLOCK ** 2;
}

const CRC_TABLE = Array.from({ length: 256 }, (_, start) => {
  let value = start;
  for (let bit = 0; bit < 8; bit += 1)
    value = value & 1 ? 0xedb88320 ^ (value >>> 1) : value >>> 1;
  return value >>> 0;
});

function crc32(bytes) {
  let value = 0xffffffff;
  for (const byte of bytes)
    value = CRC_TABLE[(value ^ byte) & 255] ^ (value >>> 8);
  return (value ^ 0xffffffff) >>> 0;
}

function chunk(type, data) {
  const body = Buffer.concat([Buffer.from(type), data]);
  const ends = Buffer.alloc(8);
  ends.writeUInt32BE(data.length, 0);
  ends.writeUInt32BE(crc32(body), 4);
  return Buffer.concat([ends.subarray(0, 4), body, ends.subarray(4)]);
}

export function encodePng({ width, height, pixels }) {
  const places = new Map();
  const rows = Buffer.alloc(height * (width + 1)); // each row begins with its filter: none
  for (let at = 0; at < width * height; at += 1) {
    const colour = pixels.readUIntBE(3 * at, 3);
    if (!places.has(colour)) places.set(colour, places.size);
    rows[at + Math.floor(at / width) + 1] = places.get(colour);
  }
  const palette = Buffer.alloc(3 * places.size);
  for (const [colour, place] of places)
    palette.writeUIntBE(colour, 3 * place, 3);
  const head = Buffer.from([0, 0, 0, 0, 0, 0, 0, 0, 8, 3, 0, 0, 0]);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  return Buffer.concat([
    SIGNATURE,
    chunk("IHDR", head),
    chunk("PLTE", palette),
    chunk("IDAT", deflateSync(rows, { level: 9 })),
    chunk("IEND", Buffer.alloc(0)),
  ]);
}

/** Reads what `encodePng` wrote; no other PNG. */
export function decodePng(file) {
  const chunks = {};
  for (let at = SIGNATURE.length; at < file.length;) {
    const length = file.readUInt32BE(at);
    const type = file.toString("latin1", at + 4, at + 8);
    chunks[type] = file.subarray(at + 8, at + 8 + length);
    at += length + 12;
  }
  const width = chunks.IHDR.readUInt32BE(0);
  const height = chunks.IHDR.readUInt32BE(4);
  const rows = inflateSync(chunks.IDAT);
  const pixels = Buffer.alloc(3 * width * height);
  for (let at = 0; at < width * height; at += 1) {
    const place = rows[at + Math.floor(at / width) + 1];
    chunks.PLTE.copy(pixels, 3 * at, 3 * place, 3 * place + 3);
  }
  return { width, height, pixels };
}
