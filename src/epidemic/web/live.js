// Keeps an open page as it is on the server: takes events and exchanges parts of the page by their names.
"use strict";

const link = document.getElementById("link");
let source = null;
let digest = document.body.dataset.digest;
let again = 0;
let lost = "";

function say(state, text) {
  if (link.textContent !== text) link.textContent = text;
  link.className = "link " + state;
}

// What a visitor has opened or scrolled stays so.
function exchange(name, html) {
  const old = document.getElementById(name);
  if (!old) return false;
  const made = document.createElement("template");
  made.innerHTML = html;
  const fresh = made.content.firstElementChild;
  if (!fresh) return false;
  const opened = [...old.querySelectorAll("details")].map((d) => d.open);
  fresh.querySelectorAll("details").forEach((d, i) => { d.open = opened[i] || false; });
  const scrolled = [...old.querySelectorAll(".scroll")].map((s) => s.scrollLeft);
  const focus = old.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  old.replaceWith(fresh);
  fresh.querySelectorAll(".scroll").forEach((s, i) => { s.scrollLeft = scrolled[i] || 0; });
  if (focus) [...fresh.querySelectorAll("a")].find((a) => a.getAttribute("href") === focus)?.focus();
  return true;
}

function take(event) {
  const news = JSON.parse(event.data);
  const whole = news.parts.map(([name, html]) => exchange(name, html)).every(Boolean);
  document.title = news.title;
  digest = whole ? event.lastEventId : "";
  if (!whole) connect();
}

function connect() {
  clearTimeout(again);
  if (source) source.close();
  if (document.hidden) return;
  source = new EventSource(document.body.dataset.events + "?have=" + encodeURIComponent(digest));
  source.addEventListener("open", () => { lost = ""; say("on", "live"); });
  source.addEventListener("change", take);
  source.addEventListener("error", () => {
    source.close();
    lost = lost || new Date().toLocaleTimeString();
    say("off", "No connection to the server since " + lost + "; trying again");
    again = setTimeout(connect, 1500);
  });
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return connect();
  clearTimeout(again);
  if (source) source.close();
});
addEventListener("pagehide", () => source && source.close());
addEventListener("pageshow", (event) => event.persisted && connect());
connect();
