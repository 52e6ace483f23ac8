// The tests over the demo server in one process, so that they share one Chromium.
import "./views.test.mjs";
import "./more-views.test.mjs";
import "./numbers.test.mjs";
import "./trouble.test.mjs";
import "./states.test.mjs";
