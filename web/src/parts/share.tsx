// Copies a link that shows the same to whoever opens it: a range that follows now becomes the times of now.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { t } from "../i18n";
import { formatRoute, route } from "../router";
import { absolute } from "../time";
import { showSpan, timeline } from "../timeline";
import { copyText } from "./copy-box";

export function shareAddress(): string {
  const current = route.get();
  const range = absolute(timeline.get().span);
  return location.href.replace(/#.*$/, "") + formatRoute({ ...current, query: { ...current.query, ...range } });
}

export function Share(): JSX.Element {
  const [copied, setCopied] = useState(false);
  const copy = async (): Promise<void> => {
    const address = shareAddress();
    const done = await copyText(address);
    setCopied(done);
    // Where the clipboard is forbidden, the address bar has it.
    if (!done) showSpan(timeline.get().span);
    setTimeout(() => setCopied(false), 2000);
  };
  return (
    <button onClick={() => void copy()}>
      <span role="status">{copied ? t("shell.copied") : t("shell.share")}</span>
    </button>
  );
}
