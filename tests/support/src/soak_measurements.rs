//! `SoakMeasurements`: samples taken whenever all processes were idle, and the check that none of
//! them grows.
//!
//! The trend of the samples, without the first ones while caches fill, is the median of the slopes
//! between any two samples; an outlier does not turn it. Its rise from the first to the last sample
//! is growth if it exceeds the `growth_tolerance` and the deviation of the samples. A resource that
//! was not measured each time, or not often enough for a trend, may have grown, and is reported as
//! growing.

use std::{collections::BTreeMap, time::Instant};

use crate::resource_usage::ResourceUsage;

/// Growth must exceed this multiple of the noise.
const NOISE_FACTOR: f64 = 3.0;

/// Fewer samples show no trend.
const MIN_SAMPLES: usize = 3;

/// Measured resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MeasuredResource {
    /// Resident memory, KiB.
    Memory,
    FileDescriptors,
    Tasks,
    /// Keys of the store that should not exist when idle.
    LeftoverKeys,
    /// Memory of keys without expiry, KiB.
    PermanentKeys,
}

impl MeasuredResource {
    /// Tolerated rise in a run of any length. Over twenty minutes the files and tasks of an idle
    /// process differed by at most one (a socket during its replacement), memory by 1 MiB, and keys
    /// not at all. A leak per server restart is at least 25 in that time, and a leak per hundred
    /// requests hundreds.
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
            Self::PermanentKeys => "KiB without expiry",
        }
    }
}

/// Resources of a fleet process, of a server, and of the store.
pub(crate) const PROCESS_RESOURCES: &[MeasuredResource] =
    &[MeasuredResource::Memory, MeasuredResource::FileDescriptors, MeasuredResource::Tasks];
pub(crate) const SERVER_RESOURCES: &[MeasuredResource] =
    &[MeasuredResource::Memory, MeasuredResource::FileDescriptors];
pub(crate) const STORE_RESOURCES: &[MeasuredResource] =
    &[MeasuredResource::LeftoverKeys, MeasuredResource::PermanentKeys];

/// Time in seconds, and value.
type TimedSample = (f64, f64);

/// Samples taken when all processes were idle.
#[derive(Debug)]
pub(crate) struct SoakMeasurements {
    started_at: Instant,
    /// Number of measurements.
    rounds: usize,
    series: BTreeMap<(String, MeasuredResource), Vec<TimedSample>>,
}

impl SoakMeasurements {
    pub(crate) fn new() -> Self {
        Self { started_at: Instant::now(), rounds: 0, series: BTreeMap::new() }
    }

    /// Starts a round of measurements; all processes are idle.
    pub(crate) fn begin_round(&mut self) {
        self.rounds += 1;
    }

    pub(crate) fn record_value(&mut self, subject: &str, kind: MeasuredResource, value: u64) {
        let at = self.started_at.elapsed().as_secs_f64();
        self.push_sample(subject, kind, (at, to_f64(value)));
    }

    pub(crate) fn record_usage(&mut self, subject: &str, usage: ResourceUsage) {
        let ResourceUsage { memory_kib: memory, open_files: files, alive_tasks: tasks } = usage;
        for (kind, value) in [
            (MeasuredResource::Memory, memory),
            (MeasuredResource::FileDescriptors, files),
            (MeasuredResource::Tasks, tasks),
        ] {
            if let Some(value) = value {
                self.record_value(subject, kind, value);
            }
        }
    }

    fn push_sample(&mut self, subject: &str, kind: MeasuredResource, sample: TimedSample) {
        self.series.entry((subject.to_owned(), kind)).or_default().push(sample);
    }

    /// Returns all measurements as text, and those that have grown or are missing.
    pub(crate) fn find_growth(
        &self,
        expected: &[(&str, &[MeasuredResource])],
    ) -> (Vec<String>, Vec<String>) {
        let (mut lines, mut growth) = (Vec::new(), self.missing_measurements(expected));
        for ((subject, kind), samples) in &self.series {
            let values: Vec<_> = samples.iter().map(|(_, value)| format!("{value:.0}")).collect();
            let mut line = format!("{subject}, {}: {}", kind.label(), values.join(" "));
            if let Some(LinearTrend { total_rise, noise }) = LinearTrend::fit(skip_warmup(samples))
            {
                line += &format!("; rises by {total_rise:.1}, noise {noise:.1}");
                if total_rise > kind.growth_tolerance().max(NOISE_FACTOR * noise) {
                    growth.push(line.clone());
                }
            }
            lines.push(line);
        }
        (lines, growth)
    }

