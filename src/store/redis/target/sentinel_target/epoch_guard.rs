//! `EpochGuard`: memory of the highest configuration epoch, which rejects outdated reports.
//!
//! The sentinel that reported this epoch may answer late or be unavailable. The reports of the
//! others then describe an earlier state.

use std::time::Duration;

use tokio::time::Instant;

use super::{super::store_url::HostPort, sentinel_reports::SentinelReports};

/// Time for which most sentinels must report an older configuration until it is accepted.
///
/// A replaced master accepts writes until any sentinel reconfigures it, eight seconds after its
/// successor. Knowledge of one sentinel reaches all connected ones within two seconds. So after
/// this time, either the sentinel with the newer configuration was lost before it informed another
/// one, or the sentinels were set up anew.
const MAJORITY_OVERRIDE_AFTER: Duration = Duration::from_secs(10);

/// Longest gap between two reports of one series: other reports may have been missed in a longer
/// one.
const MAX_REPORT_GAP: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct EpochGuard {
    /// Highest epoch, and the master of that configuration.
    latest: Option<(u64, HostPort)>,
    /// Older reports by most sentinels, if the latest configuration was not reported since.
    majority_reports: Option<ReportSeries>,
}

/// Series of older reports by most sentinels, without a gap of more than `MAX_REPORT_GAP`.
#[derive(Clone, Copy)]
struct ReportSeries {
    first_at: Instant,
    last_at: Instant,
}

impl EpochGuard {
    /// Returns true if the reports are older than the known configuration and name another master.
    /// Otherwise accepts them.
    pub(super) fn rejects_as_outdated(
        &mut self,
        reports: &SentinelReports,
        sentinel_count: usize,
        now: Instant,
    ) -> bool {
        let Some((epoch, master)) = reports.latest_master() else { return false };
        let newer = self.latest.as_ref().filter(|(latest, _)| epoch < *latest);
        match newer.map(|(latest, latest_master)| (*latest, latest_master == master)) {
            // Some sentinels may report no epoch. If most report a lower one, they were set up anew
            // and count from there.
            Some((latest, true)) if reports.count_older_than(latest) <= sentinel_count / 2 => {
                self.majority_reports = None;
                return false;
            }
            Some((_, true)) => {}
            Some((latest, false)) => {
                let is_majority = reports.count_older_than(latest) > sentinel_count / 2;
                if !self.yields_to_majority(is_majority, now) {
                    return true;
                }
                tracing::warn!("most sentinels report an older configuration, which is now used");
            }
            None => {}
        }
        (self.latest, self.majority_reports) = (Some((epoch, master.clone())), None);
        false
    }

