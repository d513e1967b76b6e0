//! `SoakMeasurements`: samples taken whenever all processes were idle, and the check that none of them
//! grows.
//!
//! The trend of the samples, without the first ones while caches fill, is the median of the slopes
//! between any two samples; an outlier does not turn it. Its rise from the first to the last sample is
//! growth if it exceeds the `growth_tolerance` and the deviation of the samples. A resource
//! that was not measured each time, or not often enough for a trend, may have grown, and is reported as
//! growing.

use std::{collections::BTreeMap, time::Instant};

use crate::resource_usage::ResourceUsage;

/// How many times as far as samples lie beside the line it has to rise.
const NOISE_FACTOR: f64 = 3.0;

/// Fewer say nothing.
const MIN_SAMPLES: usize = 3;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MeasuredResource {
    /// Resident, KiB.
    Memory,
    FileDescriptors,
    Tasks,
    /// Of the store, that should not be there at rest.
    LeftoverKeys,
    /// Of the store, in what stays for ever, KiB.
    PermanentKeys,
}

impl MeasuredResource {
    /// By how much it may rise in a run of any length. Over twenty minutes files and tasks of a process at rest were
    /// seen to differ by one at most (a socket that is just being replaced), memory by 1 MiB, and keys not at all. What
    /// leaks with each restart of the server leaks 25 times and more in that time, and what leaks with every hundredth
    /// request, hundreds of times.
    fn growth_tolerance(self) -> f64 {
        match self {
            Self::Memory => 3.0 * 1024.0,
            Self::FileDescriptors | Self::Tasks | Self::LeftoverKeys => 4.0,
            Self::PermanentKeys => 64.0,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Memory => "KiB of memory",
            Self::FileDescriptors => "files",
            Self::Tasks => "tasks",
            Self::LeftoverKeys => "keys too many",
            Self::PermanentKeys => "KiB kept for ever",
        }
    }
}

/// What there is of a process of ours, of a server, and of what is stored.
pub(crate) const PROCESS_RESOURCES: &[MeasuredResource] =
    &[MeasuredResource::Memory, MeasuredResource::FileDescriptors, MeasuredResource::Tasks];
pub(crate) const SERVER_RESOURCES: &[MeasuredResource] =
    &[MeasuredResource::Memory, MeasuredResource::FileDescriptors];
pub(crate) const STORE_RESOURCES: &[MeasuredResource] =
    &[MeasuredResource::LeftoverKeys, MeasuredResource::PermanentKeys];

/// When, in seconds, and how much.
type TimedSample = (f64, f64);

/// What was seen each time that all were at rest.
#[derive(Debug)]
pub(crate) struct SoakMeasurements {
    started_at: Instant,
    /// How often all were at rest.
    rounds: usize,
    series: BTreeMap<(String, MeasuredResource), Vec<TimedSample>>,
}

impl SoakMeasurements {
    pub(crate) fn new() -> Self {
        Self { started_at: Instant::now(), rounds: 0, series: BTreeMap::new() }
    }

    /// All are at rest, and are measured once more.
    pub(crate) fn begin_round(&mut self) {
        self.rounds += 1;
    }

    pub(crate) fn record_value(&mut self, of: &str, kind: MeasuredResource, value: u64) {
        let at = self.started_at.elapsed().as_secs_f64();
        self.push_sample(of, kind, (at, to_f64(value)));
    }

    pub(crate) fn record_usage(&mut self, of: &str, gauge: ResourceUsage) {
        let ResourceUsage { memory_kib: memory, open_files: files, alive_tasks: tasks } = gauge;
        for (kind, value) in [
            (MeasuredResource::Memory, memory),
            (MeasuredResource::FileDescriptors, files),
            (MeasuredResource::Tasks, tasks),
        ] {
            if let Some(value) = value {
                self.record_value(of, kind, value);
            }
        }
    }

