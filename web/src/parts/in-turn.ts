// One question at a time for a range that moves on with now: while an answer is on its way, a newer range waits for it.
// Cancelling would mean that an engine slower than the page's refresh is asked for ever and never heard.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Span } from "../time";

/** Longer than any engine's own time limit: then the answer was lost on its way. */
const MAX_WAIT_MS = 150_000;

interface Question {
  key: string;
  stop: AbortController;
  askedAt: number;
}

/**
 * Calls `ask` when `key` changes, at once, and when only `span` does, in turn. An empty key asks nothing. `ask` never rejects
 * and stays silent once its signal is aborted.
 */
export function useInTurn(key: string, span: Span, ask: (signal: AbortSignal) => Promise<void>): void {
  const running = useRef<Question | undefined>(undefined);
  const newest = useRef(span);
  newest.current = span;
  const [turn, setTurn] = useState(0);
  const stop = (): void => {
    running.current?.stop.abort();
    running.current = undefined;
  };
  useEffect(() => {
    const now = performance.now();
    if (running.current?.key === key && now - running.current.askedAt < MAX_WAIT_MS) return;
    stop();
    if (!key) return;
    const question = { key, stop: new AbortController(), askedAt: now };
    running.current = question;
    void ask(question.stop.signal).finally(() => {
      if (running.current !== question) return;
      running.current = undefined;
      if (newest.current !== span) setTurn((old) => old + 1);
    });
  }, [key, span, turn]);
  useEffect(() => stop, []);
}
