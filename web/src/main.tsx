import { render } from "preact";
import { App } from "./app";
import { chooseLanguage, speak } from "./i18n";
import { startLive } from "./live";
import { startRouter } from "./router";
import { startSession } from "./session";
import { applyTheme, remembered } from "./settings";
import { startTimeline } from "./timeline";
import "uplot/dist/uPlot.min.css";
import "./styles/base.css";
import "./styles/fleet.css";
import "./styles/charts.css";
import "./styles/views.css";

applyTheme();
startRouter();
startSession();
startLive();
startTimeline();
// The first paint does not wait for a language that is not here yet.
void speak(chooseLanguage(remembered("language"), navigator.languages));
const root = document.getElementById("page");
if (root) render(<App />, root);
