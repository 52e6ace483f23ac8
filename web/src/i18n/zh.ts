import type { Language } from "./index";
import { en } from "./en";
export const language: Language = { words: en, panels: {} };
