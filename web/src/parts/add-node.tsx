// How to add a node: one command to paste there. Where the server has a login, an admin makes a token for it, which only
// sends samples of that node and is shown once.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { errorText, postJson } from "../api";
import type { NewTokenAnswer } from "../api-types";
import { t } from "../i18n";
import { live } from "../live";
import { mayDo, useSession } from "../session";
import { useStore } from "../store";
import { CopyBox } from "./copy-box";
import { Problem, RoleNeeded } from "./problem";

/** `gpuscope up` reads its own machine and takes what others send; it does not scrape. */
const OWN_SOURCE = "this process";

const pageAddress = (): string => location.href.replace(/[#?].*$/, "").replace(/\/$/, "");

/** A shell reads this: the address and the token are quoted, so that nothing in them is a command. */
const quote = (text: string): string => `'${text.replace(/'/g, "'\\''")}'`;

export function nodeCommand(address: string, token: string, node: string): string {
  const push = `gpuscope agent --remote-write ${quote(`${address}/api/v1/write`)}`;
  if (!token) return push;
  return [
    `(umask 077; printf 'authorization: {credentials: %s}\\n' ${quote(token)} > gpuscope-push.yml)`,
    // The token is bound to this name: the agent must use it too, whatever the host is called.
    `${push} --remote-write-http-config gpuscope-push.yml --node ${quote(node)}`,
  ].join("\n");
}

export function AddNode(): JSX.Element {
  const session = useSession();
  const { picture } = useStore(live);
  const [token, setToken] = useState("");
  const [node, setNode] = useState("");
  const [problem, setProblem] = useState("");
  const address = pageAddress();
  const local = /^https?:\/\/(127\.|localhost|\[::1\])/.test(address);
  const make = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const name = String(new FormData(event.currentTarget as HTMLFormElement).get("name")).trim();
    try {
      setToken((await postJson<NewTokenAnswer>("api/tokens", { name, permits: "write", node: name })).token);
      setNode(name);
      setProblem("");
    } catch (error) {
      setProblem(errorText(error));
    }
  };
  return (
    <section class="narrow">
      <p>{t("add.help")}</p>
      {local && <p class="strip note">{t("add.local")}</p>}
      {!session.open &&
        !token &&
        (mayDo(session.role, "admin") ? (
          <form class="form" onSubmit={(event) => void make(event)}>
            <label>
              {t("add.name")}{" "}
              <input
                name="name"
                required
                pattern="[A-Za-z0-9_][A-Za-z0-9_.\-]{0,63}"
                placeholder="node7"
                autocomplete="off"
              />
            </label>
            <p class="actions">
              <button type="submit">{t("add.make")}</button>
            </p>
          </form>
        ) : (
          <RoleNeeded role="admin" />
        ))}
      <Problem text={problem} />
      {(session.open || token) && (
        <>
          <h2>{t("add.push")}</h2>
          <CopyBox text={nodeCommand(address, token, node)} />
          {token && <p class="warn">{t("add.once")}</p>}
        </>
      )}
      {picture?.source !== OWN_SOURCE && (
        <>
          <h2>{t("add.pull")}</h2>
          <p class="soft">{t("add.pull_help")}</p>
          <CopyBox
            text={"gpuscope agent            # on the node, port 9400\ngpuscope server --targets node7:9400,node8:9400"}
          />
        </>
      )}
    </section>
  );
}
