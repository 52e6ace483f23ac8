import { defineConfig } from "vite";

// The page is built into the Python package, which serves it; the build is not committed.
export default defineConfig({
  base: "./",
  build: { outDir: "../src/gpuscope/server/page", emptyOutDir: true, target: "es2022", assetsInlineLimit: 0 },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  server: { proxy: { "/api": "http://127.0.0.1:9470" } },
});
