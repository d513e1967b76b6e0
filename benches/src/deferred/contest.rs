//! Queues under one load, in alternating rounds.

use std::collections::BTreeMap;

use super::stage::Stage;
use crate::{
    contest::alternating,
    figure::short,
    outcome::Outcome,
    queue::Kind,
    quiet, report,
    stats::{median, paired_ratios},
    summary::Summary,
};

/// What one window saw. Times in milliseconds, rates per second; what a load does not ask for is zero.
#[derive(Debug, Clone, Default)]
pub(super) struct Window {
    /// Jobs pushed, or run.
    pub(super) rate: f64,
    /// Jobs pushed, run and acknowledged, one after the other.
    pub(super) both: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) least: f64,
    pub(super) longest: f64,
    /// Before their time.
    pub(super) early: f64,
    /// The part of a core that Redis used.
    pub(super) core: f64,
    /// Redis's microseconds per job.
    pub(super) micros: f64,
    /// Commands per job, in scripts and outside.
    pub(super) run: f64,
    /// For each command: its calls, and their microseconds.
    pub(super) profile: BTreeMap<String, (u64, u64)>,
    /// What does not add up.
    pub(super) fault: Option<String>,
}

pub(super) type Column = (&'static str, fn(&Window) -> f64);

/// Everybody's windows, round by round.
pub(super) struct Contest {
    entries: Vec<(Kind, Vec<Window>)>,
    ping: Vec<Summary>,
}

impl Contest {
    /// As the locks' contest: everybody once a round, the order turned round from one to the next, and a
    /// `PING` in each. Who cannot be run is named, and left out of this load.
    pub(super) fn run(
        stage: &mut Stage,
        kinds: &[Kind],
        columns: &[Column],
        mut window: impl FnMut(&mut Stage, Kind) -> Outcome<Window>,
    ) -> Outcome<Self> {
        let kinds: Vec<Kind> = kinds.iter().copied().filter(|kind| stage.is_there(*kind)).collect();
        let mut ping = Vec::new();
        let rounds = stage.bench.pace.rounds;
        let mut out = Vec::new();
        let windows = alternating(rounds, kinds.len() + 1, |lane| {
            let Some(kind) = kinds.get(lane).copied() else {
                ping.push(stage.bench.ping()?);
                return Ok(Window::default());
            };
            if out.contains(&kind) {
                return Ok(Window::default());
            }
            Ok(window(stage, kind).unwrap_or_else(|error| {
                out.push(kind);
                stage.leave_out(kind, &error.to_string());
                Window::default()
            }))
        })?;
        let entries = kinds.into_iter().zip(windows);
        let entries = entries.filter(|(kind, _)| !out.contains(kind)).collect();
        let contest = Self { entries, ping };
        contest.print(columns);
        stage.bench.quiet &= quiet::check();
        contest.faults(stage);
        Ok(contest)
    }

    pub(super) fn windows(&self, kind: Kind) -> &[Window] {
        let entry = self.entries.iter().find(|(one, _)| *one == kind);
        entry.map_or(&[], |(_, windows)| windows.as_slice())
    }

    pub(super) fn rounds(&self, kind: Kind, value: impl Fn(&Window) -> f64) -> Vec<f64> {
        self.windows(kind).iter().map(value).collect()
    }

    /// The peer with the largest median, which is one for all rounds, among those that bear the load.
    pub(super) fn best(
        &self,
        value: impl Fn(&Window) -> f64,
        bears: impl Fn(Kind) -> bool,
    ) -> Option<Kind> {
        let median = |kind: &Kind| median(&self.rounds(*kind, &value));
        let there = Kind::PEERS.into_iter().filter(|kind| !self.windows(*kind).is_empty());
        there.filter(|kind| bears(*kind)).max_by(|a, b| median(a).total_cmp(&median(b)))
    }

    /// In each round.
    pub(super) fn ratios(
        &self,
        ours: Kind,
        theirs: Kind,
        value: impl Fn(&Window) -> f64,
    ) -> Vec<f64> {
        paired_ratios(&self.rounds(ours, &value), &self.rounds(theirs, &value))
    }

    /// The p50 of a `PING`, in milliseconds.
    pub(super) fn ping(&self) -> f64 {
        median(&self.ping.iter().map(|ping| ping.p50).collect::<Vec<_>>())
    }

    fn print(&self, columns: &[Column]) {
        let names = columns.iter().map(|(name, _)| (*name).to_owned());
        let mut rows: Vec<Vec<String>> =
            vec![[report::MEDIANS.to_owned()].into_iter().chain(names).collect()];
        for (kind, _) in &self.entries {
            let value = |(_, value): &Column| short(median(&self.rounds(*kind, value)));
            rows.push([kind.to_string()].into_iter().chain(columns.iter().map(value)).collect());
        }
        report::table(&rows);
        let ping = |value: fn(&Summary) -> f64| self.ping.iter().map(value).collect::<Vec<_>>();
        report::ping(&ping(|ping| ping.p50), &ping(|ping| ping.p99));
    }

    /// The first of each one's, and in how many windows something did not add up.
    fn faults(&self, stage: &mut Stage) {
        for (kind, windows) in &self.entries {
            let mut faults = windows.iter().filter_map(|window| window.fault.as_ref());
            if let Some(first) = faults.next() {
                let count = faults.count() + 1;
                let what = format!("{kind}: {count} windows do NOT ADD UP: {first}");
                report::fault(&mut stage.bench, kind.is_ours(), what);
            }
        }
    }
}
