//! The form of every key's name, each with its hash tag. Nothing else in Rust makes one; scripts make some of another
//! that is declared, with its tag.
//!
//! `lg:1:<namespace>:{<shard>}:<kind>:<name>`: 1 is the version of this layout, the shard is what one
//! decision may touch (in Cluster one script = one slot). The table of kinds is in `ARCHITECTURE.md`.

use std::sync::Arc;

use super::{
    backend::{JobId, NodeId},
    rate::Algorithm,
};
pub(crate) use crate::key::COMMON_SHARD;
use crate::key::{Key, SHARD_COUNT};

/// Key names of one namespace.
#[derive(Debug, Clone)]
pub(crate) struct KeyNames {
    /// `lg:1:<namespace>:`
    prefix: String,
    /// `lg:1:<namespace>:{<shard>}:`, of each shard.
    shard_prefixes: Arc<[String]>,
    /// The shards may be on different nodes.
    clustered: bool,
}

/// A key name in parts: its tag, its kind, and the name.
pub(crate) type KeyParts<'a> = [&'a str; 3];

/// As [`KeyParts`], of a counter.
pub(crate) type CounterKeyParts<'a> = [&'a str; 7];

/// What of a counter is kept under a key.
#[derive(Clone, Copy)]
pub(crate) struct CounterKeyKind(&'static str);

impl CounterKeyKind {
    pub(crate) fn spent_units(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::Fixed => "c:",
            Algorithm::Sliding => "cs:",
            Algorithm::Gcra => "cg:",
        })
    }

    pub(crate) fn refusals(algorithm: Algorithm) -> Self {
        Self(match algorithm {
            Algorithm::Fixed => "p:",
            Algorithm::Sliding => "ps:",
            Algorithm::Gcra => "pg:",
        })
    }
}

impl KeyNames {
    pub(crate) fn new(namespace: &str) -> Self {
        let prefix = format!("lg:1:{namespace}:");
        let tags = (0..SHARD_COUNT).map(|shard| format!("{prefix}{{{shard}}}:")).collect();
        Self { prefix, shard_prefixes: tags, clustered: false }
    }

    /// For a cluster.
    pub(crate) fn clustered(self) -> Self {
        Self { clustered: true, ..self }
    }

    pub(crate) fn is_clustered(&self) -> bool {
        self.clustered
    }

