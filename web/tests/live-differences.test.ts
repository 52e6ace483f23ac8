// The events that the server's tests make: applied here, they lead to the server's own pictures.
import { expect, it } from "vitest";
import golden from "../../tests/golden/api/live_stream.json";
import type { LiveDifference, LivePicture, StreamPicture } from "../src/api-types";
import { applyChanges, applyDifference, EventReader } from "../src/live-differences";

const first = golden.first as unknown as StreamPicture;
const differences = golden.differences as unknown as LiveDifference[];
const pictures = golden.pictures as unknown as LivePicture[];

it("leads to the same pictures as on the server", () => {
  let shown = first.picture;
  expect(differences.length).toBe(3);
  differences.forEach((change, place) => {
    shown = applyDifference(first.columns, shown, change);
    expect(shown).toEqual(pictures[place]);
  });
});

it("keeps rows that did not change, and never changes a row that somebody holds", () => {
  const rows = [{ busy: 0.5 }, { busy: 0.25 }, {}];
  const next = applyChanges(rows, { numbers: { busy: { steps: "OP~", far: [7] } } }, { busy: 100 });
  expect(next).toEqual([{ busy: 0.5 }, { busy: 0.26 }, { busy: 0.07 }]);
  expect(next[0]).toBe(rows[0]);
  expect(rows[1]).toEqual({ busy: 0.25 });
});

it("takes a number away that is absent now, and keeps a zero", () => {
  const next = applyChanges(
    [{ busy: 0.5 }, { busy: 0.01 }],
    { numbers: { busy: { steps: "~N", far: [null] } } },
    { busy: 100 },
  );
  expect(next).toEqual([{}, { busy: 0 }]);
});

it("puts added rows at their places and takes removed ones away", () => {
  const rows = ["a", "b", "c", "d"].map((id) => ({ id }));
  const changes = {
    removed: [0, 2],
    added: [
      { at: 1, row: { id: "x" } },
      { at: 3, row: { id: "y" } },
    ],
  };
  expect(applyChanges(rows, changes, {}).map((row) => row.id)).toEqual(["b", "x", "d", "y"]);
});

it("reads events however the network cuts them", () => {
  const text = 'retry: 1000\n\n:\n\nevent: picture\nid: a-1\ndata: {"x":1}\n\nevent: difference\nid: a-2\ndata: {}\n\n';
  for (const size of [1, 7, 30, text.length]) {
    const reader = new EventReader();
    const found = [];
    for (let at = 0; at < text.length; at += size) found.push(...reader.read(text.slice(at, at + size)));
    expect(found).toEqual([
      { name: "picture", id: "a-1", data: '{"x":1}' },
      { name: "difference", id: "a-2", data: "{}" },
    ]);
  }
});
