// What the keys do and what the signs mean.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { STATES } from "../fleet";
import { t } from "../i18n";
import { SHORTCUTS } from "../keys";
import { GLYPHS, stateName, Swatch } from "./marks";

export function Help({ close }: { close: () => void }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} onClose={close} aria-labelledby="help-title">
      <h1 id="help-title">{t("shell.help")}</h1>
      <table>
        <tbody>
          {SHORTCUTS.map((one) => (
            <tr key={one.keys}>
              <th scope="row">
                {one.keys.split(" ").map((key) => (
                  <kbd key={key}>{key}</kbd>
                ))}
              </th>
              <td>{t(one.about)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p class="soft small">{t("help.drag")}</p>
      <h2>{t("fleet.states")}</h2>
      <ul>
        {STATES.map((state) => (
          <li key={state}>
            <Swatch state={state} /> <b aria-hidden="true">{GLYPHS[state]}</b> {stateName(state)}:{" "}
            <span class="soft">{t(`meaning.${state}`)}</span>
          </li>
        ))}
      </ul>
      <p>
        <button onClick={() => dialog.current?.close()}>{t("shell.close")}</button>
      </p>
    </dialog>
  );
}
