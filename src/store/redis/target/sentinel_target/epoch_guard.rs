//! Memory of the highest configuration epoch, to detect outdated reports.
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
    latest: Option<(u64, HostPort)>,
    /// Times of the first and the last older report by most sentinels, if the latest configuration
    /// was not reported since.
    older_reported: Option<(Instant, Instant)>,
}

impl EpochGuard {
    /// Returns true if the reports are older than the known configuration and name another master.
    /// Otherwise accepts them.
    pub(super) fn rejects_as_outdated(
        &mut self,
        named: &SentinelReports,
        sentinels: usize,
        now: Instant,
    ) -> bool {
        let Some((epoch, node)) = named.latest_master() else { return false };
        let later = self.latest.as_ref().filter(|(known, _)| epoch < *known);
        match later.map(|(known, master)| (*known, master == node)) {
            // Some sentinels may report no epoch. If most report a lower one, they were set up anew
            // and count from there.
            Some((known, true)) if named.count_older_than(known) <= sentinels / 2 => {
                self.older_reported = None;
                return false;
            }
            Some((_, true)) => {}
            Some((known, false)) => {
                if !self.yields_to_majority(named.count_older_than(known) > sentinels / 2, now) {
                    return true;
                }
                tracing::warn!("most sentinels report an older configuration, which is now used");
            }
            None => {}
        }
        (self.latest, self.older_reported) = (Some((epoch, node.clone())), None);
        false
    }

    /// Returns true if most sentinels have reported an older configuration for longer than
    /// `MAJORITY_OVERRIDE_AFTER`.
    fn yields_to_majority(&mut self, most: bool, now: Instant) -> bool {
        if !most {
            return false;
        }
        let goes_on = |(_, last): &(Instant, Instant)| now.duration_since(*last) <= MAX_REPORT_GAP;
        let since = self.older_reported.filter(goes_on).map_or(now, |(since, _)| since);
        self.older_reported = Some((since, now));
        now.duration_since(since) > MAJORITY_OVERRIDE_AFTER
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::{super::sentinel_reports::SentinelReport, *};

    const SECOND: Duration = Duration::from_secs(1);

    fn report(port: u16, epoch: u64) -> SentinelReport {
        let (own, epoch) = (port.to_string(), epoch.to_string());
        let facts = ["ip", "h", "port", &own, "flags", "master", "config-epoch", &epoch];
        let facts = facts.map(|text| Value::BulkString(text.as_bytes().to_vec()));
        SentinelReport::new(HostPort { host: "h".to_owned(), port }, Value::Array(facts.to_vec()))
    }

    /// Passes these reports, of three sentinels, to the guard.
    fn is_rejected(
        known: &mut EpochGuard,
        at: Instant,
        all: impl IntoIterator<Item = SentinelReport>,
    ) -> bool {
        let mut named = SentinelReports::default();
        all.into_iter().for_each(|told| named.add(told));
        known.rejects_as_outdated(&named, 3, at)
    }

    #[test]
    fn older_epoch_is_rejected() {
        let (mut known, now) = (EpochGuard::default(), Instant::now());
        assert!(!is_rejected(&mut known, now, []));
        assert!(!is_rejected(&mut known, now, [report(1, 5), report(1, 5), report(1, 5)]));
        assert!(!is_rejected(&mut known, now, [report(2, 6), report(1, 5), report(1, 5)]));
        assert!(is_rejected(&mut known, now, [report(1, 5), report(1, 5)]));
        assert!(is_rejected(&mut known, now + SECOND, [report(1, 5)]));
        assert!(!is_rejected(&mut known, now + SECOND, [report(1, 5), report(2, 6)]));
        // A manual change, and another failover.
        assert!(!is_rejected(&mut known, now + SECOND, [report(3, 6)]));
        assert!(is_rejected(&mut known, now + SECOND, [report(1, 5)]));
        assert!(!is_rejected(&mut known, now + SECOND, [report(1, 7)]));
        assert!(is_rejected(&mut known, now + SECOND, [report(3, 6), report(2, 6)]));
    }

    #[test]
    fn report_without_epoch_may_name_current_master() {
        let (mut known, now) = (EpochGuard::default(), Instant::now());
        let silent =
            |port| SentinelReport::new(HostPort { host: "h".to_owned(), port }, Value::Nil);
        assert!(!is_rejected(&mut known, now, [report(2, 6), silent(2)]));
        assert!(!is_rejected(&mut known, now, [silent(2)]));
        assert!(is_rejected(&mut known, now, [silent(1)]));
    }

    #[test]
    fn recreated_sentinels_restart_epochs() {
        let (mut known, now) = (EpochGuard::default(), Instant::now());
        assert!(!is_rejected(&mut known, now, [report(1, 6), report(1, 6), report(1, 6)]));
        assert!(!is_rejected(&mut known, now, [report(1, 0), report(1, 0)]));
        assert!(!is_rejected(&mut known, now, [report(2, 1), report(2, 1), report(2, 1)]));
        assert!(is_rejected(&mut known, now, [report(1, 0), report(1, 0)]));
    }

    #[test]
    fn older_epoch_of_majority_is_accepted_after_a_while() {
        let (mut known, start) = (EpochGuard::default(), Instant::now());
        assert!(!is_rejected(&mut known, start, [report(2, 6)]));
        let most = || [report(1, 5), report(1, 5)];
        for second in 1..=11 {
            assert!(is_rejected(&mut known, start + SECOND * second, most()), "{second}");
        }
        assert!(!is_rejected(&mut known, start + SECOND * 12, most()));
        // From here on this is the known configuration.
        assert!(!is_rejected(&mut known, start + SECOND * 12, [report(1, 5)]));
    }

    #[test]
    fn interrupted_majority_of_older_epoch_counts_from_start() {
        let (mut known, start) = (EpochGuard::default(), Instant::now());
        assert!(!is_rejected(&mut known, start, [report(2, 6)]));
        let most = || [report(1, 5), report(1, 5)];
        assert!(is_rejected(&mut known, start, most()));
        for second in 20..30 {
            assert!(is_rejected(&mut known, start + SECOND * second, most()), "{second}");
        }
        assert!(!is_rejected(
            &mut known,
            start + SECOND * 30,
            [report(2, 6), report(1, 5), report(1, 5)]
        ));
        for second in 31..41 {
            assert!(is_rejected(&mut known, start + SECOND * second, most()), "{second}");
        }
        // One of three sentinels is no majority.
        for second in 41..70 {
            assert!(is_rejected(&mut known, start + SECOND * second, [report(1, 5)]), "{second}");
        }
    }
}
