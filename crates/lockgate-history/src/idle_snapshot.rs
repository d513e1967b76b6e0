//! Leftovers of an idle store (N1), and the cost of the operations (N2).
//!
//! A history ends with an [`IdleSnapshot`] of the store, taken when all processes have released
//! their locks. Then:
//!
//! - there are no holders, queues or indexes of pending work ([`IdleSnapshot::keys`])
//! - there are no more subscriptions and sockets than the processes have by design
//! - every channel belongs to a living process or is one of the common ones
//! - no process makes a call, except for the heartbeats of workers

use super::{Guarantee, Violation};

/// Kinds of keys of locks, queues and indexes of pending work.
const TRANSIENT_KINDS: [&str; 8] = ["h", "l", "q", "g", "due", "late", "exp", "lease"];

/// Kinds of keys that stay forever by design, a few for each shard. The expiry of a watch and of
/// workers is in the value.
const PERMANENT_KINDS: [&str; 6] = ["f", "limits", "meta", "paused", "watch", "workers"];

/// Names of current counts in the `f` hash of a shard.
const LIVE_COUNTERS: [&str; 3] = ["jobs", "bytes", "late"];

/// A key of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftoverKey {
    /// Name of the key.
    pub name: String,
    /// True if the key has an expiry (`PTTL` other than -1).
    pub has_expiry: bool,
    /// The numeric entries of the hash `{s}:f` of a shard; empty for other keys.
    pub counters: Vec<(String, i64)>,
}

/// State of an idle store.
#[derive(Debug, Clone, Default)]
pub struct IdleSnapshot {
    /// All keys of the namespace.
    pub keys: Vec<LeftoverKey>,
    /// True if only locks were used. Then only keys that stay by design may be left, with or
    /// without an expiry.
    pub locks_only: bool,
    /// Clients of the server with a subscription.
    pub subscribed_clients: u64,
    /// Subscribed channels with their number of subscribers (`PUBSUB CHANNELS` and `SHARDCHANNELS`,
    /// with `NUMSUB`): one channel of each process, to which it alone subscribes, and the common
    /// ones.
    pub subscribed_channels: Vec<(String, u64)>,
    /// Clients of the server, except the one that took this snapshot.
    pub clients: u64,
    /// Most clients of a process at rest: its sockets, and one for its subscription. `None` skips
    /// the check of the clients.
    pub max_clients_per_process: Option<u64>,
    /// Number of living processes.
    pub live_processes: u64,
    /// Script calls during an idle period, without the heartbeats.
    pub script_calls: u64,
    /// Heartbeats of workers during that period.
    pub heartbeats: u64,
    /// Most heartbeats that are allowed.
    pub max_heartbeats: u64,
}

impl IdleSnapshot {
    /// Checks N1.
    #[must_use]
    pub fn check(&self) -> Vec<Violation> {
        let mut descriptions: Vec<_> =
            self.keys.iter().flat_map(|key| describe_leftovers(key, self.locks_only)).collect();
        let Self {
            live_processes,
            subscribed_clients,
            clients,
            script_calls,
            heartbeats,
            max_heartbeats,
            ..
        } = *self;
        if subscribed_clients > live_processes {
            descriptions.push(format!(
                "{subscribed_clients} subscribed clients for {live_processes} processes, at most one \
                 each"
            ));
        }
        let channels = &self.subscribed_channels;
        descriptions
            .extend(channels.iter().filter_map(|channel| self.describe_extra_subscribers(channel)));
        let is_process_channel = |(name, _): &&(String, u64)| key_kind(name) == "w";
        let process_channels = channels.iter().filter(is_process_channel).count() as u64;
        if process_channels > live_processes {
            descriptions.push(format!(
                "{process_channels} channels for {live_processes} processes, at most one each"
            ));
        }
        let max_clients =
            self.max_clients_per_process.map(|max| max.saturating_mul(live_processes));
        if let Some(max_clients) = max_clients.filter(|max| clients > *max) {
            descriptions.push(format!(
                "{clients} clients, at most {max_clients} for {live_processes} processes"
            ));
        }
        if script_calls > 0 {
            descriptions.push(format!("{script_calls} script calls while idle, at most 0"));
        }
        if heartbeats > max_heartbeats {
            descriptions
                .push(format!("{heartbeats} heartbeats while idle, at most {max_heartbeats}"));
        }
        let violation = |description: String| Violation::new(Guarantee::N1, description);
        descriptions.into_iter().map(violation).collect()
    }

    /// Describes a channel with more subscribers than allowed; a channel that no living process
    /// uses may have none.
    fn describe_extra_subscribers(&self, (name, subscribers): &(String, u64)) -> Option<String> {
        let max_subscribers = match key_kind(name) {
            "w" => 1,
            "e" | "c" => self.live_processes,
            _ => 0,
        };
        (*subscribers > max_subscribers).then(|| {
            format!("{subscribers} subscribers of channel {name}, at most {max_subscribers}")
        })
    }
}

fn describe_leftovers(leftover: &LeftoverKey, locks_only: bool) -> Vec<String> {
    let LeftoverKey { name, has_expiry, counters } = leftover;
    let kind = key_kind(name);
    if TRANSIENT_KINDS.contains(&kind) || (locks_only && !PERMANENT_KINDS.contains(&kind)) {
        return vec![format!("leftover key {name}")];
    }
    if !PERMANENT_KINDS.contains(&kind) && !has_expiry {
        return vec![format!("leftover key without an expiry, {name}")];
    }
    let is_live = |(counter, _): &&(String, i64)| LIVE_COUNTERS.contains(&&**counter);
    let leftover_counts = counters.iter().filter(is_live).filter(|(_, count)| *count != 0);
    let describe =
        |(counter, count): &(String, i64)| format!("leftover count {counter}={count} in {name}");
    leftover_counts.map(describe).collect()
}

