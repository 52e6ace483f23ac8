// Everything the page asks of the server. In: paths relative to the page, so that it works under any prefix. Out:
// parsed JSON, or one of three errors. Prometheus answers a bad query with JSON and status 400 or 422: that is a
// QueryError with the engine's own words, not an outage.

import type { ErrorAnswer, SessionAnswer } from "./api-types";

export class QueryError extends Error {}
export class UnreachableError extends Error {}
export class LoginError extends Error {
  constructor(
    message: string,
    /** No user exists yet: the token printed at the first start makes one. */
    readonly setup: boolean,
  ) {
    super(message);
  }
}

export interface Series {
  metric: Record<string, string>;
  values: [number, string][];
}
export interface InstantSample {
  metric: Record<string, string>;
  value: [number, string];
}
export type QueryData =
  | { resultType: "matrix"; result: Series[] }
  | { resultType: "vector"; result: InstantSample[] }
  | { resultType: "scalar" | "string"; result: [number, string] };

const TIMEOUT_MS = 30_000;

export async function getJson<T>(path: string, signal?: AbortSignal, timeoutMs = TIMEOUT_MS): Promise<T> {
  return requestJson<T>(path, signal ? { signal } : {}, timeoutMs);
}

export async function postJson<T>(path: string, body: unknown): Promise<T> {
  return requestJson<T>(path, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
  });
}

async function requestJson<T>(path: string, init: RequestInit, timeoutMs = TIMEOUT_MS): Promise<T> {
  const limit = AbortSignal.timeout(timeoutMs);
  const signal = init.signal ? AbortSignal.any([init.signal, limit]) : limit;
  let response: Response;
  let text: string;
  try {
    response = await fetch(path, { ...init, signal, headers: { accept: "application/json", ...init.headers } });
    text = await response.text();
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new UnreachableError(limit.aborted ? `no answer within ${timeoutMs / 1000} s` : String(error));
  }
  const body = parseJson(text);
  if (response.ok && body !== undefined) return body as T;
  const told = (body ?? {}) as Partial<ErrorAnswer>;
  const problem = typeof told.error === "string" ? told.error : "";
  if (response.status === 401) throw new LoginError(problem, told.setup === true);
  if (problem) throw new QueryError(problem);
  throw new UnreachableError(`${response.status} ${response.statusText}`.trim());
}

function parseJson(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

async function prometheus<T>(path: string, parameters: Record<string, string>, signal?: AbortSignal): Promise<T> {
  const answer = await getJson<{ data: T }>(`api/v1/${path}?${new URLSearchParams(parameters)}`, signal);
  return answer.data;
}

export async function queryInstant(expression: string, time: number, signal?: AbortSignal): Promise<QueryData> {
  return prometheus<QueryData>("query", { query: expression, time: time.toFixed(3) }, signal);
}

export async function queryRange(
  expression: string,
  start: number,
  end: number,
  step: number,
  signal?: AbortSignal,
): Promise<Series[]> {
  const data = await prometheus<QueryData>(
    "query_range",
    { query: expression, start: String(start), end: String(end), step: String(step) },
    signal,
  );
  return data.resultType === "matrix" ? data.result : [];
}

/** Who is logged in; nobody on a server that is open. */
export async function fetchUser(): Promise<string | undefined> {
  return (await getJson<SessionAnswer>("api/session")).user;
}

export interface MetricHelp {
  type: string;
  help: string;
  unit: string;
}

export const fetchMetricNames = (signal?: AbortSignal): Promise<string[]> =>
  prometheus<string[]>("label/__name__/values", {}, signal);

export const fetchMetadata = (signal?: AbortSignal): Promise<Record<string, MetricHelp[]>> =>
  prometheus<Record<string, MetricHelp[]>>("metadata", {}, signal);

export const fetchLabelNames = (metric: string, signal?: AbortSignal): Promise<string[]> =>
  prometheus<string[]>("labels", metric ? { "match[]": metric } : {}, signal);

export const fetchLabelValues = (label: string, metric: string, signal?: AbortSignal): Promise<string[]> =>
  prometheus<string[]>(`label/${encodeURIComponent(label)}/values`, metric ? { "match[]": metric } : {}, signal);

interface TargetsAnswer {
  data: { activeTargets: { lastError?: string; labels?: Record<string, string> }[] };
}

/** `nvml: …; nvidia-smi: …`; a reason may have a semicolon of its own. */
const BETWEEN_SOURCES = /; (?=[\w-]+: )/;

/** What the scraper, or this machine's own sources, last complained of; with the node's name where there are several. */
export async function fetchTargetErrors(signal?: AbortSignal): Promise<string[]> {
  const { data } = await getJson<TargetsAnswer>("api/v1/targets?state=active", signal);
  const several = data.activeTargets.length > 1;
  return data.activeTargets
    .filter((target) => target.lastError)
    .flatMap((target) => {
      const name = several ? `${target.labels?.["instance"] ?? ""}: ` : "";
      return (target.lastError ?? "").split(BETWEEN_SOURCES).map((reason) => name + reason);
    });
}
