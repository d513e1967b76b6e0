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
const PERMANENT_KINDS: [&str; 5] = ["f", "meta", "paused", "watch", "workers"];

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
        let mut wrong: Vec<_> =
            self.keys.iter().flat_map(|kept| describe_leftovers(kept, self.locks_only)).collect();
        let Self {
            live_processes: processes,
            subscribed_clients: subscriptions,
            clients,
            heartbeats: signs,
            max_heartbeats: most_signs,
            ..
        } = *self;
        if subscriptions > processes {
            wrong.push(format!("{subscriptions} subscriptions of {processes} processes"));
        }
        wrong.extend(
            self.subscribed_channels
                .iter()
                .filter_map(|channel| self.describe_extra_subscribers(channel)),
        );
        let own = self.subscribed_channels.iter().filter(|(name, _)| key_kind(name) == "w").count()
            as u64;
        if own > processes {
            wrong.push(format!("{own} channels of {processes} processes"));
        }
        let most = self.max_clients_per_process.map(|sockets| sockets.saturating_mul(processes));
        if let Some(most) = most.filter(|most| clients > *most) {
            wrong.push(format!("{clients} clients of {processes} processes, at most {most}"));
        }
        if self.script_calls > 0 {
            wrong.push(format!("{} calls while nobody does anything", self.script_calls));
        }
        if signs > most_signs {
            wrong.push(format!("{signs} signs of life, at most {most_signs}"));
        }
        wrong.into_iter().map(|told| Violation::new(Guarantee::N1, told)).collect()
    }
}

impl IdleSnapshot {
    /// Describes a channel with more subscribers than allowed; a channel that no living process
    /// uses may have none.
    fn describe_extra_subscribers(&self, (name, hear): &(String, u64)) -> Option<String> {
        let most = match key_kind(name) {
            "w" => 1,
            "e" | "c" => self.live_processes,
            _ => 0,
        };
        (*hear > most).then(|| format!("left behind: {hear} hear {name}, where {most} may"))
    }
}

fn describe_leftovers(kept: &LeftoverKey, only_locks: bool) -> Vec<String> {
    let LeftoverKey { name: key, has_expiry: ends, counters } = kept;
    let kind = key_kind(key);
    if TRANSIENT_KINDS.contains(&kind) || (only_locks && !PERMANENT_KINDS.contains(&kind)) {
        return vec![format!("left behind: {key}")];
    }
    if !PERMANENT_KINDS.contains(&kind) && !ends {
        return vec![format!("left behind, without an end: {key}")];
    }
    let of = |(name, _): &&(String, i64)| LIVE_COUNTERS.contains(&&**name);
    let wrong = counters.iter().filter(of).filter(|(_, count)| *count != 0);
    wrong.map(|(name, count)| format!("left behind: {key} {name}={count}")).collect()
}

/// Returns the kind of a key `lg:1:<namespace>:{<shard>}:<kind>[:<name>]`, or of one without a
/// shard.
fn key_kind(key: &str) -> &str {
    let rest = match key.split_once("}:") {
        Some((_, rest)) => rest,
        None => key.splitn(4, ':').nth(3).unwrap_or(key),
    };
    rest.split(':').next().unwrap_or(rest)
}

/// Checks N2: at most `ceiling` commands for each acquisition or request.
#[must_use]
pub fn check_command_cost(commands: u64, acquisitions: u64, ceiling: u64) -> Option<Violation> {
    let most = acquisitions.max(1).saturating_mul(ceiling);
    let told = format!("{commands} commands for {acquisitions} acquisitions, at most {most}");
    (commands > most).then(|| Violation::new(Guarantee::N2, told))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leftover_key(key: &str, ends: bool) -> LeftoverKey {
        LeftoverKey { name: key.to_owned(), has_expiry: ends, counters: Vec::new() }
    }

    fn idle_snapshot_with_keys(keys: Vec<LeftoverKey>) -> IdleSnapshot {
        IdleSnapshot { keys, subscribed_clients: 2, live_processes: 2, ..IdleSnapshot::default() }
    }

    #[test]
    fn permanent_and_expiring_keys_are_allowed() {
        let mut facts = leftover_key("lg:1:ns:{3}:f", false);
        facts.counters = vec![("jobs".into(), 0), ("fence".into(), 7)];
        let keys = vec![
            facts,
            leftover_key("lg:1:ns:meta", false),
            leftover_key("lg:1:ns:{3}:watch:x", false),
            leftover_key("lg:1:ns:{3}:r:1-ab", true),
        ];
        assert_eq!(idle_snapshot_with_keys(keys).check(), []);
    }

    #[test]
    fn n1_transient_and_unexpiring_keys_are_reported() {
        for key in ["h:7", "l:7", "q:7", "g:7", "due", "late", "exp", "lease"] {
            let wrong =
                idle_snapshot_with_keys(vec![leftover_key(&format!("lg:1:ns:{{3}}:{key}"), true)])
                    .check();
            assert_eq!(wrong.len(), 1, "{key}");
            assert_eq!(wrong[0].guarantee, Guarantee::N1);
        }
        assert_eq!(
            idle_snapshot_with_keys(vec![leftover_key("lg:1:ns:{3}:j:1-ab", false)]).check().len(),
            1
        );
        let response = idle_snapshot_with_keys(vec![leftover_key("lg:1:ns:{3}:r:1-ab", true)]);
        assert_eq!(IdleSnapshot { locks_only: true, ..response }.check().len(), 1);
        let mut facts = leftover_key("lg:1:ns:{3}:f", false);
        facts.counters = vec![("jobs".into(), 1)];
        assert_eq!(idle_snapshot_with_keys(vec![facts]).check().len(), 1);
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
        let heard = |channels: &[(&str, u64)]| {
            let channels = channels.iter().map(|(name, hear)| ((*name).to_owned(), *hear));
            IdleSnapshot {
                subscribed_channels: channels.collect(),
                ..idle_snapshot_with_keys(vec![])
            }
            .check()
            .len()
        };
        let (one, two, all) = ("lg:1:ns:w:one", "lg:1:ns:w:two", "lg:1:ns:e");
        assert_eq!(heard(&[(one, 1), (two, 1), (all, 2)]), 0);
        assert_eq!(heard(&[(one, 2)]), 1);
        assert_eq!(heard(&[(all, 3)]), 1);
        assert_eq!(heard(&[(one, 1), (two, 1), ("lg:1:ns:w:three", 1)]), 1);
        assert_eq!(heard(&[("lg:1:ns:{3}:job:1-ab", 1)]), 1);
        assert_eq!(heard(&[("lg:1:ns:{3}:w:one", 1), ("lg:1:ns:{3}:e", 2), ("lg:1:ns:c", 2)]), 0);
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
        let signs = |signs| {
            IdleSnapshot { heartbeats: signs, max_heartbeats: 2, ..idle_snapshot_with_keys(vec![]) }
                .check()
                .len()
        };
        assert_eq!([signs(2), signs(3)], [0, 1]);
    }

    #[test]
    fn n2_commands_beyond_the_ceiling_are_reported() {
        assert_eq!(check_command_cost(40, 10, 4), None);
        assert_eq!(check_command_cost(41, 10, 4).map(|wrong| wrong.guarantee), Some(Guarantee::N2));
        assert_eq!(check_command_cost(4, 0, 4), None);
    }
}
