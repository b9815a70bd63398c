"use strict";
// The page: asks the API every few seconds and shows the answers. All text is set as text.

const DASH = "–", EVERY_MS = 3000, VM_PAGE = 100;
const $ = (id) => document.getElementById(id);
const state = { run: "", after: 0, vmLimit: VM_PAGE, busy: false, log: "", offset: 0, newest: -1, now: 0 };

const known = (v) => typeof v === "number" && Number.isFinite(v);
const count = (v) => (known(v) ? v.toLocaleString("en", { maximumFractionDigits: 2 }) : DASH);
const percent = (v) => (known(v) ? `${(100 * v).toFixed(1)} %` : DASH);
const short = (v) => (known(v) ? Number(v.toPrecision(3)).toLocaleString("en",
  { maximumSignificantDigits: 3 }) : DASH);

function dollars(v) {
  if (!known(v)) return DASH;
  const digits = Math.abs(v) >= 10 || v === 0 ? 2 : 4;
  return `$${v.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })}`;
}

const compact = (v) => v.toLocaleString("en", { notation: "compact", maximumSignificantDigits: 3 });
const dollarsAxis = (v) => `$${compact(v)}`;
const percentAxis = (v) => `${Math.round(100 * v)} %`;

function span(ms) {
  if (!known(ms)) return DASH;
  const s = ms / 1000;
  if (Math.abs(s) < 60) return `${s.toFixed(1)} s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(s % 60)} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

function size(bytes) {
  if (!known(bytes) || bytes <= 0) return DASH;
  const power = Math.min(4, Math.floor(Math.log10(bytes) / 3));
  return `${(bytes / 1000 ** power).toFixed(power ? 1 : 0)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

class SignedOut extends Error {}

async function ask(path, options = {}) {
  const headers = { "X-Surefoot": "1", ...(options.headers || {}) };
  const answer = await fetch(path, { ...options, headers, credentials: "same-origin" });
  if (answer.status === 401) throw new SignedOut();
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error ? body.error.message : `HTTP ${answer.status}`);
  return body;
}

const runPath = (rest = "") => `/api/v1/runs/${encodeURIComponent(state.run)}${rest}`;

// -- signing in ---------------------------------------------------------------------------------

async function signIn(kind, word) {
  const answer = await fetch("/session",
    { method: "POST", headers: { Authorization: `${kind} ${word}` }, credentials: "same-origin" });
  return answer.ok;
}

function showGate(why) {
  $("app").hidden = true;
  $("gate").hidden = false;
  if (why) $("gate-why").textContent = why;
}

async function begin() {
  const once = new URLSearchParams(location.hash.slice(1)).get("once");
  if (once) {
    history.replaceState(null, "", location.pathname);
    await signIn("Once", once);
  }
  $("signin").addEventListener("submit", async (event) => {
    event.preventDefault();
    const word = $("token").value.trim();
    $("token").value = "";
    if (await signIn("Bearer", word)) { $("gate").hidden = true; look(); }
    else showGate("This is not the server's token.");
  });
  $("runs").addEventListener("change", () => choose($("runs").value));
  $("more-vms").addEventListener("click", () => {
    state.vmLimit = Math.min(1000, state.vmLimit + 300);
    look();
  });
  $("stop").addEventListener("click", stopRun);
  $("leave").addEventListener("click", async () => {
    await fetch("/session", { method: "DELETE", headers: { "X-Surefoot": "1" } });
    showGate("Signed out.");
  });
  $("log-pick").addEventListener("change", () => openLog($("log-pick").value));
  await look();
  setInterval(() => { if (!document.hidden && !$("app").hidden) look(); }, EVERY_MS);
}

// -- one look -----------------------------------------------------------------------------------

async function look() {
  if (state.busy) return;
  state.busy = true;
  try {
    const listed = (await ask("/api/v1/runs")).runs;
    $("gate").hidden = true;
    $("app").hidden = false;
    showRuns(listed);
    if (state.run) await showRun();
    $("live").textContent = `as of ${new Date().toLocaleTimeString("en-GB")}`;
    document.body.dataset.looked = String(Number(document.body.dataset.looked || 0) + 1);
  } catch (error) {
    if (error instanceof SignedOut) showGate();
    else $("live").textContent = `not up to date: ${error.message}`;
  } finally {
    state.busy = false;
  }
}

function showRuns(listed) {
  const picker = $("runs");
  const before = [...picker.options].map((o) => o.value + o.textContent).join("\n");
  const texts = listed.map((r) => [r.run, `${r.name} · ${r.run} · ${r.state}`]);
  if (before !== texts.map(([value, text]) => value + text).join("\n")) {
    picker.replaceChildren(...texts.map(([value, text]) => {
      const option = el("option", "", text);
      option.value = value;
      return option;
    }));
  }
  if (!listed.some((r) => r.run === state.run)) {
    const wanted = new URLSearchParams(location.hash.slice(1)).get("run");
    const first = listed.find((r) => r.run === wanted) || listed[0];
    reset(first ? first.run : "");
  }
  picker.value = state.run;
  if (!listed.length) $("under").textContent = "There is no run in this folder yet.";
}

function reset(run) {
  Object.assign(state,
    { run, after: 0, vmLimit: VM_PAGE, log: "", offset: 0, newest: -1 });
  $("events").replaceChildren();
  $("log").textContent = "";
  $("log-panel").hidden = true;
}

function choose(run) {
  reset(run);
  history.replaceState(null, "", `#run=${encodeURIComponent(run)}`);
  look();
}

async function showRun() {
  const run = state.run;
  const [status, series, bill, forecast, plan, vms, events, saves, logs] = await Promise.all([
    ask(runPath()), ask(runPath("/series?points=240")), ask(runPath("/bill")),
    ask(runPath("/forecast")), ask(runPath("/plan")), ask(runPath(`/vms?limit=${state.vmLimit}`)),
    ask(runPath("/events?tail=200&loud=true")), ask(runPath("/checkpoints?limit=50")),
    ask(runPath("/logs"))]);
  if (run !== state.run) return;
  state.now = status.led_by ? Date.now() : status.last_event_ms ?? 0;
  showTop(status);
  showCards(status, bill);
  showBadput(status.figures);
  showBill(bill);
  showPlan(plan, forecast, status);
  showVms(vms);
  showSaves(saves, status.began_ms);
  showEvents(events, status.began_ms);
  showCharts(series, status);
  try {
    await showLogs(logs.logs);
  } catch (error) {
    if (error instanceof SignedOut) throw error;
    $("log").textContent = error.message;
  }
}

function showTop(s) {
  $("name").textContent = s.name;
  document.title = `${s.name}: ${s.state} · Surefoot`;
  const tone = { done: "good", "under way": "good", left: "warn", stopped: "warn",
    failed: "bad", refused: "bad" }[s.state] || "";
  $("state").textContent = s.state;
  $("state").className = `pill ${tone}`;
  const parts = [s.run, `${s.policy} policy`, `${count(s.num_nodes)} VMs asked for`];
  if (s.began_ms) parts.push(`began ${stamp(s.began_ms)}`);
  if (s.led_by) parts.push(`led by ${s.led_by}`);
  if (s.unreadable_events) parts.push(`${count(s.unreadable_events)} events cannot be read`);
  $("under").textContent = parts.join(" · ");
  $("reason").textContent = s.reason;
  $("reason").hidden = !s.reason;
  $("stop").hidden = !s.led_by;
  $("progress").hidden = !s.total_steps;
  if (s.total_steps) {
    const share = Math.min(100, 100 * s.step / s.total_steps);
    $("progress").firstElementChild.style.width = `${share}%`;
  }
}

function showCards(s, bill) {
  const f = s.figures, lost = f.preemptions || {};
  const held = s.vms.reduce((sum, row) => sum + Object.values(row)
    .filter(known).reduce((a, b) => a + b, 0), 0);
  const total = s.total_steps ? ` of ${count(s.total_steps)}` : "";
  const saved = known(s.last_checkpoint_ms) && known(s.last_event_ms)
    ? `, ${span(s.last_event_ms - s.last_checkpoint_ms)} before the newest event` : "";
  const toGo = known(s.eta_ms) ? ` · about ${span(s.eta_ms - s.last_event_ms)} to go` : "";
  const cards = [
    [bill.total_usd >= 1e5 ? `$${count(Math.round(bill.total_usd))}` : dollars(bill.total_usd), `spent${bill.is_estimate ? " so far (estimate)" : ""}`],
    [percent(bill.saving_same_work), "saved against on-demand, same work"],
    [percent(f.goodput), "of the time became kept training"],
    [count(s.step), `steps${total}${toGo}`],
    [known(s.steps_per_s) ? `${short(s.steps_per_s)}/s` : DASH, "training steps, now"],
    [`${count(s.members)} / ${count(held)}`, "VMs train / held"],
    [`${count(lost.notice)} + ${count(lost.silent)}`, "preemptions with and without notice"],
    [count(f.lost_steps), "steps lost"],
    [count(s.steps_safe), `newest safe step${saved}`],
    [known(s.loss) ? short(s.loss) : DASH, "training loss"],
  ];
  $("cards").replaceChildren(...cards.map(([value, label]) => {
    const card = el("div", "card");
    card.append(el("b", value.length > 9 ? "long" : "", value), el("span", "", label));
    return card;
  }));
}

function showBadput(f) {
  const parts = Object.entries({ "kept training": f.goodput, ...(f.badput || {}) })
    .map(([name, share]) => [name.replaceAll("_", " "), known(share) ? share : 0])
    .sort((a, b) => b[1] - a[1]);
  $("badput").replaceChildren(...parts.map(([name, share]) => {
    const row = el("div", name === "kept training" ? "bar kept" : "bar");
    const track = el("div"), fill = el("i");
    fill.style.width = `${Math.min(100, 100 * share)}%`;
    track.append(fill);
    row.append(el("span", "", name), track, el("b", "", percent(share)));
    return row;
  }));
}

function list(rows) {
  const found = el("dl");
  for (const [label, value] of rows) found.append(el("dt", "", label), el("dd", "", value));
  return found;
}

function showBill(b) {
  const rows = [
    ["spent", dollars(b.total_usd) + (b.is_estimate ? " (estimate)" : "")],
    ["spot", dollars(b.spot_usd)],
    ["on-demand", dollars(b.on_demand_usd)],
    ["budget", b.budget],
    ["on-demand, same time", dollars(b.on_demand_usd_same_time)],
    ["on-demand, same work", dollars(b.on_demand_usd_same_work)],
  ];
  if (b.unknown_price_s > 0) rows.push(["no known price", `${span(1000 * b.unknown_price_s)} of VM time`]);
  for (const pool of b.pools.slice(0, 12)) {
    rows.push([pool.pool, dollars((pool.spot_micro_usd + pool.on_demand_micro_usd) / 1e6)]);
  }
  $("bill").replaceChildren(list(rows));
}

function showPlan(p, f, s) {
  const told = f.pool_events || {};
  const rows = [
    ["reason", p.reason || DASH],
    ["decided", p.at_ms ? stamp(p.at_ms) : DASH],
    ["wants", p.targets.map((t) => `${t.vms} ${t.capacity} in ${t.pool}`).join("; ") || DASH],
    ["does", p.actions.join("; ") || "nothing now"],
    ["checkpoint every", known(f.interval_s) ? `${span(1000 * f.interval_s)} (${f.interval_reason})` : DASH],
    ["forecast", known(f.hazard_per_h) ? `${short(f.hazard_per_h)} losses an hour (${f.forecaster})` : DASH],
    ["losses expected", known(told.expected) ? `${short(told.expected)} (${told.low} to ${told.high})` : DASH],
    ["losses seen", count(told.seen)],
  ];
  const wanted = ["throughput.floor", "throughput.ceiling", "deadline", "budget.max_price"];
  for (const key of wanted) if (s.settings[key]) rows.push([key, s.settings[key]]);
  $("plan").replaceChildren(list(rows));
}

function fill(table, head, rows) {
  const top = el("thead"), line = el("tr"), body = el("tbody");
  line.append(...head.map(([text, kind]) => el("th", kind, text)));
  top.append(line);
  body.append(...rows.map((cells) => {
    const row = el("tr");
    row.append(...cells.map(([text, kind]) => el("td", kind, text)));
    return row;
  }));
  table.replaceChildren(top, body);
}

const ENDINGS = { preempted_notice: ["taken, as announced", "warn"],
  preempted_silent: ["taken without warning", "bad"], released: ["let go", "quiet"],
  launch_failed: ["did not start", "quiet"], boot_failed: ["did not come up", "bad"],
  user_code: ["script failed", "bad"], hardware: ["hardware failed", "bad"] };
const STATES = { ready: "good", noticed: "warn", starting: "quiet", requested: "quiet" };

function showVms(page) {
  $("vm-count").textContent = page.vms.length < page.total
    ? `${count(page.vms.length)} of ${count(page.total)}` : count(page.total);
  $("more-vms").hidden = page.vms.length >= page.total || state.vmLimit >= 1000;
  const head = [["VM"], ["state"], ["capacity"], ["pool"], ["id"], ["held", "n"], ["boot", "n"],
    ["speed", "n"], ["cost", "n"]];
  fill($("vms"), head, page.vms.map((v) => {
    const [text, tone] = v.ending ? ENDINGS[v.ending] || [v.ending, ""] : [v.state, STATES[v.state]];
    const until = v.gone_ms ?? state.now;
    const held = v.launched_ms ? span(Math.max(0, until - v.launched_ms)) : DASH;
    const boot = v.launched_ms && v.ready_ms ? span(v.ready_ms - v.launched_ms) : DASH;
    const cost = v.cost_usd === null ? "unknown"
      : dollars(v.cost_usd) + (v.unknown_price_s > 0 ? " +?" : "");
    return [[v.vm], [text + (v.clock_error ? " (clock error)" : ""), tone || ""],
      [v.capacity, v.capacity === "spot" ? "c-spot" : "c-demand"], [v.pool, "w"],
      [v.instance_id || DASH, "t"], [held, "n"], [boot, "n"], [short(v.speed), "n"], [cost, "n"]];
  }));
}

function showSaves(page, began) {
  $("save-count").textContent = count(page.total);
  const head = [["after", ""], ["step", "n"], ["result"], ["took", "n"], ["stall", "n"], ["size", "n"]];
  fill($("saves"), head, page.checkpoints.map((c) => [
    [span(c.at_ms - (began ?? c.at_ms)), "t"], [count(c.step), "n"],
    c.is_durable ? [c.is_emergency ? "emergency" : "durable", "good"] : [`void: ${c.message}`, "bad w"],
    [span(c.persist_ms), "n"], [known(c.stall_ms) ? `${count(c.stall_ms)} ms` : DASH, "n"],
    [size(c.size_bytes), "n"]]));
}

function showEvents(page, began) {
  if (page.newest === state.newest) return;
  state.newest = page.newest;
  const rows = [...page.events].reverse();
  fill($("events"), [["after"], ["what happened"]], rows.map((e) => [
    [span(e.at_ms - (began ?? e.at_ms)), "t"], [e.text, `w ${e.tone}`]]));
}

// -- charts -------------------------------------------------------------------------------------

function stacked(lower, upper) {
  const times = [...new Set([...lower, ...upper].map((p) => p[0]))].sort((a, b) => a - b);
  const at = (points) => { let i = 0, v = 0; return (t) => {
    while (i < points.length && points[i][0] <= t) v = points[i++][1] ?? 0;
    return v; }; };
  const a = at(lower), b = at(upper);
  const pairs = times.map((t) => [t, a(t), b(t)]);
  return [pairs.map(([t, v]) => [t, v]), pairs.map(([t, v, w]) => [t, v + w])];
}

function band(expected) {
  const edge = (mean, sign) => Math.max(0, mean + sign * 1.645 * Math.sqrt(mean));
  const rows = expected.filter((p) => p[1] !== null);
  return [rows.map(([t, v]) => [t, edge(v, 1)]), rows.map(([t, v]) => [t, edge(v, -1)])];
}

function showCharts(c, status) {
  const from = c.began_ms ?? c.now_ms, to = Math.max(c.now_ms, from);
  const [low, sum] = stacked(c.spot, c.on_demand);
  const [high90, low90] = band(c.losses_forecast);
  const asked = [[from, c.asked_vms], [to, c.asked_vms]];
  const marks = c.marks.map((m) => ({ at: m.at_ms, cls: m.kind === "notice" ? "c-warn" : "c-bad" }));
  const lastLoss = c.loss.length ? c.loss[c.loss.length - 1][0] : 0;
  const colours = ["c-spot", "c-demand", "c-dark", "c-bad", "c-good", "c-soft"];
  const charts = [
    { title: "Fleet: VMs held and training", marks, told: [["c-warn", "preempted with notice"],
      ["c-bad", "lost silently"]], format: count, least: c.asked_vms, series: [
      { name: "spot", cls: "c-spot", kind: "area", points: low },
      { name: "on-demand", cls: "c-demand", kind: "area", points: sum, low, told: c.on_demand },
      { name: "training", cls: "c-dark", kind: "step", points: c.training },
      { name: "asked for", cls: "c-soft", kind: "dash", points: asked }] },
    { title: "Bill against on-demand, US dollars", format: dollars, axis: dollarsAxis, series: [
      { name: "spent", cls: "c-spot", kind: "line", points: c.spent_usd },
      { name: `${count(c.asked_vms)} VMs on demand, same time`, cls: "c-demand", kind: "dash",
        points: c.on_demand_usd }] },
    { title: "Throughput, steps a second", format: short, series: [
      { name: "steps/s", cls: "c-dark", kind: "step", points: c.steps_per_s }] },
    { title: "Goodput: share of the time that was kept", format: percent, axis: percentAxis, least: 1, series: [
      { name: "goodput since the start", cls: "c-good", kind: "line", points: c.goodput }] },
    { title: "Losses: forecast against what happened", format: short, series: [
      { name: "9 of 10", cls: "c-bad", kind: "band", points: high90, low: low90 },
      { name: "forecast", cls: "c-bad", kind: "line", points: c.losses_forecast },
      { name: "seen", cls: "c-dark", kind: "step",
        points: c.losses_seen.length || c.losses_forecast.length ? [[from, 0], ...c.losses_seen] : [] }] },
    { title: "Checkpoint interval, seconds", format: short, series: [
      { name: "interval", cls: "c-dark", kind: "step", points: c.interval_s }] },
    { title: "Training loss by step", format: short, steps: true, zero: false, from: 0, to: lastLoss,
      series: [
        { name: "thrown away", cls: "c-bad", kind: "dots", points: c.former_loss },
        { name: "loss", cls: "c-spot", kind: "line", points: c.loss }] },
    { title: "Prices, US dollars per VM-hour", format: dollars, axis: dollarsAxis, series: c.prices.slice(0, 6).map((p, i) => (
      { name: `${p.pool} ${p.capacity}`, cls: colours[i], kind: "step", points: p.points })) },
  ];
  const host = $("charts");
  while (host.children.length < charts.length) host.append(el("article", "panel"));
  charts.forEach((chart, i) => drawChart(host.children[i], { from, to, ...chart }));
}

// -- logs and stopping --------------------------------------------------------------------------

async function showLogs(logs) {
  const rows = logs.filter((l) => l.size_bytes > 0).slice(0, 500);
  $("log-panel").hidden = !rows.length;
  if (!rows.length) return;
  const picker = $("log-pick"), key = (l) => JSON.stringify([l.instance_id, l.kind]);
  if ([...picker.options].map((o) => o.value).join() !== rows.map(key).join()) {
    picker.replaceChildren(...rows.map((l) => {
      const option = el("option", "", `${l.vm} (${l.instance_id}) ${l.kind}`);
      option.value = key(l);
      return option;
    }));
  }
  if (!state.log) { await openLog(key(rows[rows.length - 1])); return; }
  picker.value = state.log;
  await readLog();
}

async function openLog(chosen) {
  state.log = chosen;
  $("log-pick").value = chosen;
  $("log").textContent = "";
  state.offset = -1;
  await readLog();
}

async function readLog() {
  const [id, kind] = JSON.parse(state.log);
  const from = state.offset < 0 ? "tail=200" : `offset=${state.offset}`;
  const page = await ask(runPath(`/logs/${encodeURIComponent(id)}?kind=${kind}&${from}`));
  state.offset = page.next_offset;
  if (!page.lines.length) return;
  const log = $("log"), low = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  log.append(document.createTextNode(page.lines.join("\n") + "\n"));
  while (log.childNodes.length > 50) log.firstChild.remove();
  if (low) log.scrollTop = log.scrollHeight;
}

async function stopRun() {
  if (!confirm(`Stop ${state.run}? It saves once more, then all of its VMs end.`)) return;
  try {
    $("live").textContent = (await ask(runPath("/stop"), { method: "POST" })).did;
  } catch (error) {
    $("live").textContent = error.message;
  }
}

begin();
