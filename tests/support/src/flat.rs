//! What was measured each time that all were at rest, and whether any of it grows.
//!
//! A line is laid through what was measured, without the beginning, when caches fill: the median of the slopes
//! between any two samples, which a sample that was taken at a bad moment does not turn. What it rises by from first to
//! last is growth if it is more than [chance](Kind::chance), and more than what the samples lie beside the line. What was
//! not measured each time, or not often enough for a line, may have grown, and is told as what has.

use std::{collections::BTreeMap, time::Instant};

use crate::gauge::Gauge;

/// How many times as far as samples lie beside the line it has to rise.
const CLEAR: f64 = 3.0;

/// Fewer say nothing.
const FEWEST: usize = 3;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Resident, KiB.
    Memory,
    Files,
    Tasks,
    /// Of the store, that should not be there at rest.
    Keys,
    /// Of the store, in what stays for ever, KiB.
    Kept,
}

impl Kind {
    /// By how much it may rise in a run of any length. Over twenty minutes files and tasks of a process at rest were
    /// seen to differ by one at most (a socket that is just being replaced), memory by 1 MiB, and keys not at all. What
    /// leaks with each restart of the server leaks 25 times and more in that time, and what leaks with every hundredth
    /// request, hundreds of times.
    fn chance(self) -> f64 {
        match self {
            Self::Memory => 3.0 * 1024.0,
            Self::Files | Self::Tasks | Self::Keys => 4.0,
            Self::Kept => 64.0,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Memory => "KiB of memory",
            Self::Files => "files",
            Self::Tasks => "tasks",
            Self::Keys => "keys too many",
            Self::Kept => "KiB kept for ever",
        }
    }
}

/// What there is of a process of ours, of a server, and of what is stored.
pub(crate) const PROCESS: &[Kind] = &[Kind::Memory, Kind::Files, Kind::Tasks];
pub(crate) const SERVER: &[Kind] = &[Kind::Memory, Kind::Files];
pub(crate) const STORE: &[Kind] = &[Kind::Keys, Kind::Kept];

/// When, in seconds, and how much.
type Sample = (f64, f64);

/// What was seen each time that all were at rest.
#[derive(Debug)]
pub(crate) struct Samples {
    began: Instant,
    /// How often all were at rest.
    rests: usize,
    series: BTreeMap<(String, Kind), Vec<Sample>>,
}

impl Samples {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), rests: 0, series: BTreeMap::new() }
    }

    /// All are at rest, and are measured once more.
    pub(crate) fn rest(&mut self) {
        self.rests += 1;
    }

    pub(crate) fn add(&mut self, of: &str, kind: Kind, value: u64) {
        let at = self.began.elapsed().as_secs_f64();
        self.note(of, kind, (at, whole(value)));
    }

    pub(crate) fn gauge(&mut self, of: &str, gauge: Gauge) {
        let Gauge { memory, files, tasks } = gauge;
        for (kind, value) in [(Kind::Memory, memory), (Kind::Files, files), (Kind::Tasks, tasks)] {
            if let Some(value) = value {
                self.add(of, kind, value);
            }
        }
    }

    fn note(&mut self, of: &str, kind: Kind, sample: Sample) {
        self.series.entry((of.to_owned(), kind)).or_default().push(sample);
    }

    /// All of it, told; and what has grown, or was not measured although it was to be.
    pub(crate) fn compare(&self, expected: &[(&str, &[Kind])]) -> (Vec<String>, Vec<String>) {
        let (mut told, mut wrong) = (Vec::new(), self.missing(expected));
        for ((of, kind), samples) in &self.series {
            let values: Vec<_> = samples.iter().map(|(_, value)| format!("{value:.0}")).collect();
            let mut line = format!("{of}, {}: {}", kind.name(), values.join(" "));
            if let Some(Trend { rises, noise }) = Trend::of(settled(samples)) {
                line += &format!("; rises by {rises:.1}, noise {noise:.1}");
                if rises > kind.chance().max(CLEAR * noise) {
                    wrong.push(line.clone());
                }
            }
            told.push(line);
        }
        (told, wrong)
    }

    fn missing(&self, expected: &[(&str, &[Kind])]) -> Vec<String> {
        let each = |(of, kinds): &(&str, &[Kind])| {
            let of = (*of).to_owned();
            kinds.iter().map(move |kind| (of.clone(), *kind)).collect::<Vec<_>>()
        };
        let short = |(of, kind): (String, Kind)| {
            let name = format!("{of}, {}", kind.name());
            let samples = self.series.get(&(of, kind)).map_or(&[][..], Vec::as_slice);
            let (measured, rests) = (samples.len(), self.rests);
            if measured < rests {
                return Some(format!("{name}: measured {measured} times of {rests}"));
            }
            let few = settled(samples).len() < FEWEST;
            few.then(|| format!("{name}: measured {measured} times, too few to say anything"))
        };
        expected.iter().flat_map(each).filter_map(short).collect()
    }
}

/// Without the beginning.
fn settled(samples: &[Sample]) -> &[Sample] {
    let young = if samples.len() < 8 { 1 } else { samples.len() / 4 };
    samples.get(young..).unwrap_or_default()
}

