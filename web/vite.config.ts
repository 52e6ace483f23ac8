import { defineConfig } from "vite";

// The page is built into the Python package, which serves it; the build is not committed.
export default defineConfig({
  base: "./",
  build: {
    outDir: "../src/gpuscope/server/page",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    rolldownOptions: {
      output: {
        // The views without charts in one file: ten small ones compress a fifth worse.
        codeSplitting: {
          includeDependenciesRecursively: false,
          groups: [
            {
              name: "tables",
              test: /src\/(views\/(alerts|findings|slurm|job|kubernetes|reports|settings|changes|compare)|parts\/(data-table|problem|add-node|channel-settings|user-settings|rule-table|sent-messages|silence-dialog|reservation-axis|hour-plot|alert-history)|alerts|slurm|kubernetes|reports|changes|csv)\.tsx?$/,
            },
          ],
        },
      },
    },
  },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  server: {
    // panels.json lives in the Python package, outside of this folder.
    fs: { allow: [".."] },
    proxy: { "/api": process.env["GPUSCOPE_URL"] ?? "http://127.0.0.1:9470" },
  },
});