    /// In a cluster: a key of the shard that is never there, for every script call to name.
    ///
    /// While a slot is on its way to another node, its keys are here or there, and a command about one that is
    /// not here fails, also in the middle of a script that has written already. A script that names a key
    /// which is nowhere is not begun (TRYAGAIN or ASK) until the slot has arrived.
    #[expect(
        clippy::indexing_slicing,
        reason = "a shard is below their number, which is the length"
    )]
    pub(crate) fn slot_guard_key(&self, shard: u16) -> Option<[&str; 2]> {
        self.clustered.then(|| [&*self.shard_prefixes[usize::from(shard)], "never"])
    }

    /// What every channel of the namespace starts with.
    pub(crate) fn channel_prefix(&self) -> &str {
        &self.prefix
    }

    /// What a process listens to: its own channel, for offers, work and changes of its lines, and that of events,
    /// for words to all workers. If it has ever waited for a job, also that which names each job whose state
    /// changed: those are as many as there are steps of jobs.
    pub(crate) fn subscriptions(&self, node: &NodeId, jobs: bool) -> Vec<String> {
        subscription_channels(&self.prefix, node, jobs)
    }

    /// As [`KeyNames::subscriptions`], of a shard of a cluster whose nodes tell only what is theirs.
    #[expect(
        clippy::indexing_slicing,
        reason = "a shard is below their number, which is the length"
    )]
    pub(crate) fn shard_subscriptions(&self, shard: u16, node: &NodeId, jobs: bool) -> Vec<String> {
        subscription_channels(&self.shard_prefixes[usize::from(shard)], node, jobs)
    }

    /// A channel that nobody listens to: of no process. A user who may tell the others something may send it.
    pub(crate) fn acl_probe_channel(&self) -> String {
        if self.clustered {
            self.shard_key(COMMON_SHARD, "w:")
        } else {
            format!("{}w:", self.prefix)
        }
    }

    /// Whether it is a channel of events, of those that a process listens to.
    pub(crate) fn is_event_channel(channel: &str) -> bool {
        channel.ends_with(":e") || channel.ends_with(":c")
    }

    /// HASH: facts of the namespace that must never differ between processes.
    pub(crate) fn namespace_meta(&self) -> String {
        self.shard_key(COMMON_SHARD, "meta")
    }

    /// STRING: live workers, each with its deadline.
    pub(crate) fn workers(&self) -> String {
        self.shard_key(COMMON_SHARD, "workers")
    }

    /// There while the queue of deferred requests is paused.
    pub(crate) fn paused(&self) -> String {
        self.shard_key(COMMON_SHARD, "paused")
    }

    /// ZSET of live limiters.
    pub(crate) fn limiters(&self) -> String {
        self.shard_key(COMMON_SHARD, "limiters")
    }

    /// The keys of a line, as `line.lua` makes them of the first.
    #[cfg(test)]
    pub(crate) fn line(&self, key: &Key) -> Vec<String> {
        let own = ["h", "l", "q", "g"].map(|kind| self.named_key(key.shard(), kind, key.as_str()));
        let shard = ["due", "f", "watch"].map(|kind| self.shard_key(key.shard(), kind));
        [own.as_slice(), &shard].concat()
    }

    /// ZSET: jobs of a lock.
    #[cfg(test)]
    pub(crate) fn jobs(&self, key: &Key) -> String {
        self.named_key(key.shard(), "g", key.as_str())
    }

    /// ZSET: holders and offers of a lock. Scripts make the other names of its line of this one (`line.lua`).
    pub(crate) fn holders(&self, key: &Key) -> String {
        self.holders_parts(key).concat()
    }

    /// As [`KeyNames::holders`], for those who write it elsewhere.
    #[expect(
        clippy::indexing_slicing,
        reason = "a shard is below their number, which is the length"
    )]
    pub(crate) fn holders_parts<'a>(&'a self, key: &'a Key) -> KeyParts<'a> {
        // Shards of keys are below their number, which is the length.
        [&self.shard_prefixes[usize::from(key.shard())], "h:", key.as_str()]
    }

    /// HASH: facts of a job.
    pub(crate) fn job(&self, id: &JobId) -> String {
        self.named_key(id.shard(), "j", id.as_str())
    }

    /// STRING: the request of a job.
    pub(crate) fn request(&self, id: &JobId) -> String {
        self.named_key(id.shard(), "b", id.as_str())
    }

    /// STRING: the response of a job.
    pub(crate) fn response(&self, id: &JobId) -> String {
        self.named_key(id.shard(), "r", id.as_str())
    }

    /// All that is kept of a job by its id: facts, request, response, and the request of the call that tells of
    /// its end.
    pub(crate) fn job_keys(&self, id: &JobId) -> [String; 4] {
        ["j", "b", "r", "t"].map(|kind| self.named_key(id.shard(), kind, id.as_str()))
    }

    /// STRING: an idempotency record, beside the lock it is about.
    pub(crate) fn idempotency_record(&self, key: &Key, record: &str) -> String {
        self.named_key(key.shard(), "i", &format!("{record}:{key}"))
    }

    /// STRING: the counter of a policy for a subject under a tag, or what is kept of its refusals. The tag is
    /// named only where it is not the subject; no key has an `@` in it.
    #[expect(
        clippy::indexing_slicing,
        reason = "a shard is below their number, which is the length"
    )]
    pub(crate) fn counter_parts<'a>(
        &'a self,
        tag: &'a Key,
        shard: u16,
        kind: CounterKeyKind,
        (policy, subject): (&'a str, &'a Key),
    ) -> CounterKeyParts<'a> {
        let (at, group) = if tag == subject { ("", "") } else { ("@", tag.as_str()) };
        [&self.shard_prefixes[usize::from(shard)], kind.0, policy, ":", subject.as_str(), at, group]
    }

    /// Of a queue of tasks: ZSETs of those that wait and of those that run, HASHes of records, of what went
    /// wrong and of unique keys, ZSETs of dead letters and of idle workers, HASH of numbers.
    pub(crate) fn queue_keys(&self, queue: &Key) -> [String; 8] {
        ["z", "zl", "zt", "zm", "zu", "zd", "zw", "zf"].map(|kind| self.queue_key(queue, kind, ""))
    }

    /// STRING: the last pushes of a process, to whatever queue of the shard: their numbers are the process's, so one
    /// key has a place for each, where a key for each queue would have as many places that are never used.
    #[expect(
        clippy::indexing_slicing,
        reason = "a shard is below their number, which is the length"
    )]
    pub(crate) fn pushes_parts<'a>(&'a self, shard: u16, process: &'a str) -> KeyParts<'a> {
        [&self.shard_prefixes[usize::from(shard)], "zp:", process]
    }

    /// Of a queue: `zr` STRING the last turn of a worker.
    pub(crate) fn queue_key(&self, queue: &Key, kind: &str, name: &str) -> String {
        self.queue_key_parts(queue, kind, name).concat()
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "a shard is below their number, which is the length"
    )]
    pub(crate) fn queue_key_parts<'a>(
        &'a self,
        queue: &'a Key,
        kind: &'a str,
        name: &'a str,
    ) -> [&'a str; 6] {
        let joint = if name.is_empty() { "" } else { "@" };
        [&self.shard_prefixes[usize::from(queue.shard())], kind, ":", queue.as_str(), joint, name]
    }

    /// One of the shard's own indexes: `due`, `late`, `exp`, `dead`, `done`, `watch`.
    pub(crate) fn shard_key(&self, shard: u16, kind: &str) -> String {
        format!("{}{{{shard}}}:{kind}", self.prefix)
    }

    fn named_key(&self, shard: u16, kind: &str, name: &str) -> String {
        format!("{}{{{shard}}}:{kind}:{name}", self.prefix)
    }
}