    fn push_sample(&mut self, of: &str, kind: MeasuredResource, sample: TimedSample) {
        self.series.entry((of.to_owned(), kind)).or_default().push(sample);
    }

    /// All of it, told; and what has grown, or was not measured although it was to be.
    pub(crate) fn find_growth(
        &self,
        expected: &[(&str, &[MeasuredResource])],
    ) -> (Vec<String>, Vec<String>) {
        let (mut told, mut wrong) = (Vec::new(), self.missing_measurements(expected));
        for ((of, kind), samples) in &self.series {
            let values: Vec<_> = samples.iter().map(|(_, value)| format!("{value:.0}")).collect();
            let mut line = format!("{of}, {}: {}", kind.label(), values.join(" "));
            if let Some(LinearTrend { total_rise: rises, noise }) =
                LinearTrend::fit(skip_warmup(samples))
            {
                line += &format!("; rises by {rises:.1}, noise {noise:.1}");
                if rises > kind.growth_tolerance().max(NOISE_FACTOR * noise) {
                    wrong.push(line.clone());
                }
            }
            told.push(line);
        }
        (told, wrong)
    }

    fn missing_measurements(&self, expected: &[(&str, &[MeasuredResource])]) -> Vec<String> {
        let each = |(of, kinds): &(&str, &[MeasuredResource])| {
            let of = (*of).to_owned();
            kinds.iter().map(move |kind| (of.clone(), *kind)).collect::<Vec<_>>()
        };
        let short = |(of, kind): (String, MeasuredResource)| {
            let name = format!("{of}, {}", kind.label());
            let samples = self.series.get(&(of, kind)).map_or(&[][..], Vec::as_slice);
            let (measured, rests) = (samples.len(), self.rounds);
            if measured < rests {
                return Some(format!("{name}: measured {measured} times of {rests}"));
            }
            let few = skip_warmup(samples).len() < MIN_SAMPLES;
            few.then(|| format!("{name}: measured {measured} times, too few to say anything"))
        };
        expected.iter().flat_map(each).filter_map(short).collect()
    }
}

/// Without the beginning.
fn skip_warmup(samples: &[TimedSample]) -> &[TimedSample] {
    let young = if samples.len() < 8 { 1 } else { samples.len() / 4 };
    samples.get(young..).unwrap_or_default()
}

/// How a line through samples goes.
struct LinearTrend {
    /// From the first to the last of them.
    total_rise: f64,
    /// How far a sample lies beside it: as a standard deviation would be, but for the few that lie far away.
    noise: f64,
}