    /// Returns true if most sentinels have reported an older configuration for longer than
    /// `MAJORITY_OVERRIDE_AFTER`.
    fn yields_to_majority(&mut self, is_majority: bool, now: Instant) -> bool {
        if !is_majority {
            return false;
        }
        let continues =
            |series: &ReportSeries| now.duration_since(series.last_at) <= MAX_REPORT_GAP;
        let series = self.majority_reports.filter(continues);
        let first_at = series.map_or(now, |series| series.first_at);
        self.majority_reports = Some(ReportSeries { first_at, last_at: now });
        now.duration_since(first_at) > MAJORITY_OVERRIDE_AFTER
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::{super::sentinel_reports::SentinelReport, *};

    const SECOND: Duration = Duration::from_secs(1);

    fn report(port: u16, epoch: u64) -> SentinelReport {
        let (port_text, epoch) = (port.to_string(), epoch.to_string());
        let properties = ["ip", "h", "port", &port_text, "flags", "master", "config-epoch", &epoch];
        let properties = properties.map(|text| Value::BulkString(text.as_bytes().to_vec()));
        SentinelReport::new(
            HostPort { host: "h".to_owned(), port },
            Value::Array(properties.to_vec()),
        )
    }

    /// Passes these reports, of three sentinels, to the guard.
    fn is_rejected(
        guard: &mut EpochGuard,
        now: Instant,
        reports: impl IntoIterator<Item = SentinelReport>,
    ) -> bool {
        let mut added = SentinelReports::default();
        reports.into_iter().for_each(|report| added.add(report));
        guard.rejects_as_outdated(&added, 3, now)
    }

    #[test]
    fn older_epoch_is_rejected() {
        let (mut guard, now) = (EpochGuard::default(), Instant::now());
        assert!(!is_rejected(&mut guard, now, []));
        assert!(!is_rejected(&mut guard, now, [report(1, 5), report(1, 5), report(1, 5)]));
        assert!(!is_rejected(&mut guard, now, [report(2, 6), report(1, 5), report(1, 5)]));
        assert!(is_rejected(&mut guard, now, [report(1, 5), report(1, 5)]));
        assert!(is_rejected(&mut guard, now + SECOND, [report(1, 5)]));
        assert!(!is_rejected(&mut guard, now + SECOND, [report(1, 5), report(2, 6)]));
        // A manual change, and another failover.
        assert!(!is_rejected(&mut guard, now + SECOND, [report(3, 6)]));
        assert!(is_rejected(&mut guard, now + SECOND, [report(1, 5)]));
        assert!(!is_rejected(&mut guard, now + SECOND, [report(1, 7)]));
        assert!(is_rejected(&mut guard, now + SECOND, [report(3, 6), report(2, 6)]));
    }

    #[test]
    fn report_without_epoch_may_name_current_master() {
        let (mut guard, now) = (EpochGuard::default(), Instant::now());
        let without_epoch =
            |port| SentinelReport::new(HostPort { host: "h".to_owned(), port }, Value::Nil);
        assert!(!is_rejected(&mut guard, now, [report(2, 6), without_epoch(2)]));
        assert!(!is_rejected(&mut guard, now, [without_epoch(2)]));
        assert!(is_rejected(&mut guard, now, [without_epoch(1)]));
    }

    #[test]
    fn recreated_sentinels_restart_epochs() {
        let (mut guard, now) = (EpochGuard::default(), Instant::now());
        assert!(!is_rejected(&mut guard, now, [report(1, 6), report(1, 6), report(1, 6)]));
        assert!(!is_rejected(&mut guard, now, [report(1, 0), report(1, 0)]));
        assert!(!is_rejected(&mut guard, now, [report(2, 1), report(2, 1), report(2, 1)]));
        assert!(is_rejected(&mut guard, now, [report(1, 0), report(1, 0)]));
    }

    #[test]
    fn older_epoch_of_majority_is_accepted_after_a_while() {
        let (mut guard, start) = (EpochGuard::default(), Instant::now());
        assert!(!is_rejected(&mut guard, start, [report(2, 6)]));
        let older_majority = || [report(1, 5), report(1, 5)];
        for second in 1..=11 {
            assert!(is_rejected(&mut guard, start + SECOND * second, older_majority()), "{second}");
        }
        assert!(!is_rejected(&mut guard, start + SECOND * 12, older_majority()));
        // From here on this is the known configuration.
        assert!(!is_rejected(&mut guard, start + SECOND * 12, [report(1, 5)]));
    }

    #[test]
    fn interrupted_majority_of_older_epoch_counts_from_start() {
        let (mut guard, start) = (EpochGuard::default(), Instant::now());
        assert!(!is_rejected(&mut guard, start, [report(2, 6)]));
        let older_majority = || [report(1, 5), report(1, 5)];
        assert!(is_rejected(&mut guard, start, older_majority()));
        for second in 20..30 {
            assert!(is_rejected(&mut guard, start + SECOND * second, older_majority()), "{second}");
        }
        assert!(!is_rejected(
            &mut guard,
            start + SECOND * 30,
            [report(2, 6), report(1, 5), report(1, 5)]
        ));
        for second in 31..41 {
            assert!(is_rejected(&mut guard, start + SECOND * second, older_majority()), "{second}");
        }
        // One of three sentinels is no majority.
        for second in 41..70 {
            assert!(is_rejected(&mut guard, start + SECOND * second, [report(1, 5)]), "{second}");
        }
    }
}
