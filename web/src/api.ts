// Everything the page asks of the server. In: paths relative to the page, so that it works under any prefix. Out:
// parsed JSON, or one of three errors. Prometheus answers a bad query with JSON and status 400 or 422: that is a
// QueryError with the engine's own words, not an outage.

import type { ErrorAnswer } from "./api-types";

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

/** The sentence of anything that was thrown. */
export const errorText = (error: unknown): string => (error instanceof Error ? error.message : String(error));

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

export async function deleteJson(path: string): Promise<void> {
  await requestText(path, { method: "DELETE" });
}

async function requestJson<T>(path: string, init: RequestInit, timeoutMs = TIMEOUT_MS): Promise<T> {
  return (await requestDated<T>(path, init, timeoutMs)).body;
}

export interface Dated<T> {
  body: T;
  /** The server's clock when it answered, in seconds; absent where a proxy has removed the header `date`. */
  answeredAt?: number;
}

export const getDatedJson = <T>(path: string, signal: AbortSignal, timeoutMs: number): Promise<Dated<T>> =>
  requestDated<T>(path, { signal }, timeoutMs);

async function requestDated<T>(path: string, init: RequestInit, timeoutMs: number): Promise<Dated<T>> {
  const { response, text } = await requestText(path, init, timeoutMs);
  const body = parseJson(text);
  if (body === undefined) throw toError(response, text);
  const answeredAt = Date.parse(response.headers.get("date") ?? "") / 1000;
  return { body: body as T, ...(Number.isFinite(answeredAt) ? { answeredAt } : {}) };
}

/** An answer with a status that says it went well; everything else is one of the errors. */
async function requestText(
  path: string,
  init: RequestInit,
  timeoutMs = TIMEOUT_MS,
): Promise<{ response: Response; text: string }> {
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
  if (!response.ok) throw toError(response, text);
  return { response, text };
}

/** What an answer that is not ok says: that a login is needed, the server's own sentence, or only its status. */
function toError(response: Response, text: string): Error {
  const body = parseJson(text);
  const told = (typeof body === "object" && body ? body : {}) as Partial<ErrorAnswer> & { message?: unknown };
  // Alertmanager's API answers an error with a JSON text, or with an object that has a `message`.
  const problem = [body, told.error, told.message].find((one) => typeof one === "string") ?? "";
  if (response.status === 401) return new LoginError(problem, told.setup === true);
  if (problem) return new QueryError(problem);
  return new UnreachableError(`${response.status} ${response.statusText}`.trim());
}

/** The pieces of an event stream as text. `lastId` is the last event that is known. A server that answers but gives no
 * stream is a QueryError: the caller asks for the whole picture instead. */
export async function* fetchStream(path: string, lastId: string, signal: AbortSignal): AsyncGenerator<string> {
  let response: Response;
  try {
    response = await fetch(path, {
      signal,
      headers: { accept: "text/event-stream", ...(lastId ? { "last-event-id": lastId } : {}) },
    });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new UnreachableError(String(error));
  }
  if (!response.ok || !response.body) {
    const error = toError(response, await response.text());
    throw error instanceof LoginError ? error : new QueryError(error.message);
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } catch (error) {
    if (signal.aborted) throw error;
    throw new UnreachableError(String(error));
  } finally {
    void reader.cancel().catch(() => undefined);
  }
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
