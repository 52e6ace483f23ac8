// Users and tokens: who can log in and may do what. An admin adds, changes and removes them; a token is shown once.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { errorText, deleteJson, getJson, postJson } from "../api";
import type { NewTokenAnswer, TokenJson, UserJson, UsersAnswer } from "../api-types";
import { formatMoment } from "../format";
import { spoken, t } from "../i18n";
import { serverNow } from "../live";
import { mayDo, ROLES, useSession } from "../session";
import { AskedState, useAsked } from "./asked";
import { CopyBox } from "./copy-box";
import { DataTable, nameColumn, type Column } from "./data-table";
import { Problem, RoleNeeded } from "./problem";

export function UserSettings(): JSX.Element {
  const session = useSession();
  if (session.open) return <p class="soft">{t("users.open")}</p>;
  if (!mayDo(session.role, "admin")) return <RoleNeeded role="admin" />;
  return <Managed />;
}

function Managed(): JSX.Element {
  const asked = useAsked((signal) => getJson<UsersAnswer>("api/users", signal), "", 30_000);
  const [problem, setProblem] = useState("");
  const [token, setToken] = useState("");
  const change = async (work: () => Promise<unknown>): Promise<void> => {
    try {
      await work();
      setProblem("");
    } catch (error) {
      setProblem(errorText(error));
    }
    asked.again();
  };
  return (
    <section>
      <AskedState asked={asked} what={t("settings.users")} />
      <Problem text={problem} />
      {asked.data && (
        <DataTable
          name={t("settings.users")}
          rows={asked.data.users}
          columns={userColumns(change)}
          keyOf={(one) => one.name}
          empty=""
        />
      )}
      <NewUser change={change} />
      <section class="section">
        <h2>{t("users.tokens")}</h2>
        {token && (
          <>
            <p class="warn">{t("add.once")}</p>
            <CopyBox text={token} />
          </>
        )}
        {asked.data && (
          <DataTable
            name={t("users.tokens")}
            rows={asked.data.tokens}
            columns={tokenColumns(change)}
            keyOf={(one) => one.name}
            sortKey="tsort"
            empty={t("users.no_tokens")}
          />
        )}
        <NewToken change={change} show={setToken} />
      </section>
    </section>
  );
}

type Change = (work: () => Promise<unknown>) => Promise<void>;
const dayText = (at: number): string => formatMoment(at, serverNow(), spoken.get().code);
const userPath = (user: UserJson): string => `api/users/${encodeURIComponent(user.name)}`;
const tokenPath = (token: TokenJson): string => `api/tokens/${encodeURIComponent(token.name)}`;

/** The last columns of users and of tokens: when one was made, and the button that takes it away. */
const createdAndRemoved = <T extends { created_at: number }>(label: string, remove: (one: T) => void): Column<T>[] => [
  {
    id: "created",
    title: t("users.created"),
    cell: (one) => dayText(one.created_at),
    value: (one) => one.created_at,
  },
  { id: "remove", title: "", cell: (one) => <Confirm label={label} act={() => remove(one)} /> },
];

function userColumns(change: Change): Column<UserJson>[] {
  return [
    nameColumn("name", t("login.user"), (one) => one.name),
    {
      id: "role",
      title: t("users.role"),
      cell: (one) => (
        <select
          aria-label={`${t("users.role")} ${one.name}`}
          value={one.role}
          onChange={(event) => {
            const role = event.currentTarget.value;
            void change(() => postJson(`${userPath(one)}/role`, { role }));
          }}
        >
          <RoleOptions />
        </select>
      ),
      value: (one) => one.role,
    },
    ...createdAndRemoved<UserJson>(t("users.remove"), (one) => void change(() => deleteJson(userPath(one)))),
  ];
}

function tokenColumns(change: Change): Column<TokenJson>[] {
  return [
    nameColumn("name", t("users.token"), (one) => one.name),
    {
      id: "permits",
      title: t("users.permits"),
      cell: (one) =>
        one.permits !== "write"
          ? t(`role.${one.permits}`)
          : one.node
            ? t("users.sends_node", { node: one.node })
            : t("users.sends"),
      value: (one) => one.permits,
    },
    ...createdAndRemoved<TokenJson>(t("users.revoke"), (one) => void change(() => deleteJson(tokenPath(one)))),
  ];
}

function RoleOptions(): JSX.Element {
  return (
    <>
      {ROLES.map((role) => (
        <option key={role} value={role}>
          {t(`role.${role}`)}
        </option>
      ))}
    </>
  );
}

/** Asked twice: what is taken away cannot be given back. */
function Confirm({ label, act }: { label: string; act(): void }): JSX.Element {
  const [sure, setSure] = useState(false);
  return (
    <button onClick={() => (sure ? act() : setSure(true))} onBlur={() => setSure(false)}>
      {sure ? t("users.sure") : label}
    </button>
  );
}

function NewUser({ change }: { change: Change }): JSX.Element {
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const [name, password, role] = ["name", "password", "role"].map((key) => String(new FormData(form).get(key)));
    void change(() => postJson("api/users", { name, password, role })).then(() => form.reset());
  };
  return (
    <form class="inline section" onSubmit={submit}>
      <input name="name" required placeholder={t("login.user")} aria-label={t("login.user")} autocomplete="off" />
      <input
        name="password"
        type="password"
        required
        minLength={10}
        placeholder={t("login.password")}
        aria-label={t("login.password")}
        autocomplete="new-password"
      />
      <select name="role" aria-label={t("users.role")}>
        <RoleOptions />
      </select>
      <button type="submit">{t("login.create")}</button>
    </form>
  );
}

function NewToken({ change, show }: { change: Change; show(token: string): void }): JSX.Element {
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    const [name, permits] = ["name", "permits"].map((key) => String(new FormData(form).get(key)));
    void change(async () => show((await postJson<NewTokenAnswer>("api/tokens", { name, permits })).token)).then(() =>
      form.reset(),
    );
  };
  return (
    <form class="inline section" onSubmit={submit}>
      <input name="name" required placeholder={t("users.token")} aria-label={t("users.token")} autocomplete="off" />
      <select name="permits" aria-label={t("users.permits")}>
        <RoleOptions />
        <option value="write">{t("users.sends")}</option>
      </select>
      <button type="submit">{t("users.make_token")}</button>
    </form>
  );
}
