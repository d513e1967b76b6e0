//! `SentinelReports`: reports of several sentinels about the master, and the choice among them.

use std::{collections::HashMap, time::Duration};

use redis::Value;

use super::super::store_url::HostPort;

/// Report of one sentinel about the master.
pub(super) struct SentinelReport {
    /// Address of the master that the sentinel gives to clients.
    master: HostPort,
    /// Configuration epoch; it grows with each failover.
    epoch: u64,
    /// The sentinel considers the master down.
    is_down: bool,
    /// The sentinel replaces this master. The successor may be promoted already, without the
    /// sentinel knowing it.
    is_failing_over: bool,
    pub(super) down_after: Option<Duration>,
}

impl SentinelReport {
    /// Builds a report from the master's address for clients and the reply to `SENTINEL MASTER`,
    /// which is empty if the user lacks the permission.
    pub(super) fn new(master: HostPort, properties: Value) -> Self {
        let properties: HashMap<String, String> =
            redis::from_redis_value(properties).unwrap_or_default();
        let property = |name: &str| properties.get(name).map(String::as_str);
        let number = |name: &str| property(name).and_then(|text| text.parse::<u64>().ok());
        let has_flag =
            |flag: &str| property("flags").is_some_and(|flags| flags.split(',').any(|f| f == flag));
        // During a failover, `SENTINEL MASTER` describes the old master, and the address for
        // clients is the successor's as soon as its promotion is known.
        let is_old = property("port").is_none_or(|port| port == master.port.to_string())
            && property("ip").is_none_or(|ip| ip == master.host);
        Self {
            epoch: number("config-epoch").unwrap_or(0),
            is_down: is_old && (has_flag("s_down") || has_flag("o_down")),
            is_failing_over: is_old && has_flag("failover_in_progress"),
            down_after: number("down-after-milliseconds").map(Duration::from_millis),
            master,
        }
    }
}

#[derive(Default)]
pub(super) struct SentinelReports(Vec<SentinelReport>);

impl SentinelReports {
    pub(super) fn add(&mut self, report: SentinelReport) {
        self.0.push(report);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if the master of the latest configuration is being replaced.
    pub(super) fn is_failing_over(&self) -> bool {
        let latest = self.latest_epoch();
        self.0.iter().any(|report| report.is_failing_over && Some(report.epoch) == latest)
    }

    fn latest_epoch(&self) -> Option<u64> {
        self.0.iter().map(|report| report.epoch).max()
    }

    /// Returns the master of the latest configuration; `None` while it is being replaced.
    ///
    /// Several masters can share an epoch after a manual reconfiguration. Then the one named most
    /// often wins, and among equals the first. Reports that consider their master down are ignored.
    pub(super) fn into_master(self) -> Option<HostPort> {
        let latest = self.latest_epoch()?;
        if self.is_failing_over() {
            return None;
        }
        self.most_named(|report| report.epoch == latest && !report.is_down).cloned()
    }

    /// Returns the latest epoch and its master, in any state.
    pub(super) fn latest_master(&self) -> Option<(u64, &HostPort)> {
        let latest = self.latest_epoch()?;
        Some((latest, self.most_named(|report| report.epoch == latest)?))
    }

    /// Returns the number of reports with an older epoch.
    pub(super) fn count_older_than(&self, epoch: u64) -> usize {
        self.0.iter().filter(|report| report.epoch < epoch).count()
    }

    /// Returns the master that the selected reports name most often; among equals, the first.
    fn most_named(&self, is_selected: impl Fn(&SentinelReport) -> bool) -> Option<&HostPort> {
        let masters =
            || self.0.iter().filter(|&report| is_selected(report)).map(|report| &report.master);
        let mentions = |node: &HostPort| masters().filter(|master| *master == node).count();
        masters().rev().max_by_key(|node| mentions(node))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(port: u16, epoch: u64, flags: &str) -> SentinelReport {
        report_naming(port, port, epoch, flags)
    }

    /// Report of a sentinel that names another master for clients than its own.
    fn report_naming(
        client_port: u16,
        described_port: u16,
        epoch: u64,
        flags: &str,
    ) -> SentinelReport {
        let (port, epoch) = (described_port.to_string(), epoch.to_string());
        let properties = ["ip", "h", "port", &port, "flags", flags, "config-epoch", &epoch];
        let properties = properties.map(|text| Value::BulkString(text.as_bytes().to_vec()));
        SentinelReport::new(
            HostPort { host: "h".to_owned(), port: client_port },
            Value::Array(properties.to_vec()),
        )
    }

    fn chosen_master(reports: impl IntoIterator<Item = SentinelReport>) -> Option<u16> {
        let mut added = SentinelReports::default();
        reports.into_iter().for_each(|report| added.add(report));
        added.into_master().map(|node| node.port)
    }

    #[test]
    fn highest_epoch_names_the_master() {
        let m = "master";
        assert_eq!(chosen_master([report(1, 4, m), report(2, 5, m), report(1, 4, m)]), Some(2));
        assert_eq!(chosen_master([report(2, 5, m), report(1, 4, m), report(1, 4, m)]), Some(2));
        assert_eq!(chosen_master([]), None);
    }

    #[test]
    fn equal_epochs_are_decided_by_majority_then_order() {
        let m = "master";
        assert_eq!(chosen_master([report(1, 0, m), report(2, 0, m), report(2, 0, m)]), Some(2));
        assert_eq!(chosen_master([report(1, 0, m), report(2, 0, m)]), Some(1));
    }

    #[test]
    fn master_in_failover_is_not_chosen() {
        let (m, leads) = ("master", "master,failover_in_progress");
        assert_eq!(chosen_master([report(1, 4, m), report(1, 4, m), report(1, 4, leads)]), None);
        // The successor is known to be promoted: its configuration has its own epoch already.
        assert_eq!(
            chosen_master([report(1, 4, m), report(1, 4, m), report_naming(2, 1, 5, leads)]),
            Some(2)
        );
        // A sentinel that missed the failover, and is about to replace the old master.
        assert_eq!(chosen_master([report(1, 4, leads), report(2, 5, m)]), Some(2));
    }

    #[test]
    fn master_reported_down_by_all_is_not_chosen() {
        let down = "s_down,o_down,master";
        assert_eq!(chosen_master([report(1, 4, down), report(1, 4, down)]), None);
        assert_eq!(chosen_master([report(1, 4, down), report(1, 4, "master")]), Some(1));
        assert_eq!(
            chosen_master([report_naming(2, 1, 5, "s_down,master,failover_in_progress")]),
            Some(2)
        );
    }

    #[test]
    fn report_without_details_names_its_master() {
        let node = || HostPort { host: "h".to_owned(), port: 1 };
        let refused = SentinelReport::new(node(), Value::Nil);
        assert!(refused.down_after.is_none());
        assert_eq!(chosen_master([refused]), Some(1));
    }
}