/// How a line through samples goes.
struct Trend {
    /// From the first to the last of them.
    rises: f64,
    /// How far a sample lies beside it: as a standard deviation would be, but for the few that lie far away.
    noise: f64,
}

impl Trend {
    fn of(samples: &[Sample]) -> Option<Self> {
        let [(first, _), .., (last, _)] = samples else { return None };
        if samples.len() < FEWEST {
            return None;
        }
        let mut slopes = Vec::new();
        for (at, (x, y)) in samples.iter().enumerate() {
            slopes.extend(samples[at + 1..].iter().map(|(later, other)| (other - y) / (later - x)));
        }
        let slope = median(slopes)?;
        let base = median(samples.iter().map(|(x, y)| y - slope * x).collect())?;
        let beside = samples.iter().map(|(x, y)| (y - slope * x - base).abs());
        Some(Self { rises: slope * (last - first), noise: 1.48 * median(beside.collect())? })
    }
}

fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    let middle = all.len() / 2;
    let upper = all.get(middle)?;
    let lower = all.get(middle.checked_sub(1 - all.len() % 2)?)?;
    Some(f64::midpoint(*lower, *upper))
}

/// Far below where a number with a fraction is not exact.
fn whole(value: u64) -> f64 {
    u32::try_from(value).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of twenty minutes.
    fn grows(kind: Kind, of: impl Fn(f64) -> f64) -> bool {
        let mut samples = Samples::new();
        for minute in 0..20 {
            let minute = f64::from(minute);
            samples.note("one", kind, (60.0 * minute, of(minute)));
        }
        !samples.compare(&[]).1.is_empty()
    }

    fn odd(minute: f64) -> f64 {
        minute % 2.0
    }

    #[test]
    fn what_is_flat_is_good() {
        assert!(!grows(Kind::Files, |_| 20.0));
        assert!(!grows(Kind::Files, |n| 20.0 + odd(n)));
        assert!(!grows(Kind::Memory, |n| 40_000.0 + 1000.0 * (n % 3.0)));
        assert!(!grows(Kind::Keys, |_| 0.0));
    }

    /// Caches fill, and a sample is taken at a bad moment, the last one too.
    #[test]
    fn neither_the_beginning_nor_one_bad_moment_counts() {
        assert!(!grows(Kind::Memory, |n| 20_000.0 + 2000.0 * n.min(4.0)));
        assert!(!grows(Kind::Tasks, |n| if n > 18.5 { 60.0 } else { 9.0 }));
    }

    /// 33 restarts are the fewest; requests are 10,000 and more.
    #[test]
    fn what_leaks_with_each_restart_or_every_hundredth_request_grows() {
        for kind in [Kind::Files, Kind::Tasks, Kind::Keys] {
            assert!(grows(kind, |n| (9.0 + n * 33.0 / 20.0).floor() + odd(n)), "{kind:?}");
            assert!(grows(kind, |n| (9.0 + n * 100.0 / 20.0).floor() + 5.0 * odd(n)), "{kind:?}");
        }
        assert!(grows(Kind::Memory, |n| 40_000.0 + 400.0 * n + 1000.0 * odd(n)));
        assert!(grows(Kind::Kept, |n| 100.0 + 10.0 * n));
    }

    #[test]
    fn a_few_samples_are_enough() {
        let rising = |rise: f64| {
            let mut samples = Samples::new();
            for n in [0.0, 1.0, 2.0, 3.0, 4.0] {
                samples.note("one", Kind::Tasks, (n, 9.0 + rise * n));
            }
            samples.compare(&[]).1.len()
        };
        assert_eq!([rising(0.0), rising(1.0), rising(2.0)], [0, 0, 1]);
    }

    /// A gauge that was not answered, a process whose facts can't be read, one that nobody looked at, a run too short.
    #[test]
    fn what_was_not_measured_is_wrong() {
        let whole = Gauge { memory: Some(9000), files: Some(9), tasks: Some(9) };
        let wrong = |times: usize, last: Gauge, expected: &[(&str, &[Kind])]| {
            let mut samples = Samples::new();
            for time in 0..times {
                samples.rest();
                samples.gauge("one", if time + 1 == times { last } else { whole });
            }
            samples.compare(expected).1
        };
        let one = [("one", PROCESS)];
        assert_eq!(wrong(8, whole, &one), [""; 0]);
        let untold = wrong(8, Gauge { tasks: None, ..whole }, &one);
        assert_eq!(untold, ["one, tasks: measured 7 times of 8"]);
        assert_eq!(wrong(8, Gauge::default(), &one).len(), 3);
        assert_eq!(wrong(8, whole, &[("one", PROCESS), ("other", SERVER)]).len(), 2);
        assert_eq!(wrong(3, whole, &one).len(), 3, "too few");
        assert_eq!(Samples::new().compare(&one).1.len(), 3, "none at all");
        assert_eq!(Samples::new().compare(&[]).1, [""; 0], "nothing was to be measured");
    }
}
