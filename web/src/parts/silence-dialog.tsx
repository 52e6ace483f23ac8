// Makes a silence: which labels it holds, until when, and why. What it would hold now is counted while it is written.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { isMatched, matcherText, type AlertRow, type Labels, type Matcher } from "../alerts";
import { Problem } from "./problem";
import { errorText, postJson } from "../api";
import { t } from "../i18n";
import { serverNow } from "../live";
import { parseDuration } from "../time";

const LENGTHS = ["1h", "4h", "8h", "1d", "1w"] as const;

interface DialogProps {
  labels: Labels;
  matchers: readonly Matcher[];
  alerts: readonly AlertRow[];
  author: string;
  close(isMade: boolean): void;
}

export function SilenceDialog({ labels, matchers: proposed, alerts, author, close }: DialogProps): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set(proposed.map((one) => one.name)));
  const [problem, setProblem] = useState("");
  useEffect(() => dialog.current?.showModal(), []);
  const matchers = Object.entries(labels)
    .filter(([name]) => chosen.has(name))
    .map(([name, value]): Matcher => ({ name, value, isRegex: false, isEqual: true }));
  const held = matchers.length ? alerts.filter((one) => isMatched(one.labels, matchers)).length : 0;
  const toggle = (name: string): void => {
    const next = new Set(chosen);
    if (!next.delete(name)) next.add(name);
    setChosen(next);
  };
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const length = parseDuration(String(form.get("length"))) ?? 3600;
    const now = serverNow();
    try {
      await postJson("api/v2/silences", {
        matchers,
        startsAt: toTime(now),
        endsAt: toTime(now + length),
        createdBy: String(form.get("author")).trim(),
        comment: String(form.get("comment")).trim(),
      });
      close(true);
    } catch (error) {
      setProblem(errorText(error));
    }
  };
  return (
    <dialog ref={dialog} onClose={() => close(false)} aria-labelledby="silence-title">
      <form class="form" onSubmit={(event) => void submit(event)}>
        <h1 id="silence-title">{t("alerts.silence")}</h1>
        <fieldset>
          <legend>{t("alerts.matchers")}</legend>
          {Object.entries(labels).map(([name, value]) => (
            <label key={name} class="check">
              <input type="checkbox" checked={chosen.has(name)} onChange={() => toggle(name)} />{" "}
              <code>
                <bdi>{matcherText({ name, value, isRegex: false })}</bdi>
              </code>
            </label>
          ))}
        </fieldset>
        <p class="soft" role="status">
          {matchers.length ? t("alerts.would_hold", { count: held }) : t("alerts.no_matcher")}
        </p>
        <label>
          {t("alerts.length")}
          <select name="length" defaultValue="4h">
            {LENGTHS.map((one) => (
              <option key={one}>{one}</option>
            ))}
          </select>
        </label>
        <label>
          {t("alerts.comment")} <input name="comment" required maxLength={500} autocomplete="off" />
        </label>
        <label>
          {t("alerts.author")} <input name="author" required defaultValue={author} maxLength={100} />
        </label>
        <Problem text={problem} />
        <p class="actions">
          <button type="submit" disabled={!matchers.length}>
            {t("alerts.silence")}
          </button>
          <button type="button" onClick={() => dialog.current?.close()}>
            {t("shell.cancel")}
          </button>
        </p>
      </form>
    </dialog>
  );
}

const toTime = (seconds: number): string => new Date(seconds * 1000).toISOString();
