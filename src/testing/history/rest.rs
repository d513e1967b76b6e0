//! What is left when all is quiet, and what it has cost: N1 and N2.
//!
//! A history ends with a look at the store, once everybody has given back what they held: then there are no
//! holders, lines and indexes of what is to come ([`Rest::keys`]), not more subscriptions than processes, and nobody
//! makes a call.

use super::{Check, Violation};

/// Lines, locks and indexes of what is to come.
const GONE: [&str; 8] = ["h", "l", "q", "g", "due", "late", "exp", "lease"];

/// Kept for ever, by design: a few of each shard. A watch has its end inside, and so have the workers in theirs.
const KEPT: [&str; 5] = ["f", "meta", "paused", "watch", "workers"];

/// Numbers of what there is at the moment, in a shard's `f`.
const COUNTERS: [&str; 3] = ["jobs", "bytes", "late"];

/// A key of the store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// Its name.
    pub key: String,
    /// Whether it has an end (`PTTL` other than -1).
    pub ends: bool,
    /// If it is a shard's hash of facts, `{s}:f`: its fields that are numbers.
    pub counters: Vec<(String, i64)>,
}

/// What is there when all is quiet.
#[derive(Debug, Clone, Default)]
pub struct Rest {
    /// All keys of the namespace.
    pub keys: Vec<Kept>,
    /// Only locks were used: then no key is left but those that stay by design, with an end or without.
    pub only_locks: bool,
    /// Clients of the server that subscribe.
    pub subscriptions: u64,
    /// Processes that live.
    pub processes: u64,
    /// Script calls within a time in which nobody did anything.
    pub calls: u64,
}

impl Rest {
    /// N1.
    #[must_use]
    pub fn check(&self) -> Vec<Violation> {
        let mut wrong: Vec<_> =
            self.keys.iter().flat_map(|kept| left(kept, self.only_locks)).collect();
        if self.subscriptions > self.processes {
            wrong.push(format!(
                "{} subscriptions of {} processes",
                self.subscriptions, self.processes
            ));
        }
        if self.calls > 0 {
            wrong.push(format!("{} calls while nobody does anything", self.calls));
        }
        wrong.into_iter().map(|told| Violation::new(Check::N1, told)).collect()
    }
}

fn left(kept: &Kept, only_locks: bool) -> Vec<String> {
    let Kept { key, ends, counters } = kept;
    let kind = kind(key);
    if GONE.contains(&kind) || (only_locks && !KEPT.contains(&kind)) {
        return vec![format!("left behind: {key}")];
    }
    if !KEPT.contains(&kind) && !ends {
        return vec![format!("left behind, without an end: {key}")];
    }
    let of = |(name, _): &&(String, i64)| COUNTERS.contains(&&**name);
    let wrong = counters.iter().filter(of).filter(|(_, count)| *count != 0);
    wrong.map(|(name, count)| format!("left behind: {key} {name}={count}")).collect()
}

/// `lg:1:<namespace>:{<shard>}:<kind>[:<name>]`, or without a shard.
fn kind(key: &str) -> &str {
    let rest = match key.split_once("}:") {
        Some((_, rest)) => rest,
        None => key.splitn(4, ':').nth(3).unwrap_or(key),
    };
    rest.split(':').next().unwrap_or(rest)
}

/// N2: so many commands for so many acquisitions (or requests), at most `ceiling` each.
#[must_use]
pub fn cost(commands: u64, acquisitions: u64, ceiling: u64) -> Option<Violation> {
    let most = acquisitions.max(1).saturating_mul(ceiling);
    let told = format!("{commands} commands for {acquisitions} acquisitions, at most {most}");
    (commands > most).then(|| Violation::new(Check::N2, told))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(key: &str, ends: bool) -> Kept {
        Kept { key: key.to_owned(), ends, counters: Vec::new() }
    }

    fn rest(keys: Vec<Kept>) -> Rest {
        Rest { keys, only_locks: false, subscriptions: 2, processes: 2, calls: 0 }
    }

    #[test]
    fn what_stays_by_design_is_good() {
        let mut facts = kept("lg:1:ns:{3}:f", false);
        facts.counters = vec![("jobs".into(), 0), ("fence".into(), 7)];
        let keys = vec![
            facts,
            kept("lg:1:ns:meta", false),
            kept("lg:1:ns:{3}:watch:x", false),
            kept("lg:1:ns:{3}:r:1-ab", true),
        ];
        assert_eq!(rest(keys).check(), []);
    }

    #[test]
    fn n1_locks_lines_jobs_and_keys_without_an_end() {
        for key in ["h:7", "l:7", "q:7", "g:7", "due", "late", "exp", "lease"] {
            let wrong = rest(vec![kept(&format!("lg:1:ns:{{3}}:{key}"), true)]).check();
            assert_eq!(wrong.len(), 1, "{key}");
            assert_eq!(wrong[0].check, Check::N1);
        }
        assert_eq!(rest(vec![kept("lg:1:ns:{3}:j:1-ab", false)]).check().len(), 1);
        let response = rest(vec![kept("lg:1:ns:{3}:r:1-ab", true)]);
        assert_eq!(Rest { only_locks: true, ..response }.check().len(), 1);
        let mut facts = kept("lg:1:ns:{3}:f", false);
        facts.counters = vec![("jobs".into(), 1)];
        assert_eq!(rest(vec![facts]).check().len(), 1);
    }

    #[test]
    fn n1_subscriptions_and_calls() {
        assert_eq!(Rest { subscriptions: 3, ..rest(vec![]) }.check().len(), 1);
        assert_eq!(Rest { calls: 1, ..rest(vec![]) }.check().len(), 1);
    }

    #[test]
    fn n2_a_ceiling() {
        assert_eq!(cost(40, 10, 4), None);
        assert_eq!(cost(41, 10, 4).map(|wrong| wrong.check), Some(Check::N2));
        assert_eq!(cost(4, 0, 4), None);
    }
}
