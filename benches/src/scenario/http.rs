//! Figure 5, the layer: `LockLayer` over axum, 64 connections, no two of which want the same key.

use crate::{
    bench::Bench,
    contest::alternating,
    figure::{Figure, Line, short},
    http::{
        load::{self, Load, Requests},
        server::{self, Kind},
    },
    outcome::Outcome,
    process::Process,
    quiet, report,
    sent::Senders,
    stats::{median, paired_ratios, spread},
};

const CONNECTIONS: usize = 64;
/// The first three are judged; the others show what the lines are worth.
const KINDS: [Kind; 6] = [
    Kind::LockLayer,
    Kind::Bare,
    Kind::ByHand,
    Kind::InBackground,
    Kind::TwoPings,
    Kind::SharedPings,
];

/// What one window saw, and the commands sent per request.
struct Window {
    load: Load,
    sent: f64,
}

pub(super) fn run(bench: &mut Bench) -> Outcome<Vec<Figure>> {
    report::title("5. LockLayer over axum, 64 connections on keys of their own");
    let mut senders = Vec::new();
    for kind in KINDS {
        senders.push(bench.observe(|bench| window(bench, kind, &Senders::default()).map(drop))?);
    }
    let windows = alternating(bench.pace.rounds, KINDS.len() + 1, |lane| match KINDS.get(lane) {
        Some(kind) => window(bench, *kind, &senders[lane]),
        None => ping(bench),
    })?;
    print(&windows);
    bench.quiet &= quiet::check();
    for (kind, fault) in faults(&windows) {
        println!("  {fault}");
        if kind == Kind::LockLayer {
            bench.faults.push(fault);
        }
    }
    Ok(figures(&windows))
}

/// One window of one server, with a load of its own.
fn window(bench: &mut Bench, kind: Kind, senders: &Senders) -> Outcome<Window> {
    bench.server.flush()?;
    let plan = server::Plan { kind, port: bench.server.port() };
    let mut server = Process::start("server", &plan)?;
    let port = server.line()?.parse()?;
    let (requests, window) = (Requests::Orders, bench.pace.window);
    let plan = load::Plan { ports: vec![port], connections: CONNECTIONS, requests, window };
    let mut loads = [Process::start("load", &plan)?];
    let counted = bench.count(&mut loads)?;
    let load: Load = loads[0].json()?;
    let calls = senders.count(&counted.before, &counted.after);
    let sent = calls.sent / (load.requests * bench.pace.window.as_secs_f64());
    Ok(Window { load, sent })
}

fn ping(bench: &mut Bench) -> Outcome<Window> {
    let ping = bench.ping()?;
    let load = Load { p50: ping.p50, p99: ping.p99, longest: ping.longest, ..Load::default() };
    Ok(Window { load, sent: 0.0 })
}

fn rounds(windows: &[Window], value: impl Fn(&Load) -> f64) -> Vec<f64> {
    windows.iter().map(|window| value(&window.load)).collect()
}

fn print(windows: &[Vec<Window>]) {
    let header = [report::MEDIANS, "requests/s", "p50", "p99", "longest", "sent/request"];
    let mut rows = vec![header.map(str::to_owned).to_vec()];
    for (kind, windows) in KINDS.iter().zip(windows) {
        let value = |value: fn(&Load) -> f64| short(median(&rounds(windows, value)));
        let sent: Vec<f64> = windows.iter().map(|window| window.sent).collect();
        rows.push(vec![
            kind.to_string(),
            value(|load| load.requests),
            value(|load| load.p50),
            value(|load| load.p99),
            value(|load| load.longest),
            short(median(&sent)),
        ]);
    }
    report::table(&rows);
    let requests = |kind| {
        let lane = KINDS.iter().position(|known| *known == kind).unwrap_or_default();
        rounds(&windows[lane], |load| load.requests)
    };
    let theirs = requests(Kind::ByHand);
    for kind in [Kind::InBackground, Kind::TwoPings, Kind::SharedPings] {
        let ratios = paired_ratios(&requests(kind), &theirs);
        let (least, most) = spread(&ratios);
        let (all, least, most) = (short(median(&ratios)), short(least), short(most));
        println!("  requests, {kind} / {}: {all} x ({least}..{most})", Kind::ByHand);
    }
    let pings = &windows[KINDS.len()];
    report::ping(&rounds(pings, |load| load.p50), &rounds(pings, |load| load.p99));
}

/// Connections on which something else was answered than 200, or nothing.
fn faults(windows: &[Vec<Window>]) -> impl Iterator<Item = (Kind, String)> {
    KINDS.into_iter().zip(windows).filter_map(|(kind, windows)| {
        let first = windows.iter().find_map(|window| window.load.first_failure.as_ref())?;
        let failed: usize = windows.iter().map(|window| window.load.failed).sum();
        Some((kind, format!("{kind}: {failed} connections FAILED, the first: {first}")))
    })
}

fn figures(windows: &[Vec<Window>]) -> Vec<Figure> {
    let [ours, bare, by_hand] = [0, 1, 2].map(|lane: usize| &windows[lane]);
    let figure = |id, what: &str, line, theirs: &[Window], value: fn(&Load) -> f64| Figure {
        id,
        what: what.into(),
        unit: "x",
        line,
        rounds: paired_ratios(&rounds(ours, value), &rounds(theirs, value)),
    };
    let requests = |load: &Load| load.requests;
    let least = Line::AtLeast;
    vec![
        figure("5a", "requests, LockLayer / bare axum", least(0.45), bare, requests),
        figure("5b", "requests, LockLayer / rslock by hand", least(1.3), by_hand, requests),
        figure("5c", "p99, LockLayer / bare axum", Line::AtMost(4.0), bare, |load| load.p99),
    ]
}
