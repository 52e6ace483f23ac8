// Asked for when the server answers 401: a user and password, or the token it printed at its first start.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { LoginError, postJson } from "../api";
import { t } from "../i18n";

export function Login(): JSX.Element {
  const [problem, setProblem] = useState("");
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const [user, password, token] = ["user", "password", "token"].map((name) => String(form.get(name) ?? "").trim());
    try {
      await postJson("api/login", token ? { token } : { user, password });
      dispatchEvent(new Event("gpuscope:login"));
    } catch (error) {
      setProblem(error instanceof LoginError ? t("login.wrong") : error instanceof Error ? error.message : String(error));
    }
  };
  return (
    <form class="blank" onSubmit={(event) => void submit(event)}>
      <h1>{t("login.title")}</h1>
      <label>{t("login.user")} <input name="user" autocomplete="username" /></label>
      <label>{t("login.password")} <input name="password" type="password" autocomplete="current-password" /></label>
      <label>{t("login.token")} <input name="token" autocomplete="one-time-code" /></label>
      {problem && <p class="crit" role="alert">{problem}</p>}
      <button type="submit">{t("login.enter")}</button>
    </form>
  );
}

export async function logOut(): Promise<void> {
  await postJson("api/logout", {}).catch(() => undefined);
  dispatchEvent(new Event("gpuscope:login"));
}
