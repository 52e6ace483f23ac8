import { fileURLToPath } from "node:url";
import { defineConfig, runnerImport, type Plugin } from "vite";
import type { Language, Words } from "./src/i18n";

const TEXT_KEYS = "virtual:text-keys";
/** By keys that the page otherwise does not have: the server sends these texts in English. */
const TABLES = ["findings", "steps", "reports"] as const;

/**
 * Writes the texts of a language as lists. Every language has the same keys (types and tests insist), so the keys are written
 * once: those of the words are in the English ones, those of panels in the panels. They are a third of a language's file.
 */
function packTexts(): Plugin {
  const file = (name: string): string => fileURLToPath(new URL(`src/${name}.ts`, import.meta.url));
  const read = async (path: string): Promise<Language> =>
    (await runnerImport<{ language: Language }>(path)).module.language;
  const keysOf = async (): Promise<string[][]> => {
    const korean = await read(file("i18n/ko"));
    return TABLES.map((table) => Object.keys(korean[table]));
  };
  return {
    name: "pack-texts",
    apply: "build",
    resolveId: (id) => (id === TEXT_KEYS ? `\0${id}` : undefined),
    async load(id) {
      if (id === `\0${TEXT_KEYS}`) return `export default ${JSON.stringify(await keysOf())};`;
      if (!/\/src\/i18n\/(ko|ja|zh)\.ts$/.test(id)) return undefined;
      const { words, panels, ...tables } = await read(id);
      const english = (await runnerImport<{ en: Words }>(file("i18n/en"))).module.en;
      const { PANELS } = (await runnerImport<typeof import("./src/panels")>(file("panels"))).module;
      const lists = [
        Object.keys(english).map((key) => words[key as keyof Words]),
        PANELS.map(({ id: panel }) => panels[panel]?.title),
        PANELS.map(({ id: panel }) => panels[panel]?.help),
        ...(await keysOf()).map((keys, at) =>
          keys.map((key) => (tables[TABLES[at] ?? "findings"] as Record<string, string>)[key]),
        ),
      ];
      return `import keys from "${TEXT_KEYS}";
        import { PANELS } from "../panels";
        import { en } from "./en";
        const [words, titles, helps, ...texts] = ${JSON.stringify(lists)};
        const join = (keys, texts) => Object.fromEntries(keys.map((key, at) => [key, texts[at]]));
        const [findings, steps, reports] = keys.map((key, at) => join(key, texts[at]));
        const panels = join(PANELS.map((one) => one.id), titles.map((title, at) => ({ title, help: helps[at] })));
        export const language = { findings, steps, reports, panels, words: join(Object.keys(en), words) };`;
    },
  };
}

// The page is built into the Python package, which serves it; the build is not committed.
export default defineConfig({
  base: "./",
  plugins: [packTexts()],
  build: {
    outDir: "../src/gpuscope/serve/page",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
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
            {
              name: "core",
              test: /preact|src\/(?!i18n\/|main\.|.*\.css)|src\/i18n\/(index|en|views\.en)\.ts|panels\.json/,
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
