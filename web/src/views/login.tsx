// Asked for when the server answers 401. At the very first start the token it printed makes the first user.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { errorText, LoginError, postJson } from "../api";
import type { LoginAnswer, LoginRequest, LogoutAnswer } from "../api-types";
import { t } from "../i18n";

export function Login({ setup }: { setup: boolean }): JSX.Element {
  const [problem, setProblem] = useState("");
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const [user = "", password = "", token = ""] = ["user", "password", "token"].map((name) =>
      String(form.get(name) ?? ""),
    );
    try {
      const form: LoginRequest = { user, password, ...(token ? { token: token.trim() } : {}) };
      await postJson<LoginAnswer>("api/login", form);
      dispatchEvent(new Event("gpuscope:login"));
    } catch (error) {
      const words = errorText(error);
      setProblem(error instanceof LoginError && !setup ? t("login.wrong") : words || t("login.wrong"));
    }
  };
  return (
    <form class="blank login" onSubmit={(event) => void submit(event)}>
      <h1>{setup ? t("login.first") : t("login.title")}</h1>
      {setup && <p class="soft">{t("login.first_help")}</p>}
      {setup && (
        <label>
          {t("login.token")} <input name="token" autocomplete="one-time-code" required />
        </label>
      )}
      <label>
        {t("login.user")} <input name="user" autocomplete="username" required />
      </label>
      <label>
        {t("login.password")}{" "}
        <input name="password" type="password" autocomplete={setup ? "new-password" : "current-password"} required />
      </label>
      {problem && (
        <p class="crit" role="alert">
          {problem}
        </p>
      )}
      <button type="submit">{setup ? t("login.create") : t("login.enter")}</button>
    </form>
  );
}

export async function logOut(): Promise<void> {
  await postJson<LogoutAnswer>("api/logout", {}).catch(() => undefined);
  dispatchEvent(new Event("gpuscope:login"));
}