/// Returns the kind of a key `lg:1:<namespace>:{<shard>}:<kind>[:<name>]`, or of one without a
/// shard.
fn key_kind(key: &str) -> &str {
    let kind_and_name = match key.split_once("}:") {
        Some((_, kind_and_name)) => kind_and_name,
        None => key.splitn(4, ':').nth(3).unwrap_or(key),
    };
    kind_and_name.split(':').next().unwrap_or(kind_and_name)
}

/// Checks N2: at most `ceiling` commands for each acquisition or request.
#[must_use]
pub fn check_command_cost(commands: u64, acquisitions: u64, ceiling: u64) -> Option<Violation> {
    let max_commands = acquisitions.max(1).saturating_mul(ceiling);
    let description =
        format!("{commands} commands for {acquisitions} acquisitions, at most {max_commands}");
    (commands > max_commands).then(|| Violation::new(Guarantee::N2, description))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leftover_key(name: &str, has_expiry: bool) -> LeftoverKey {
        LeftoverKey { name: name.to_owned(), has_expiry, counters: Vec::new() }
    }

    fn idle_snapshot_with_keys(keys: Vec<LeftoverKey>) -> IdleSnapshot {
        IdleSnapshot { keys, subscribed_clients: 2, live_processes: 2, ..IdleSnapshot::default() }
    }

    #[test]
    fn permanent_and_expiring_keys_are_allowed() {
        let mut shard_counters = leftover_key("lg:1:ns:{3}:f", false);
        shard_counters.counters = vec![("jobs".into(), 0), ("fence".into(), 7)];
        let keys = vec![
            shard_counters,
            leftover_key("lg:1:ns:meta", false),
            leftover_key("lg:1:ns:{3}:watch:x", false),
            leftover_key("lg:1:ns:{3}:r:1-ab", true),
        ];
        assert_eq!(idle_snapshot_with_keys(keys).check(), []);
    }

    #[test]
    fn n1_transient_and_unexpiring_keys_are_reported() {
        for key in ["h:7", "l:7", "q:7", "g:7", "due", "late", "exp", "lease"] {
            let violations =
                idle_snapshot_with_keys(vec![leftover_key(&format!("lg:1:ns:{{3}}:{key}"), true)])
                    .check();
            assert_eq!(violations.len(), 1, "{key}");
            assert_eq!(violations[0].guarantee, Guarantee::N1);
        }
        assert_eq!(
            idle_snapshot_with_keys(vec![leftover_key("lg:1:ns:{3}:j:1-ab", false)]).check().len(),
            1
        );
        let response = idle_snapshot_with_keys(vec![leftover_key("lg:1:ns:{3}:r:1-ab", true)]);
        assert_eq!(IdleSnapshot { locks_only: true, ..response }.check().len(), 1);
        let mut shard_counters = leftover_key("lg:1:ns:{3}:f", false);
        shard_counters.counters = vec![("jobs".into(), 1)];
        assert_eq!(idle_snapshot_with_keys(vec![shard_counters]).check().len(), 1);
    }

    #[test]
    fn n1_extra_subscription_or_script_call_is_reported() {
        assert_eq!(
            IdleSnapshot { subscribed_clients: 3, ..idle_snapshot_with_keys(vec![]) }.check().len(),
            1
        );
        assert_eq!(
            IdleSnapshot { script_calls: 1, ..idle_snapshot_with_keys(vec![]) }.check().len(),
            1
        );
    }

    #[test]
    fn n1_extra_subscribers_of_channels_are_reported() {
        let violation_count = |channels: &[(&str, u64)]| {
            let channels = channels.iter().map(|(name, count)| ((*name).to_owned(), *count));
            IdleSnapshot {
                subscribed_channels: channels.collect(),
                ..idle_snapshot_with_keys(vec![])
            }
            .check()
            .len()
        };
        let (first, second, common) = ("lg:1:ns:w:one", "lg:1:ns:w:two", "lg:1:ns:e");
        assert_eq!(violation_count(&[(first, 1), (second, 1), (common, 2)]), 0);
        assert_eq!(violation_count(&[(first, 2)]), 1);
        assert_eq!(violation_count(&[(common, 3)]), 1);
        assert_eq!(violation_count(&[(first, 1), (second, 1), ("lg:1:ns:w:three", 1)]), 1);
        assert_eq!(violation_count(&[("lg:1:ns:{3}:job:1-ab", 1)]), 1);
        assert_eq!(
            violation_count(&[("lg:1:ns:{3}:w:one", 1), ("lg:1:ns:{3}:e", 2), ("lg:1:ns:c", 2)]),
            0
        );
    }

    #[test]
    fn n1_extra_clients_or_heartbeats_are_reported() {
        let clients = |clients| {
            IdleSnapshot {
                clients,
                max_clients_per_process: Some(3),
                ..idle_snapshot_with_keys(vec![])
            }
            .check()
            .len()
        };
        assert_eq!([clients(6), clients(7)], [0, 1]);
        let heartbeats = |heartbeats| {
            IdleSnapshot { heartbeats, max_heartbeats: 2, ..idle_snapshot_with_keys(vec![]) }
                .check()
                .len()
        };
        assert_eq!([heartbeats(2), heartbeats(3)], [0, 1]);
    }

    #[test]
    fn n2_commands_beyond_the_ceiling_are_reported() {
        assert_eq!(check_command_cost(40, 10, 4), None);
        assert_eq!(
            check_command_cost(41, 10, 4).map(|violation| violation.guarantee),
            Some(Guarantee::N2)
        );
        assert_eq!(check_command_cost(4, 0, 4), None);
    }
}
