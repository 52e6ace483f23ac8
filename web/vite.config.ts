import { defineConfig } from "vite";

// The page is built into the Python package, which serves it; the build is not committed.
export default defineConfig({
  base: "./",
  build: { outDir: "../src/gpuscope/server/page", emptyOutDir: true, target: "es2022", assetsInlineLimit: 0 },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  server: {
    // panels.json lives in the Python package, outside of this folder.
    fs: { allow: [".."] },
    proxy: { "/api": process.env["GPUSCOPE_URL"] ?? "http://127.0.0.1:9470" },
  },
});
