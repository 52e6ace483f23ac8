// A text to copy. Where the browser forbids the clipboard (plain http), the text is selected instead.
import type { JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { t } from "../i18n";

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

export function CopyBox({ text }: { text: string }): JSX.Element {
  const code = useRef<HTMLElement>(null);
  const [copied, setCopied] = useState(false);
  const copy = async (): Promise<void> => {
    if (await copyText(text)) setCopied(true);
    else if (code.current) getSelection()?.selectAllChildren(code.current);
  };
  return (
    <div class="copy">
      <code ref={code}>{text}</code>
      <button onClick={() => void copy()}>{copied ? t("shell.copied") : t("shell.copy")}</button>
    </div>
  );
}