    fn missing_measurements(&self, expected: &[(&str, &[MeasuredResource])]) -> Vec<String> {
        let expand = |(subject, kinds): &(&str, &[MeasuredResource])| {
            let subject = (*subject).to_owned();
            kinds.iter().map(move |kind| (subject.clone(), *kind)).collect::<Vec<_>>()
        };
        let find_missing = |(subject, kind): (String, MeasuredResource)| {
            let name = format!("{subject}, {}", kind.label());
            let samples = self.series.get(&(subject, kind)).map_or(&[][..], Vec::as_slice);
            let (measured, rounds) = (samples.len(), self.rounds);
            if measured < rounds {
                return Some(format!("{name}: measured {measured} times of {rounds}"));
            }
            let has_too_few = skip_warmup(samples).len() < MIN_SAMPLES;
            has_too_few.then(|| format!("{name}: measured {measured} times, too few for a verdict"))
        };
        expected.iter().flat_map(expand).filter_map(find_missing).collect()
    }
}

/// Skips the samples of the warm-up.
fn skip_warmup(samples: &[TimedSample]) -> &[TimedSample] {
    let warmup_count = if samples.len() < 8 { 1 } else { samples.len() / 4 };
    samples.get(warmup_count..).unwrap_or_default()
}

/// Trend of the samples.
struct LinearTrend {
    /// Rise from the first to the last sample.
    total_rise: f64,
    /// Robust estimate of the standard deviation around the trend, from the median of the
    /// deviations.
    noise: f64,
}

impl LinearTrend {
    fn fit(samples: &[TimedSample]) -> Option<Self> {
        let [(first, _), .., (last, _)] = samples else { return None };
        if samples.len() < MIN_SAMPLES {
            return None;
        }
        let mut slopes = Vec::new();
        for (index, (x, y)) in samples.iter().enumerate() {
            slopes.extend(
                samples[index + 1..].iter().map(|(other_x, other_y)| (other_y - y) / (other_x - x)),
            );
        }
        let slope = median(slopes)?;
        let base = median(samples.iter().map(|(x, y)| y - slope * x).collect())?;
        let deviations = samples.iter().map(|(x, y)| (y - slope * x - base).abs());
        Some(Self {
            total_rise: slope * (last - first),
            noise: 1.48 * median(deviations.collect())?,
        })
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = values.get(middle)?;
    let lower = values.get(middle.checked_sub(1 - values.len() % 2)?)?;
    Some(f64::midpoint(*lower, *upper))
}

/// Exact for all measured values.
fn to_f64(value: u64) -> f64 {
    u32::try_from(value).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks samples of twenty minutes.
    fn is_reported_as_growth(kind: MeasuredResource, value_at: impl Fn(f64) -> f64) -> bool {
        let mut samples = SoakMeasurements::new();
        for minute in 0..20 {
            let minute = f64::from(minute);
            samples.push_sample("one", kind, (60.0 * minute, value_at(minute)));
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

    /// Caches fill in the warm-up, and a single sample, even the last one, is an outlier.
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

    /// At least 33 restarts and 10,000 requests occur in that time.
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

    /// Missing are: an unanswered query, unreadable process data, an unmeasured process, and a run
    /// that is too short.
    #[test]
    fn missing_measurements_are_reported() {
        let full_usage =
            ResourceUsage { memory_kib: Some(9000), open_files: Some(9), alive_tasks: Some(9) };
        let reported =
            |times: usize, last: ResourceUsage, expected: &[(&str, &[MeasuredResource])]| {
                let mut samples = SoakMeasurements::new();
                for time in 0..times {
                    samples.begin_round();
                    samples.record_usage("one", if time + 1 == times { last } else { full_usage });
                }
                samples.find_growth(expected).1
            };
        let expected_one = [("one", PROCESS_RESOURCES)];
        assert_eq!(reported(8, full_usage, &expected_one), [""; 0]);
        let missing = reported(8, ResourceUsage { alive_tasks: None, ..full_usage }, &expected_one);
        assert_eq!(missing, ["one, tasks: measured 7 times of 8"]);
        assert_eq!(reported(8, ResourceUsage::default(), &expected_one).len(), 3);
        assert_eq!(
            reported(8, full_usage, &[("one", PROCESS_RESOURCES), ("other", SERVER_RESOURCES)])
                .len(),
            2
        );
        assert_eq!(reported(3, full_usage, &expected_one).len(), 3, "too few");
        assert_eq!(SoakMeasurements::new().find_growth(&expected_one).1.len(), 3, "none at all");
        assert_eq!(
            SoakMeasurements::new().find_growth(&[]).1,
            [""; 0],
            "nothing was to be measured"
        );
    }
}
