// The live picture: read every second while the page is visible, kept when the server is gone. In: `api/live`. Out: a
// store with the last picture and the difference between the two clocks. A number that is not known has no key.
import { getJson, LoginError } from "./api";
import type { LivePicture } from "./api-types";
import { createStore } from "./store";

export type {
  FindingJson as Finding,
  GoneJson as Gone,
  GoneTargetJson as GoneTarget,
  GpuState,
  LiveGpu,
  LiveNode,
  LivePicture,
  LiveSession,
} from "./api-types";

export interface Live {
  status: "connecting" | "ok" | "gone" | "login";
  picture?: LivePicture;
  problem?: string;
  /** With `login`: the first user is still to be made. */
  setup?: boolean;
}

const PERIOD_MS = 1000;
const LONGEST_PAUSE_MS = 10_000;
const TIMEOUT_MS = 8000;
const SKEW_SMOOTHING = 0.2;

export const live = createStore<Live>({ status: "connecting" });

let skewSeconds = 0;
let skewKnown = false;

/** The server's time: ranges and ages are counted in it, whatever the browser's clock says. */
export const serverNow = (): number => Date.now() / 1000 + skewSeconds;
export const clockSkew = (): number => skewSeconds;

function learnSkew(serverTime: number, askedAt: number, answeredAt: number): void {
  const sample = serverTime - (askedAt + answeredAt) / 2000;
  // A jump is a clock that was set; small changes are the network's.
  const jump = !skewKnown || Math.abs(sample - skewSeconds) > 5;
  skewSeconds = jump ? sample : skewSeconds + SKEW_SMOOTHING * (sample - skewSeconds);
  skewKnown = true;
}

async function ask(): Promise<boolean> {
  const askedAt = Date.now();
  try {
    const picture = await getJson<LivePicture>("api/live", undefined, TIMEOUT_MS);
    learnSkew(picture.now, askedAt, Date.now());
    live.set({ status: "ok", picture });
    return true;
  } catch (error) {
    const { picture } = live.get();
    const problem = error instanceof Error ? error.message : String(error);
    if (error instanceof LoginError) live.set({ status: "login", problem, setup: error.setup });
    else live.set(picture ? { status: "gone", picture, problem } : { status: "gone", problem });
    return false;
  }
}

/** Asks for ever; a hidden page does not ask, a failing server is asked less and less often. */
export function startLive(): void {
  let failures = 0;
  let timer = 0;
  let asking = false;
  const turn = async (): Promise<void> => {
    clearTimeout(timer);
    if (document.hidden || asking) return;
    asking = true;
    const startedAt = performance.now();
    failures = (await ask()) ? 0 : failures + 1;
    asking = false;
    const pause = Math.min(PERIOD_MS * 2 ** Math.min(failures, 5), LONGEST_PAUSE_MS);
    timer = window.setTimeout(() => void turn(), Math.max(pause - (performance.now() - startedAt), 50));
  };
  document.addEventListener("visibilitychange", () => void turn());
  addEventListener("online", () => void turn());
  addEventListener("gpuscope:login", () => void turn());
  void turn();
}
