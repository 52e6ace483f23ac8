// The palette: `/` opens it, typing narrows it, Enter jumps.
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { fetchMetricNames } from "../api";
import { t } from "../i18n";
import { live } from "../live";
import { findPlaces, placesOf, type Place } from "../palette";
import { useStore } from "../store";
import { Name } from "./marks";

const MOST = 12;

export function Palette({ views, close }: { views: readonly Place[]; close: () => void }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const [typed, setTyped] = useState("");
  const [chosen, setChosen] = useState(0);
  const [metrics, setMetrics] = useState<readonly string[]>([]);
  const { picture } = useStore(live);
  // What is listed must not move under the finger: the fleet of the moment it was opened.
  const fleet = useRef(picture);
  useEffect(() => {
    dialog.current?.showModal();
    const stop = new AbortController();
    fetchMetricNames(stop.signal).then(setMetrics, () => undefined);
    return () => stop.abort();
  }, []);
  const places = useMemo(
    () => (fleet.current ? placesOf(fleet.current, views, metrics) : [...views]),
    [metrics, views],
  );
  const found = useMemo(() => findPlaces(places, typed, MOST), [places, typed]);
  const jump = (place: Place | undefined): void => {
    if (!place) return;
    location.hash = place.href;
    dialog.current?.close();
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (move && found.length) setChosen((chosen + move + found.length) % found.length);
    else if (event.key === "Enter") jump(found[chosen]);
    else return;
    event.preventDefault();
  };
  return (
    <dialog ref={dialog} class="palette" onClose={close} aria-label={t("shell.search")}>
      <input
        role="combobox"
        aria-expanded="true"
        aria-controls="palette-list"
        aria-autocomplete="list"
        {...(found.length ? { "aria-activedescendant": `place-${chosen}` } : {})}
        aria-label={t("palette.hint")}
        placeholder={t("palette.hint")}
        value={typed}
        autocomplete="off"
        spellcheck={false}
        onInput={(event) => {
          setTyped(event.currentTarget.value);
          setChosen(0);
        }}
        onKeyDown={onKeyDown}
      />
      <ul id="palette-list" role="listbox" aria-label={t("shell.search")}>
        {found.map((place, at) => (
          <li
            key={`${place.kind}/${place.href}`}
            id={`place-${at}`}
            role="option"
            aria-selected={at === chosen}
            onClick={() => jump(place)}
          >
            <Name text={place.text} /> <span class="soft">{t(`place.${place.kind}`)}</span>
          </li>
        ))}
      </ul>
      {!found.length && <p class="soft">{t("palette.none")}</p>}
    </dialog>
  );
}