impl LinearTrend {
    fn fit(samples: &[TimedSample]) -> Option<Self> {
        let [(first, _), .., (last, _)] = samples else { return None };
        if samples.len() < MIN_SAMPLES {
            return None;
        }
        let mut slopes = Vec::new();
        for (at, (x, y)) in samples.iter().enumerate() {
            slopes.extend(samples[at + 1..].iter().map(|(later, other)| (other - y) / (later - x)));
        }
        let slope = median(slopes)?;
        let base = median(samples.iter().map(|(x, y)| y - slope * x).collect())?;
        let beside = samples.iter().map(|(x, y)| (y - slope * x - base).abs());
        Some(Self { total_rise: slope * (last - first), noise: 1.48 * median(beside.collect())? })
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
fn to_f64(value: u64) -> f64 {
    u32::try_from(value).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said of twenty minutes.
    fn is_reported_as_growth(kind: MeasuredResource, of: impl Fn(f64) -> f64) -> bool {
        let mut samples = SoakMeasurements::new();
        for minute in 0..20 {
            let minute = f64::from(minute);
            samples.push_sample("one", kind, (60.0 * minute, of(minute)));
        }
        !samples.find_growth(&[]).1.is_empty()
    }

    fn alternating_value(minute: f64) -> f64 {
        minute % 2.0
    }

    #[test]
    fn constant_and_periodic_values_are_not_growth() {
        assert!(!is_reported_as_growth(MeasuredResource::FileDescriptors, |_| 20.0));
        assert!(!is_reported_as_growth(MeasuredResource::FileDescriptors, |n| 20.0
            + alternating_value(n)));
        assert!(!is_reported_as_growth(MeasuredResource::Memory, |n| 40_000.0 + 1000.0 * (n % 3.0)));
        assert!(!is_reported_as_growth(MeasuredResource::LeftoverKeys, |_| 0.0));
    }

    /// Caches fill, and a sample is taken at a bad moment, the last one too.
    #[test]
    fn warmup_and_single_outlier_are_not_growth() {
        assert!(
            !is_reported_as_growth(MeasuredResource::Memory, |n| 20_000.0 + 2000.0 * n.min(4.0))
        );
        assert!(!is_reported_as_growth(MeasuredResource::Tasks, |n| if n > 18.5 {
            60.0
        } else {
            9.0
        }));
    }

    /// 33 restarts are the fewest; requests are 10,000 and more.
    #[test]
    fn leak_per_restart_or_per_hundred_requests_is_growth() {
        for kind in [
            MeasuredResource::FileDescriptors,
            MeasuredResource::Tasks,
            MeasuredResource::LeftoverKeys,
        ] {
            assert!(
                is_reported_as_growth(kind, |n| (9.0 + n * 33.0 / 20.0).floor()
                    + alternating_value(n)),
                "{kind:?}"
            );
            assert!(
                is_reported_as_growth(kind, |n| (9.0 + n * 100.0 / 20.0).floor()
                    + 5.0 * alternating_value(n)),
                "{kind:?}"
            );
        }
        assert!(is_reported_as_growth(MeasuredResource::Memory, |n| 40_000.0
            + 400.0 * n
            + 1000.0 * alternating_value(n)));
        assert!(is_reported_as_growth(MeasuredResource::PermanentKeys, |n| 100.0 + 10.0 * n));
    }

    #[test]
    fn five_samples_suffice_to_detect_growth() {
        let rising = |rise: f64| {
            let mut samples = SoakMeasurements::new();
            for n in [0.0, 1.0, 2.0, 3.0, 4.0] {
                samples.push_sample("one", MeasuredResource::Tasks, (n, 9.0 + rise * n));
            }
            samples.find_growth(&[]).1.len()
        };
        assert_eq!([rising(0.0), rising(1.0), rising(2.0)], [0, 0, 1]);
    }

    /// A gauge that was not answered, a process whose facts can't be read, one that nobody looked at, a run too short.
    #[test]
    fn missing_measurements_are_reported() {
        let whole =
            ResourceUsage { memory_kib: Some(9000), open_files: Some(9), alive_tasks: Some(9) };
        let wrong =
            |times: usize, last: ResourceUsage, expected: &[(&str, &[MeasuredResource])]| {
                let mut samples = SoakMeasurements::new();
                for time in 0..times {
                    samples.begin_round();
                    samples.record_usage("one", if time + 1 == times { last } else { whole });
                }
                samples.find_growth(expected).1
            };
        let one = [("one", PROCESS_RESOURCES)];
        assert_eq!(wrong(8, whole, &one), [""; 0]);
        let untold = wrong(8, ResourceUsage { alive_tasks: None, ..whole }, &one);
        assert_eq!(untold, ["one, tasks: measured 7 times of 8"]);
        assert_eq!(wrong(8, ResourceUsage::default(), &one).len(), 3);
        assert_eq!(
            wrong(8, whole, &[("one", PROCESS_RESOURCES), ("other", SERVER_RESOURCES)]).len(),
            2
        );
        assert_eq!(wrong(3, whole, &one).len(), 3, "too few");
        assert_eq!(SoakMeasurements::new().find_growth(&one).1.len(), 3, "none at all");
        assert_eq!(
            SoakMeasurements::new().find_growth(&[]).1,
            [""; 0],
            "nothing was to be measured"
        );
    }
}
