// Why something was not done: the server's own sentence, or the role that it needs.
import type { JSX } from "preact";
import { t } from "../i18n";
import { useSession, type Role } from "../session";

export function Problem({ text }: { text: string }): JSX.Element | null {
  if (!text) return null;
  return (
    <p class="crit" role="alert">
      <bdi>{text}</bdi>
    </p>
  );
}

export function RoleNeeded({ role }: { role: Role }): JSX.Element {
  const have = useSession().role;
  return <p class="soft">{t("asked.forbidden", { role: t(`role.${role}`), have: t(`role.${have}`) })}</p>;
}
