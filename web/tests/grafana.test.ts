import { expect, it } from "vitest";
import { grafanaAddress } from "../src/grafana";

const HOUR = { from: "now-1h", to: "now" };

it("opens the same GPU and the same time in Grafana", () => {
  const address = grafanaAddress("https://grafana.example.org", "gpu", { uuid: "GPU-1 &b", instance: "n:9400" }, HOUR);
  const url = new URL(address ?? "");
  expect(url.pathname).toBe("/d/gpuscope-gpu");
  expect(Object.fromEntries(url.searchParams)).toEqual({
    from: "now-1h",
    to: "now",
    "var-uuid": "GPU-1 &b",
    "var-instance": "n:9400",
  });
});

it("gives absolute times in milliseconds", () => {
  const address = grafanaAddress("http://g/sub", "node", {}, { from: "1790000000", to: "1790003600.5" });
  expect(address).toBe("http://g/sub/d/gpuscope-node?from=1790000000000&to=1790003600500");
});

it("has no link without a Grafana", () => {
  expect(grafanaAddress(undefined, "fleet", {}, HOUR)).toBeUndefined();
});
