//! Servers under one load, in alternating rounds.

use crate::{
    bench::Bench,
    contest::alternating,
    figure::{Figure, Line, short},
    http::{
        limited::{self, Kind, LEASE},
        load::{self, Load, Requests},
    },
    outcome::Outcome,
    process::Process,
    quiet, report,
    sent::Senders,
    stats::{median, paired_ratios},
};

/// Never spent in a window.
pub(super) const PLENTY: u32 = 1_000_000_000;

/// Spent long before a window begins, and large enough that connections meet at its end.
pub(super) const LITTLE: u32 = 100;

/// A load, whoever bears it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trial {
    /// Of the server, among which the connections are divided.
    pub(super) processes: usize,
    pub(super) connections: usize,
    pub(super) keys: usize,
    /// The quota of each key.
    pub(super) limit: u32,
}

/// What one window saw.
#[derive(Debug, Clone, Default)]
pub(super) struct Window {
    pub(super) load: Load,
    /// Commands sent per request.
    pub(super) sent: f64,
    /// What does not add up.
    pub(super) fault: Option<String>,
}

/// Everybody's windows, round by round.
pub(super) struct Contest {
    entries: Vec<(Kind, Vec<Window>)>,
    ping: Vec<Window>,
}

impl Contest {
    /// As the locks' contest: everybody once a round, the order turned round from one to the next, and
    /// a `PING` in each. A peer that cannot be run is named, and left out.
    pub(super) fn run(bench: &mut Bench, trial: &Trial, kinds: &[Kind]) -> Outcome<Self> {
        let mut lanes = Vec::new();
        for kind in kinds {
            let observed =
                bench.observe(|bench| window(bench, *kind, trial, &Senders::default()).map(drop));
            match observed {
                Ok(senders) => lanes.push((*kind, senders)),
                Err(error) if kind.is_ours() || kind.is_bare() => return Err(error),
                Err(error) => println!("  NOT RUN: {kind}: {error}"),
            }
        }
        let windows =
            alternating(bench.pace.rounds, lanes.len() + 1, |lane| match lanes.get(lane) {
                Some((kind, senders)) => window(bench, *kind, trial, senders),
                None => ping(bench),
            });
        let mut windows = windows?;
        let ping = windows.pop().unwrap_or_default();
        let kinds = lanes.into_iter().map(|(kind, _)| kind);
        let contest = Self { entries: kinds.zip(windows).collect(), ping };
        contest.print();
        bench.quiet &= quiet::check();
        for (kind, fault) in contest.faults() {
            report::fault(bench, kind.is_ours() || kind.is_bare(), fault);
        }
        Ok(contest)
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (Kind, &[Window])> {
        self.entries.iter().map(|(kind, windows)| (*kind, windows.as_slice()))
    }

    pub(super) fn windows(&self, kind: Kind) -> &[Window] {
        self.entries().find(|(one, _)| *one == kind).map_or(&[], |(_, windows)| windows)
    }

    pub(super) fn ping(&self) -> &[Window] {
        &self.ping
    }

    pub(super) fn ratios(&self, ours: Kind, theirs: Kind) -> Vec<f64> {
        let requests = |kind| rounds(self.windows(kind), |load| load.requests);
        paired_ratios(&requests(ours), &requests(theirs))
    }

    /// Requests beside another server, at least so many times as many.
    pub(super) fn figure(
        &self,
        id: &'static str,
        [ours, theirs]: [Kind; 2],
        line: f64,
        what: &str,
    ) -> Figure {
        Figure {
            id,
            what: format!("requests, {what}: {ours} / {theirs}"),
            unit: "x",
            line: Line::AtLeast(line),
            rounds: self.ratios(ours, theirs),
        }
    }

    fn print(&self) {
        let header =
            [report::MEDIANS, "requests/s", "x bare", "p50", "p99", "longest", "sent/request"];
        let mut rows = vec![header.map(str::to_owned).to_vec()];
        for (kind, windows) in self.entries() {
            let value = |value: fn(&Load) -> f64| short(median(&rounds(windows, value)));
            rows.push(vec![
                kind.to_string(),
                value(|load| load.requests),
                short(median(&self.ratios(kind, kind.bare()))),
                value(|load| load.p50),
                value(|load| load.p99),
                value(|load| load.longest),
                short(median(&sent(windows))),
            ]);
        }
        report::table(&rows);
        report::ping(&rounds(&self.ping, |ping| ping.p50), &rounds(&self.ping, |ping| ping.p99));
    }

    /// The first of each server's, and in how many windows something did not add up.
    fn faults(&self) -> Vec<(Kind, String)> {
        let faulty = self.entries().filter_map(|(kind, windows)| {
            let mut faults = windows.iter().filter_map(|window| window.fault.as_ref());
            let (first, more) = (faults.next()?, faults.count());
            Some((kind, format!("{kind}: {} windows do NOT ADD UP: {first}", more + 1)))
        });
        faulty.collect()
    }
}

pub(super) fn rounds(windows: &[Window], value: impl Fn(&Load) -> f64) -> Vec<f64> {
    windows.iter().map(|window| value(&window.load)).collect()
}

pub(super) fn sent(windows: &[Window]) -> Vec<f64> {
    windows.iter().map(|window| window.sent).collect()
}

/// One window of one server, with a load of its own, and an empty Redis.
fn window(bench: &mut Bench, kind: Kind, trial: &Trial, senders: &Senders) -> Outcome<Window> {
    bench.server.flush()?;
    let plan = limited::Plan { kind, redis: bench.server.port(), limit: trial.limit };
    let (mut servers, mut ports) = (Vec::new(), Vec::new());
    for _ in 0..trial.processes {
        let mut server = Process::start("limited", &plan)?;
        ports.push(server.line()?.parse()?);
        servers.push(server);
    }
    let plan = load::Plan {
        ports,
        connections: trial.connections,
        requests: Requests::Limited { keys: trial.keys },
        window: bench.pace.window,
    };
    let mut loads = [Process::start("load", &plan)?];
    let counted = bench.count(&mut loads)?;
    let load: Load = loads[0].json()?;
    let calls = senders.count(&counted.before, &counted.after);
    let ran = ran(&mut servers)?;
    let charged = if kind.is_ours() { Some(bench.server.charged()?) } else { None };
    let fault = fault(kind, trial, &load, ran, charged);
    let sent = calls.sent / (load.requests * bench.pace.window.as_secs_f64());
    Ok(Window { load, sent, fault })
}

/// How often the handlers of these servers ran.
fn ran(servers: &mut [Process]) -> Outcome<u64> {
    let mut sum = 0;
    for server in servers {
        server.tell("")?;
        sum += server.json::<u64>()?;
    }
    Ok(sum)
}

fn ping(bench: &mut Bench) -> Outcome<Window> {
    let ping = bench.ping()?;
    let load = Load { p50: ping.p50, p99: ping.p99, longest: ping.longest, ..Load::default() };
    Ok(Window { load, ..Window::default() })
}

/// Every request was answered, as often as it should, and by whom it should.
fn fault(kind: Kind, trial: &Trial, load: &Load, ran: u64, charged: Option<u64>) -> Option<String> {
    let Load { admitted, refused, .. } = *load;
    if let Some(first) = &load.first_failure {
        return Some(format!("{} connections FAILED, the first: {first}", load.failed));
    }
    if ran != admitted {
        return Some(format!("{admitted} answers of 200, but the handler ran {ran} times"));
    }
    if trial.limit == PLENTY || !kind.is_limited() {
        if refused > 0 {
            return Some(format!("{refused} requests were refused within the quota"));
        }
    } else if admitted != u64::from(trial.limit) {
        return Some(format!("{admitted} requests were admitted, the quota is {}", trial.limit));
    }
    // What each process may have leased of the one key, and not spent.
    let leased = if kind == Kind::LeasedAxum { u64::from(LEASE) } else { 0 };
    let most = admitted + leased * u64::try_from(trial.processes).unwrap_or(u64::MAX);
    match charged {
        Some(charged) if !(admitted..=most).contains(&charged) => {
            Some(format!("{admitted} requests were admitted, and {charged} charged in Redis"))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(kind: Kind, limit: u32, [admitted, refused]: [u64; 2], charged: u64) -> bool {
        let trial = Trial { processes: 1, connections: 1, keys: 1, limit };
        let load = Load { admitted, refused, ..Load::default() };
        fault(kind, &trial, &load, admitted, Some(charged)).is_some()
    }

    #[test]
    fn a_quota_is_spent_and_not_more() {
        assert!(!found(Kind::LayerAxum, LITTLE, [100, 7], 100));
        assert!(found(Kind::LayerAxum, LITTLE, [101, 7], 101));
        assert!(found(Kind::LayerAxum, LITTLE, [99, 7], 99));
        assert!(!found(Kind::BareAxum, LITTLE, [500, 0], 500));
    }

    #[test]
    fn what_was_admitted_was_charged() {
        assert!(!found(Kind::LayerAxum, PLENTY, [500, 0], 500));
        assert!(found(Kind::LayerAxum, PLENTY, [500, 0], 499));
        assert!(found(Kind::LayerAxum, PLENTY, [500, 0], 501));
        assert!(found(Kind::LayerAxum, PLENTY, [500, 1], 500));
        assert!(!found(Kind::LeasedAxum, PLENTY, [500, 0], 600));
        assert!(found(Kind::LeasedAxum, PLENTY, [500, 0], 601));
        assert!(found(Kind::LeasedAxum, PLENTY, [500, 0], 499));
    }

    #[test]
    fn every_200_is_the_handlers() {
        let trial = Trial { processes: 1, connections: 1, keys: 1, limit: PLENTY };
        let load = Load { admitted: 5, ..Load::default() };
        assert!(fault(Kind::Extensible, &trial, &load, 4, None).is_some());
        assert!(fault(Kind::Extensible, &trial, &load, 5, None).is_none());
        let load = Load { failed: 1, first_failure: Some("answered".into()), ..load };
        assert!(fault(Kind::Extensible, &trial, &load, 5, None).is_some());
    }
}
