import { fileURLToPath } from "node:url";
import { defineConfig, runnerImport, type Plugin } from "vite";
import type { Language, Words } from "./src/i18n";

/**
 * Writes the words of a language as a list, in the order of the English keys. Every language has the same keys (types and tests
 * insist), and the page always has English: the keys are a third of a language's file.
 */
function packWords(): Plugin {
  const english = fileURLToPath(new URL("src/i18n/en.ts", import.meta.url));
  return {
    name: "pack-words",
    apply: "build",
    async load(id) {
      if (!/\/src\/i18n\/(ko|ja|zh)\.ts$/.test(id)) return undefined;
      const keys = Object.keys((await runnerImport<{ en: Words }>(english)).module.en) as (keyof Words)[];
      const { words, ...rest } = (await runnerImport<{ language: Language }>(id)).module.language;
      const list = JSON.stringify(keys.map((key) => words[key]));
      return `import { en } from "./en";
        const words = ${list};
        export const language = {
          ...${JSON.stringify(rest)},
          words: Object.fromEntries(Object.keys(en).map((key, at) => [key, words[at]])),
        };`;
    },
  };
}

// The page is built into the Python package, which serves it; the build is not committed.
export default defineConfig({
  base: "./",
  plugins: [packWords()],
  build: {
    outDir: "../src/gpuscope/server/page",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    rolldownOptions: {
      output: {
        // Three files instead of twenty, because small ones compress a fifth worse: what every reader needs, the charts
        // with the views that draw them, and the views made of tables.
        codeSplitting: {
          includeDependenciesRecursively: false,
          groups: [
            {
              name: "charts",
              test: /uPlot\.esm|src\/(charts\/(plot|rows)|views\/(gpu|node|explore)|parts\/(chart-body|panel|panel-grid|few-gpus|heat-map|query-graph|promql-box|facts|grafana-link)\.|promql)/,
              priority: 2,
            },
            {
              name: "tables",
              test: /src\/(views\/(sessions|alerts|findings|slurm|job|kubernetes|reports|settings|changes|compare)|parts\/(data-table|problem|add-node|channel-settings|user-settings|rule-table|sent-messages|silence-dialog|reservation-axis|hour-plot|alert-history|slurm-\w+)|alerts|slurm|kubernetes|reports|changes)[./-]/,
              priority: 1,
            },
            { name: "core", test: /preact|src\/(?!i18n\/|main\.|.*\.css)|src\/i18n\/(index|en|views\.en)\.ts|panels\.json/ },
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
