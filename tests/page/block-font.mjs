// A font in which every character is the same box and a space is empty. The goldens are drawn with it, since a machine with other
// fonts breaks lines elsewhere and would need goldens of its own. Out: an OpenType file, built here as bytes.

const UNITS = 1000;
const ADVANCE = 540;
const BOX = { left: 60, right: 480, bottom: 0, top: 560 };
const ASCENT = 930;
const DESCENT = 240;
const GLYPH = { box: 1, space: 2 };
const GLYPHS = 3;

const u16 = (...values) =>
  values.flatMap((one) => [(one >> 8) & 255, one & 255]);
const u32 = (...values) =>
  values.flatMap((one) => u16(one >>> 16, one & 65535));
const text = (value) => [...value].map((one) => one.charCodeAt(0));

const OUTLINE = [
  ...u16(1, BOX.left, BOX.bottom, BOX.right, BOX.top, 3, 0),
  ...[1, 1, 1, 1], // four points on the curve; their coordinates follow as differences
  ...u16(BOX.left, 0, BOX.right - BOX.left, 0),
  ...u16(BOX.bottom, BOX.top - BOX.bottom, 0, BOX.bottom - BOX.top),
];

/** Format 13: all characters of a group have one glyph. */
function characterMap() {
  const groups = [
    [0x20, 0x20, GLYPH.space],
    [0x21, 0x9f, GLYPH.box],
    [0xa0, 0xa0, GLYPH.space],
    [0xa1, 0x1ffff, GLYPH.box],
  ];
  const length = 16 + 12 * groups.length;
  return [
    ...u16(0, 1, 3, 10),
    ...u32(12),
    ...u16(13, 0),
    ...u32(length, 0, groups.length),
    ...groups.flatMap((group) => u32(...group)),
  ];
}

function nameTable() {
  const family = text("Blocks").flatMap((one) => [0, one]);
  return [...u16(0, 1, 18, 3, 1, 0x409, 1, family.length, 0), ...family];
}

const TABLES = {
  "OS/2": [
    ...u16(4, ADVANCE, 400, 5, 0),
    ...u16(650, 600, 0, 75, 650, 600, 0, 350, 50, 300, 0),
    ...new Array(10).fill(0),
    ...u32(1, 0, 0, 0),
    ...text("    "),
    ...u16(0x40, 0x20, 0xffff, ASCENT, -DESCENT, 0, ASCENT, DESCENT),
    ...u32(1, 0),
    ...u16(BOX.top, BOX.top, 0, 0x20, 1),
  ],
  cmap: characterMap(),
  glyf: [...OUTLINE, ...OUTLINE],
  head: [
    ...u32(0x00010000, 0x00010000, 0, 0x5f0f3cf5),
    ...u16(3, UNITS),
    ...u32(0, 0, 0, 0),
    ...u16(BOX.left, BOX.bottom, BOX.right, BOX.top, 0, 8, 2, 1, 0),
  ],
  hhea: [
    ...u32(0x00010000),
    ...u16(ASCENT, -DESCENT, 0, ADVANCE, BOX.left, ADVANCE - BOX.right),
    ...u16(BOX.right, 1, 0, 0, 0, 0, 0, 0, 0, GLYPHS),
  ],
  hmtx: u16(ADVANCE, BOX.left, ADVANCE, BOX.left, ADVANCE, 0),
  loca: u32(0, OUTLINE.length, 2 * OUTLINE.length, 2 * OUTLINE.length),
  maxp: [
    ...u32(0x00010000),
    ...u16(GLYPHS, 4, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0),
  ],
  name: nameTable(),
  post: [...u32(0x00030000, 0), ...u16(0, 0), ...u32(0, 0, 0, 0, 0)],
};

const padded = (bytes) => [...bytes, ...new Array(-bytes.length & 3).fill(0)];

function checksum(bytes) {
  const all = Buffer.from(padded(bytes));
  let sum = 0;
  for (let at = 0; at < all.length; at += 4)
    sum = (sum + all.readUInt32BE(at)) >>> 0;
  return sum;
}

export function blockFont() {
  const names = Object.keys(TABLES);
  let offset = 12 + 16 * names.length;
  const places = names.flatMap((name) => {
    const place = [
      ...text(name),
      ...u32(checksum(TABLES[name]), offset, TABLES[name].length),
    ];
    offset += padded(TABLES[name]).length;
    return place;
  });
  const search = 2 ** Math.floor(Math.log2(names.length));
  return Buffer.from([
    ...u32(0x00010000),
    ...u16(
      names.length,
      16 * search,
      Math.log2(search),
      16 * (names.length - search),
    ),
    ...places,
    ...names.flatMap((name) => padded(TABLES[name])),
  ]);
}