fn subscription_channels(prefix: &str, node: &NodeId, jobs: bool) -> Vec<String> {
    let mut channels = vec![format!("{prefix}w:{node}"), format!("{prefix}e")];
    channels.extend(jobs.then(|| format!("{prefix}c")));
    channels
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the store may take for a hash tag, and what no reader of keys has to escape.
    fn is_plain(name: &str, tag: &str) -> bool {
        let rest = name.strip_prefix(tag).unwrap_or("{");
        rest.bytes().all(|b| b.is_ascii_alphanumeric() || b":-_.%~+@".contains(&b))
    }

    /// Whatever clients write into paths, fields and ids: it can't name another shard's keys, nor run over.
    #[test]
    fn values_of_clients_are_in_no_key_as_they_are() {
        type Input = (String, Vec<u8>, String, u16, [u8; 2]);
        let keys = KeyNames::new("shop");
        bolero::check!().with_iterations(2_000).with_type::<Input>().for_each(
            |(name, bytes, scope, stripes, smuggled)| {
                let text = String::from_utf8_lossy(bytes);
                let forged = format!("{text}\r\n {{{}}}:{scope}", smuggled[0]);
                let all = [
                    Key::path_param(name, &forged),
                    Key::header(name, forged.as_bytes()),
                    Key::header(name, bytes),
                    Key::extension(name, &text),
                    Key::route(&forged),
                    Key::custom(&forged).scope(scope),
                    Key::path_param(name, &text).scope(scope).scope(&forged).named(&forged),
                    Key::custom(name).and(&Key::custom(&forged)),
                    Key::custom(&forged).stripe(u32::from(*stripes) + 1),
                ];
                for key in &all {
                    let tag = format!("lg:1:shop:{{{}}}:", key.shard());
                    let id = JobId::new(key);
                    let mut names = keys.line(key);
                    names.extend([keys.job(&id), keys.request(&id), keys.response(&id)]);
                    names.extend(keys.queue_keys(key));
                    let odd = names.iter().find(|name| !is_plain(name, &tag) || name.len() > 500);
                    assert_eq!(odd, None, "{key}");
                }
            },
        );
    }

    /// Also if it differs from a real one in one letter.
    #[test]
    fn an_id_that_is_read_names_keys_of_its_own_shard() {
        let (keys, real) = (KeyNames::new("shop"), JobId::new(&Key::custom("x")));
        bolero::check!().with_iterations(4_000).with_type::<(String, usize, char)>().for_each(
            |(text, place, letter)| {
                let mut near: Vec<_> = real.as_str().chars().collect();
                let place = place % near.len();
                near[place] = *letter;
                let near: String = near.into_iter().collect();
                let longer = format!("{real}{text}");
                for text in [text, &near, &longer] {
                    let Some(id) = JobId::parse(text) else { continue };
                    assert_eq!(id.as_str(), text);
                    assert!(id.shard() < SHARD_COUNT);
                    let tag = format!("lg:1:shop:{{{}}}:", id.shard());
                    for name in [keys.job(&id), keys.request(&id), keys.response(&id)] {
                        assert!(is_plain(&name, &tag), "{name}");
                    }
                }
            },
        );
    }

    #[test]
    fn channels_are_told_apart() {
        let (keys, node) = (KeyNames::new("e"), NodeId::new());
        for jobs in [false, true] {
            for heard in
                [keys.subscriptions(&node, jobs), keys.shard_subscriptions(63, &node, jobs)]
            {
                let events = heard.iter().map(|channel| KeyNames::is_event_channel(channel));
                assert_eq!(
                    Vec::from_iter(events),
                    [&[false, true][..], &[true][..jobs.into()]].concat()
                );
                assert!(heard.iter().all(|channel| channel.starts_with(keys.channel_prefix())));
            }
        }
        assert!(
            keys.shard_subscriptions(63, &node, true)[1..]
                .iter()
                .all(|e| e.starts_with("lg:1:e:{63}:"))
        );
    }

    #[test]
    fn one_decision_has_one_hash_tag() {
        let (keys, key) = (KeyNames::new("shop"), Key::path_param("id", "7"));
        let id = JobId::new(&key);
        let tag = format!("lg:1:shop:{{{}}}:", key.shard());
        let mut all = keys.line(&key);
        all.extend([
            keys.job(&id),
            keys.request(&id),
            keys.response(&id),
            keys.idempotency_record(&key, "x"),
        ]);
        all.extend(
            keys.clone().clustered().slot_guard_key(key.shard()).map(|parts| parts.concat()),
        );
        assert!(all.iter().all(|k| k.starts_with(&tag)), "{all:?}");
        assert_eq!(keys.slot_guard_key(key.shard()), None);
    }
}
