// Who is logged in and what they may do. An open server has no login: whoever reaches it may do everything.
import { getJson } from "./api";
import type { SessionAnswer } from "./api-types";
import { live } from "./live";
import { createStore, useStore } from "./store";

export const ROLES = ["viewer", "editor", "admin"] as const;
export type Role = (typeof ROLES)[number];

export interface Session {
  open?: boolean;
  user?: string;
  via?: string;
  role: Role;
}

const session = createStore<Session>({ role: "viewer" });

async function learn(): Promise<void> {
  try {
    const answer = await getJson<SessionAnswer>("api/session");
    session.set({ ...answer, role: answer.role });
  } catch {
    session.set({ role: "viewer" }); // a server that does not know the path
  }
}

/** Asked for once the server lets us in, and again after each login. */
export function startSession(): void {
  let inside = false;
  live.subscribe(({ status }) => {
    if (status === "ok" && !inside) void learn();
    inside = status === "ok";
  });
}

export const useSession = (): Session => useStore(session);

/** Whether the person may do what needs this role; the server decides, the page only does not offer it. */
export const mayDo = (have: Role, needed: Role): boolean => ROLES.indexOf(have) >= ROLES.indexOf(needed);
