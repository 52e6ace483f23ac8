// The frame around every view: where one is, how old the numbers are, and what is wrong with the page itself.
import type { FunctionComponent, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { formatDuration } from "./format";
import { LANGUAGES, speak, t, tName, useLanguage, type Key, type LanguageCode } from "./i18n";
import { clockSkew, live, serverNow, type Live, type LivePicture } from "./live";
import { linkTo, route } from "./router";
import { chooseTheme, remember, theme, THEMES, type Theme } from "./settings";
import { useStore } from "./store";
import { startKeys } from "./keys";
import { Help } from "./parts/help";
import { Palette } from "./parts/palette";
import { Share } from "./parts/share";
import type { Place } from "./palette";
import { lazy } from "./parts/lazy";
import { Fleet } from "./views/fleet";
import { useSession } from "./session";
import { Login, logOut } from "./views/login";

interface ViewProps {
  picture: LivePicture;
  name: string;
}
interface View {
  title: Key;
  component: FunctionComponent<ViewProps>;
  /** Stands in the bar; views that are reached through another do not. */
  inBar: boolean;
}

const FLEET: View = { title: "nav.fleet", component: Fleet, inBar: true };

// A view is one entry here, in the order of the bar.
const VIEWS: Record<string, View> = {
  fleet: FLEET,
  sessions: {
    title: "nav.sessions",
    component: lazy(async () => (await import("./views/sessions")).Sessions),
    inBar: true,
  },
  findings: {
    title: "nav.findings",
    component: lazy(async () => (await import("./views/findings")).FindingsView),
    inBar: true,
  },
  alerts: {
    title: "nav.alerts",
    component: lazy(async () => (await import("./views/alerts")).Alerts),
    inBar: true,
  },
  slurm: {
    title: "nav.slurm",
    component: lazy(async () => (await import("./views/slurm")).SlurmView),
    inBar: true,
  },
  kubernetes: {
    title: "nav.kubernetes",
    component: lazy(async () => (await import("./views/kubernetes")).Kubernetes),
    inBar: true,
  },
  reports: {
    title: "nav.reports",
    component: lazy(async () => (await import("./views/reports")).Reports),
    inBar: true,
  },
  explore: {
    title: "nav.explore",
    component: lazy(async () => (await import("./views/explore")).Explore),
    inBar: true,
  },
  settings: {
    title: "nav.settings",
    component: lazy(async () => (await import("./views/settings")).Settings),
    inBar: true,
  },
  changes: {
    title: "changes.title",
    component: lazy(async () => (await import("./views/changes")).ChangesView),
    inBar: false,
  },
  compare: {
    title: "compare.title",
    component: lazy(async () => (await import("./views/compare")).Compare),
    inBar: false,
  },
  job: { title: "nav.slurm", component: lazy(async () => (await import("./views/job")).Job), inBar: false },
  node: { title: "nav.fleet", component: lazy(async () => (await import("./views/node")).Node), inBar: false },
  gpu: { title: "nav.fleet", component: lazy(async () => (await import("./views/gpu")).Gpu), inBar: false },
};

const OLD_SECONDS = 15;
const SKEW_SECONDS = 10;

export function App(): JSX.Element {
  useLanguage();
  const state = useStore(live);
  const { view, name } = useStore(route);
  useTicks(state.status === "ok" ? 0 : 1000);
  const shown = VIEWS[view] ?? FLEET;
  const Shown = shown.component;
  const [helping, setHelping] = useState(false);
  const [jumping, setJumping] = useState(false);
  useEffect(() => startKeys({ help: () => setHelping(true), palette: () => setJumping(true) }), []);
  useTitle(shown, name);
  return (
    <div class={state.status === "gone" ? "gone" : ""}>
      <a
        class="skip"
        href="#main"
        onClick={(event) => {
          event.preventDefault();
          document.getElementById("main")?.focus();
        }}
      >
        {t("nav.skip")}
      </a>
      <Bar state={state} view={view} help={() => setHelping(true)} jump={() => setJumping(true)} />
      <Strips state={state} />
      <main id="main" tabIndex={-1}>
        {state.status === "login" ? (
          <Login setup={state.setup ?? false} />
        ) : state.picture ? (
          <Shown key={`${view}/${name}`} picture={state.picture} name={name} />
        ) : (
          <Waiting state={state} />
        )}
      </main>
      {helping && <Help close={() => setHelping(false)} />}
      {jumping && state.picture && <Palette views={viewPlaces()} close={() => setJumping(false)} />}
    </div>
  );
}

/** Draws anew now and then, for ages that grow while nothing arrives. */
function useTicks(milliseconds: number): void {
  const [, setTick] = useState(0);
  useEffect(() => {
    if (!milliseconds) return undefined;
    const timer = setInterval(() => setTick((tick) => tick + 1), milliseconds);
    return () => clearInterval(timer);
  }, [milliseconds]);
}

function useTitle(view: View, name: string): void {
  const title = [name, t(view.title), "gpuscope"].filter(Boolean).join(" · ");
  useEffect(() => {
    document.title = title;
  }, [title]);
}

function Waiting({ state }: { state: Live }): JSX.Element {
  return (
    <div class="blank" role="status">
      {state.status === "gone" ? t("shell.gone_empty") : t("shell.connecting")}
    </div>
  );
}

const ageOf = (picture: LivePicture): number | undefined =>
  picture.taken_at === undefined ? undefined : Math.max(0, serverNow() - picture.taken_at);

function Strips({ state }: { state: Live }): JSX.Element {
  const { picture } = state;
  const age = picture ? ageOf(picture) : undefined;
  const skew = Math.abs(clockSkew());
  return (
    <div aria-live="polite">
      {picture?.simulated && <div class="strip simulated">{t("shell.simulated")}</div>}
      {state.status === "gone" && picture && (
        <div class="strip gone">{t("shell.gone", { age: formatDuration(age) })}</div>
      )}
      {state.status === "ok" && age !== undefined && age > OLD_SECONDS && (
        <div class="strip note">{t("shell.stale", { age: formatDuration(age) })}</div>
      )}
      {picture && picture.left_out > 0 && (
        <div class="strip note">{t("fleet.left_out", { count: picture.left_out })}</div>
      )}
      {state.status === "ok" && skew > SKEW_SECONDS && (
        <div class="strip note">{t("shell.skew", { skew: formatDuration(skew) })}</div>
      )}
    </div>
  );
}

const viewPlaces = (): Place[] =>
  Object.entries(VIEWS)
    .filter(([, one]) => one.inBar)
    .map(([id, one]) => ({ kind: "view", text: t(one.title), href: linkTo(id) }));

interface BarProps {
  state: Live;
  view: string;
  help: () => void;
  jump: () => void;
}

function Bar({ state, view, help, jump }: BarProps): JSX.Element {
  const { user } = useSession();
  const links = useRef<HTMLElement>(null);
  // On a phone the views are a row that is moved sideways: the current one must be in sight.
  useEffect(() => {
    const current = links.current?.querySelector<HTMLElement>("[aria-current]");
    if (links.current && current)
      links.current.scrollLeft = current.offsetLeft - (links.current.clientWidth - current.clientWidth) / 2;
  }, [view]);
  return (
    <header class="bar">
      <a class="brand" href={linkTo("fleet")}>
        <svg viewBox="0 0 16 16" aria-hidden="true">
          <path d="M1 15V9h3v6zM6.500 15V2h3v13zM12 15v-3h3v3z" fill="var(--accent)" />
        </svg>
        gpuscope
      </a>
      <nav class="views" ref={links} aria-label={t("nav.views")}>
        {Object.entries(VIEWS)
          .filter(([, one]) => one.inBar)
          .map(([id, one]) => (
            <a key={id} href={linkTo(id)} {...(id === view ? { "aria-current": "page" as const } : {})}>
              {t(one.title)}
            </a>
          ))}
      </nav>
      <Age state={state} />
      <div class="tools">
        <button onClick={jump} aria-keyshortcuts="/" aria-label={t("shell.search")} title={t("shell.search")}>
          <kbd>/</kbd>
        </button>
        <Share />
        <ThemeChoice />
        <LanguageChoice />
        <button onClick={help} aria-label={t("shell.help")}>
          ?
        </button>
        {user && <button onClick={() => void logOut()}>{t("shell.logout", { user })}</button>}
      </div>
    </header>
  );
}

function Age({ state }: { state: Live }): JSX.Element {
  const age = state.picture ? ageOf(state.picture) : undefined;
  const fresh = state.status === "ok" && (age ?? Infinity) <= OLD_SECONDS;
  return (
    <span class="age push" data-fresh={fresh}>
      {state.picture && <i aria-hidden="true" />}
      <span>
        {[fresh ? t("shell.live") : "", age === undefined ? "" : t("shell.age", { age: formatDuration(age) })]
          .filter(Boolean)
          .join(" · ")}
        {state.picture?.source && (
          <span class="source"> · {t("shell.source", { source: tName("source", state.picture.source) })}</span>
        )}
      </span>
    </span>
  );
}

function ThemeChoice(): JSX.Element {
  const current = useStore(theme);
  return (
    <select
      aria-label={t("shell.theme")}
      value={current}
      onChange={(event) => chooseTheme(event.currentTarget.value as Theme)}
    >
      {THEMES.map((one) => (
        <option key={one} value={one}>
          {t(`shell.theme.${one}`)}
        </option>
      ))}
    </select>
  );
}

function LanguageChoice(): JSX.Element {
  const current = useLanguage();
  const choose = (code: LanguageCode): void => {
    remember("language", code);
    void speak(code);
  };
  return (
    <select
      aria-label={t("shell.language")}
      value={current}
      onChange={(event) => choose(event.currentTarget.value as LanguageCode)}
    >
      {Object.entries(LANGUAGES).map(([code, name]) => (
        <option key={code} value={code} lang={code}>
          {name}
        </option>
      ))}
    </select>
  );
}
