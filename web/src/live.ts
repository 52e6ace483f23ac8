// The live picture: streamed while the page is visible, kept when the server is gone. In: `api/live/stream`, the picture
// once and then differences, resumed after the last event seen; where no stream is to be had, `api/live` as a whole. Out:
// a store with the last picture, and the difference between the two clocks. A number that is not known has no key.
import { errorText, fetchStream, getDatedJson, LoginError, QueryError } from "./api";
import type {
  LiveDifference,
  LivePicture,
  StreamClock,
  StreamColumns,
  StreamPicture,
  StreamProblem,
} from "./api-types";
import { applyDifference, EventReader, type StreamEvent } from "./live-differences";
import { createStore } from "./store";

export type {
  FindingJson as Finding,
  GoneJson as Gone,
  GoneTargetJson as GoneTarget,
  GpuState,
  LiveCounts,
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
/** Nothing for so long, not even a heartbeat: the connection is dead, whatever TCP says. */
const SILENCE_MS = 40_000;
const SKEW_SMOOTHING = 0.2;

export const live = createStore<Live>({ status: "connecting" });

let skewSeconds = 0;
let skewKnown = false;

/** The server's time: ranges and ages are counted in it, whatever the browser's clock says. */
export const serverNow = (): number => Date.now() / 1000 + skewSeconds;
export const clockSkew = (): number => skewSeconds;

function learnSkew(serverTime: number, receivedAt: number): void {
  const sample = serverTime - receivedAt / 1000;
  // A jump is a clock that was set; small changes are the network's.
  const jump = !skewKnown || Math.abs(sample - skewSeconds) > 5;
  skewSeconds = jump ? sample : skewSeconds + SKEW_SMOOTHING * (sample - skewSeconds);
  skewKnown = true;
}

/** Names of nodes by `instance`, which is an address where another engine scrapes. */
export const nodeNames = (picture: LivePicture): ReadonlyMap<string, string> =>
  new Map(picture.nodes.map((one) => [one.instance, one.name]));

/** What the stream has told so far; kept over a break, so that it goes on where it ended. */
let known: { columns: StreamColumns; picture: LivePicture; id: string } | undefined;

export function takeEvent(event: StreamEvent): void {
  if (event.name === "clock") {
    // Not the picture's own time: one that was made for another viewer is older than the answer that brings it.
    learnSkew((JSON.parse(event.data) as StreamClock).now, Date.now());
    return;
  }
  if (event.name === "problem") {
    fail((JSON.parse(event.data) as StreamProblem).error);
    return;
  }
  if (event.name === "picture") {
    const { columns, picture } = JSON.parse(event.data) as StreamPicture;
    known = { columns, picture, id: event.id };
  } else if (event.name === "difference" && known) {
    const change = JSON.parse(event.data) as LiveDifference;
    known = { ...known, picture: applyDifference(known.columns, known.picture, change), id: event.id };
  } else {
    return;
  }
  live.set({ status: "ok", picture: known.picture });
}

function fail(problem: string): void {
  const { picture } = live.get();
  live.set(picture ? { status: "gone", picture, problem } : { status: "gone", problem });
}

/** Reads until the stream ends. True if it brought anything. */
async function follow(stop: AbortSignal): Promise<boolean> {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), TIMEOUT_MS);
  let heard = false;
  try {
    const events = new EventReader();
    const signal = AbortSignal.any([stop, silence.signal]);
    for await (const piece of fetchStream("api/live/stream", known?.id ?? "", signal)) {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENCE_MS);
      for (const event of events.read(piece)) {
        takeEvent(event);
        heard = true;
      }
    }
  } catch (error) {
    if (stop.aborted) return heard;
    if (silence.signal.aborted) throw new QueryError("the stream is silent");
    throw error;
  } finally {
    clearTimeout(timer);
  }
  return heard;
}

/** The whole picture, from a server that has no stream to give. */
export async function askOnce(stop: AbortSignal): Promise<void> {
  const { body: picture, answeredAt } = await getDatedJson<LivePicture>("api/live", stop, TIMEOUT_MS);
  known = undefined;
  // The header has whole seconds, cut off: half a second later is right on average.
  learnSkew(answeredAt === undefined ? picture.now : answeredAt + 0.5, Date.now());
  live.set({ status: "ok", picture });
}

/** One turn: a stream from its beginning to its end, or one whole picture. Answers with the pause before the next. */
async function turn(stop: AbortSignal, failures: number): Promise<number> {
  const startedAt = performance.now();
  try {
    try {
      await follow(stop);
    } catch (error) {
      if (!(error instanceof QueryError)) throw error;
      await askOnce(stop); // too many streams, or a proxy that does not let them through
    }
    // A stream that ended as streams do is resumed at once; one that ended at its beginning is not asked for in a rush.
    return Math.max(PERIOD_MS - (performance.now() - startedAt), 50);
  } catch (error) {
    if (stop.aborted) return 0;
    const problem = errorText(error);
    if (error instanceof LoginError) {
      known = undefined;
      live.set({ status: "login", problem, setup: error.setup });
    } else {
      fail(problem);
    }
    return Math.min(PERIOD_MS * 2 ** Math.min(failures + 1, 5), LONGEST_PAUSE_MS);
  }
}

/** Follows for ever; a hidden page does not, and a failing server is asked less and less often. */
export function startLive(): void {
  let failures = 0;
  let timer = 0;
  let running: AbortController | undefined;
  const next = async (): Promise<void> => {
    clearTimeout(timer);
    if (document.hidden || running) return;
    const own = (running = new AbortController());
    const pause = await turn(own.signal, failures);
    if (running !== own) return; // begun anew meanwhile
    running = undefined;
    failures = live.get().status === "ok" ? 0 : failures + 1;
    timer = window.setTimeout(() => void next(), pause);
  };
  const again = (): void => {
    running?.abort();
    running = undefined;
    void next();
  };
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) return void next();
    // Six connections are all that a browser gives a server: tabs in the background leave theirs to the others.
    running?.abort();
    running = undefined;
    clearTimeout(timer);
  });
  addEventListener("online", again);
  addEventListener("gpuscope:login", again);
  void next();
}
