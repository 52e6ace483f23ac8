import { chromium } from "playwright-core";
const [,, out, url, w="1440", h="900", scheme="light", lang="en", wait="1500"] = process.argv;
const b = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--headless","--no-sandbox","--disable-gpu","--disable-quic","--no-first-run","--disable-background-networking","--disable-component-update","--disable-sync"] });
const p = await b.newPage({ viewport: { width:+w, height:+h }, colorScheme: scheme, locale: lang });
p.on("console", m => { if (m.type()==="error"||m.type()==="warning") console.log("console:", m.text()); });
p.on("pageerror", e => console.log("pageerror:", e.message));
await p.goto(url); await p.waitForTimeout(+wait);
await p.screenshot({ path: out, fullPage: process.env.FULL==="1" });
await b.close();
