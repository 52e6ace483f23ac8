// The PromQL box: a text area with a list of what may come next (a text area may not be an ARIA combobox, so the choice is told by aria-activedescendant).
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { fetchLabelNames, fetchLabelValues, fetchMetadata, fetchMetricNames, type MetricHelp } from "../api";
import { t } from "../i18n";
import { AGGREGATIONS, FUNCTIONS, placeAt, rank, type Place } from "../promql";

interface Choice {
  text: string;
  about: string;
  insert: string;
}
interface List {
  place: Exclude<Place, { kind: "none" }>;
  choices: Choice[];
  chosen: number;
}

let names: Promise<string[]> | undefined;
let metadata: Promise<Record<string, MetricHelp[]>> | undefined;

async function candidates(place: Exclude<Place, { kind: "none" }>): Promise<Choice[]> {
  if (place.kind === "value") {
    return rank(await fetchLabelValues(place.label, place.metric), place.word).map((text) => ({
      text,
      about: "",
      insert: text.replace(/["\\]/g, "\\$&"),
    }));
  }
  if (place.kind === "label") {
    return rank(await fetchLabelNames(place.metric), place.word).map((text) => ({ text, about: "", insert: text }));
  }
  if (!place.word) return [];
  names ??= fetchMetricNames();
  metadata ??= fetchMetadata();
  names.catch(() => {
    names = undefined;
  });
  const help = await metadata.catch(() => {
    metadata = undefined;
    return {} as Record<string, MetricHelp[]>;
  });
  const functions = [...AGGREGATIONS, ...FUNCTIONS];
  return rank([...(await names), ...functions], place.word).map((text) => {
    const call = functions.includes(text);
    return {
      text,
      about: call ? t("explore.function") : (help[text]?.[0]?.help ?? ""),
      insert: call ? `${text}(` : text,
    };
  });
}

interface BoxProps {
  value: string;
  id: string;
  run(text: string): void;
}

export function PromqlBox({ value, run, id }: BoxProps): JSX.Element {
  const [text, setText] = useState(value);
  const [list, setList] = useState<List>();
  const area = useRef<HTMLTextAreaElement>(null);
  const asked = useRef(0);
  useEffect(() => setText(value), [value]);
  const offer = async (): Promise<void> => {
    const element = area.current;
    if (!element) return;
    const turn = (asked.current += 1);
    const place = placeAt(element.value, element.selectionStart);
    const choices = place.kind === "none" ? [] : await candidates(place).catch(() => []);
    // An answer to a word that has been typed over is no answer.
    if (turn !== asked.current) return;
    const done = choices.length === 1 && place.kind !== "none" && choices[0]?.text === place.word;
    setList(choices.length && !done && place.kind !== "none" ? { place, choices, chosen: 0 } : undefined);
  };
  const take = (choice: Choice | undefined): void => {
    if (!choice || !list || !area.current) return;
    const end = area.current.selectionStart;
    const next = text.slice(0, list.place.from) + choice.insert + text.slice(end);
    const cursor = list.place.from + choice.insert.length;
    setText(next);
    setList(undefined);
    requestAnimationFrame(() => {
      area.current?.setSelectionRange(cursor, cursor);
      area.current?.focus();
    });
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && !event.shiftKey && (!list || event.ctrlKey)) {
      event.preventDefault();
      setList(undefined);
      run(text);
      return;
    }
    if (!list) {
      if (event.key === " " && event.ctrlKey) {
        event.preventDefault();
        void offer();
      }
      return;
    }
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (move) setList({ ...list, chosen: (list.chosen + move + list.choices.length) % list.choices.length });
    else if (event.key === "Enter" || event.key === "Tab") take(list.choices[list.chosen]);
    else if (event.key === "Escape") setList(undefined);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        setList(undefined);
        run(text);
      }}
    >
      <div class="complete">
        <textarea
          ref={area}
          id={id}
          value={text}
          spellcheck={false}
          autocapitalize="off"
          autocomplete="off"
          aria-label={t("explore.box")}
          placeholder={t("explore.placeholder")}
          aria-autocomplete="list"
          {...(list
            ? { "aria-controls": `choices-${id}`, "aria-activedescendant": `choice-${id}-${list.chosen}` }
            : {})}
          onInput={(event) => {
            setText(event.currentTarget.value);
            void offer();
          }}
          onKeyDown={onKeyDown}
          onBlur={() => setTimeout(() => setList(undefined), 150)}
        />
        {list && (
          <ul id={`choices-${id}`} role="listbox" aria-label={t("explore.choices")}>
            {list.choices.map((choice, place) => (
              <li
                key={choice.text}
                id={`choice-${id}-${place}`}
                role="option"
                aria-selected={place === list.chosen}
                onPointerDown={(event) => {
                  event.preventDefault();
                  take(choice);
                }}
              >
                <code>{choice.text}</code> <span>{choice.about}</span>
              </li>
            ))}
          </ul>
        )}
      </div>
      <button type="submit">{t("explore.run")}</button> <span class="soft small">{t("explore.keys")}</span>
    </form>
  );
}
