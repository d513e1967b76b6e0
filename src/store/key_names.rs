//! Names of the Redis keys and channels, each with its hash tag. No other Rust code makes one.
//! Scripts derive further names, with the same tag, from a key that they declare.
//!
//! A name is `lg:1:<namespace>:{<shard>}:<kind>:<name>`. The 1 is the version of this layout. A
//! shard holds all keys of one decision, since in a cluster one script is limited to one slot.
//! `docs/design/wire-format.md` lists the kinds.

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
    /// `lg:1:<namespace>:{<shard>}:`, for each shard.
    shard_prefixes: Arc<[String]>,
    /// Shards may be on different cluster nodes.
    clustered: bool,
}

/// Key name in parts: shard prefix, kind, name.
pub(crate) type KeyParts<'a> = [&'a str; 3];

/// Key name of a counter, in parts.
pub(crate) type CounterKeyParts<'a> = [&'a str; 7];

/// Kind of a counter's key: its usage or its refusals, by algorithm.
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
        let shard_prefixes =
            (0..SHARD_COUNT).map(|shard| format!("{prefix}{{{shard}}}:")).collect();
        Self { prefix, shard_prefixes, clustered: false }
    }

    /// Marks the names as those of a cluster.
    pub(crate) fn clustered(self) -> Self {
        Self { clustered: true, ..self }
    }

    pub(crate) fn is_clustered(&self) -> bool {
        self.clustered
    }

    /// Returns, in a cluster, a key of the shard that never exists, for every script call to
    /// declare.
    ///
    /// While a slot migrates, each of its keys is on one of two cluster nodes. A command about a
    /// key on the other node fails, even in the middle of a script that has written already. A
    /// script that declares a key that exists on neither is not started (TRYAGAIN or ASK) until the
    /// migration is complete.
    #[expect(
        clippy::indexing_slicing,
        reason = "a shard is below SHARD_COUNT, the length of the array"
    )]
    pub(crate) fn slot_guard_key(&self, shard: u16) -> Option<[&str; 2]> {
        self.clustered.then(|| [&*self.shard_prefixes[usize::from(shard)], "never"])
    }

    /// Returns the prefix of all channels of the namespace.
    pub(crate) fn channel_prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the channels that a process subscribes to:
    ///
    /// - its own, for offers, work, and changes of wait queues
    /// - that of events for all workers
    /// - with `jobs`, that of job changes
    ///
    /// The last one has a message for each operation on a job, so a process subscribes to it only
    /// once it has waited for a job.
    pub(crate) fn subscriptions(&self, node: &NodeId, jobs: bool) -> Vec<String> {
        subscription_channels(&self.prefix, node, jobs)
    }

    /// Like [`KeyNames::subscriptions`], for one shard of a cluster with sharded pub/sub.
    #[expect(
        clippy::indexing_slicing,
        reason = "a shard is below SHARD_COUNT, the length of the array"
    )]
    pub(crate) fn shard_subscriptions(&self, shard: u16, node: &NodeId, jobs: bool) -> Vec<String> {
        subscription_channels(&self.shard_prefixes[usize::from(shard)], node, jobs)
    }

    /// Returns a channel without subscribers, since it belongs to no process. A user that may send
    /// the namespace's messages may publish to it.
    pub(crate) fn acl_probe_channel(&self) -> String {
        if self.clustered {
            self.shard_key(COMMON_SHARD, "w:")
        } else {
            format!("{}w:", self.prefix)
        }
    }

    /// Returns true if a subscribed channel carries events, rather than messages to this process.
    pub(crate) fn is_event_channel(channel: &str) -> bool {
        channel.ends_with(":e") || channel.ends_with(":c")
    }

    /// HASH: settings that all processes of the namespace must share.
    pub(crate) fn namespace_meta(&self) -> String {
        self.shard_key(COMMON_SHARD, "meta")
    }

    /// STRING: live workers, each with its deadline.
    pub(crate) fn workers(&self) -> String {
        self.shard_key(COMMON_SHARD, "workers")
    }

    /// STRING that exists while deferred requests are paused.
    pub(crate) fn paused(&self) -> String {
        self.shard_key(COMMON_SHARD, "paused")
    }

    /// LIST: reports of processes, as answers to an operator's inquiry.
    pub(crate) fn fleet_reports(&self, inquiry: &str) -> String {
        self.named_key(COMMON_SHARD, "asked", inquiry)
    }

    /// ZSET: names of the task queues.
    pub(crate) fn queue_names(&self) -> String {
        self.shard_key(COMMON_SHARD, "queues")
    }

    /// HASH: the audit log.
    pub(crate) fn audit(&self) -> String {
        self.shard_key(COMMON_SHARD, "audit")
    }

    /// ZSET: live limiters.
    pub(crate) fn limiters(&self) -> String {
        self.shard_key(COMMON_SHARD, "limiters")
    }

    /// HASH: policies that operators have changed.
    pub(crate) fn limits(&self) -> String {
        self.shard_key(COMMON_SHARD, "limits")
    }

    /// Keys of a wait queue, as the scripts derive them from the first one.
    #[cfg(test)]
    pub(crate) fn lock_keys(&self, key: &Key) -> Vec<String> {
        let lock_keys =
            ["h", "l", "q", "g"].map(|kind| self.named_key(key.shard(), kind, key.as_str()));
        let shard_keys = ["due", "f", "watch"].map(|kind| self.shard_key(key.shard(), kind));
        [lock_keys.as_slice(), &shard_keys].concat()
    }

    /// ZSET: jobs of a lock.
    #[cfg(test)]
    pub(crate) fn job_queue(&self, key: &Key) -> String {
        self.named_key(key.shard(), "g", key.as_str())
    }

    /// ZSET: holders and offers of a lock. Scripts derive the other names of its wait queue from
    /// this one.
    pub(crate) fn holders(&self, key: &Key) -> String {
        self.holders_parts(key).concat()
    }

    /// Like [`KeyNames::holders`], for callers that concatenate the parts into a buffer.
    #[expect(
        clippy::indexing_slicing,
        reason = "a shard is below SHARD_COUNT, the length of the array"
    )]
    pub(crate) fn holders_parts<'a>(&'a self, key: &'a Key) -> KeyParts<'a> {
        [&self.shard_prefixes[usize::from(key.shard())], "h:", key.as_str()]
    }

    /// HASH: fields of a job.
    pub(crate) fn job(&self, id: &JobId) -> String {
        self.named_key(id.shard(), "j", id.as_str())
    }

    /// STRING: request of a job.
    pub(crate) fn request(&self, id: &JobId) -> String {
        self.named_key(id.shard(), "b", id.as_str())
    }

    /// STRING: response of a job.
    pub(crate) fn response(&self, id: &JobId) -> String {
        self.named_key(id.shard(), "r", id.as_str())
    }

    /// Keys named after a job: its fields, its request, its response, and the request of its
    /// webhook.
    pub(crate) fn job_keys(&self, id: &JobId) -> [String; 4] {
        ["j", "b", "r", "t"].map(|kind| self.named_key(id.shard(), kind, id.as_str()))
    }

    /// STRING: an idempotency record, in the shard of its lock.
    pub(crate) fn idempotency_record(&self, key: &Key, record: &str) -> String {
        self.named_key(key.shard(), "i", &format!("{record}:{key}"))
    }

    /// STRING: usage or refusals of the counter of a policy, a subject and a tag. The name contains
    /// the tag only if it differs from the subject. No key contains an `@`.
    #[expect(
        clippy::indexing_slicing,
        reason = "a shard is below SHARD_COUNT, the length of the array"
    )]
    pub(crate) fn counter_parts<'a>(
        &'a self,
        tag: &'a Key,
        shard: u16,
        kind: CounterKeyKind,
        (policy, subject): (&'a str, &'a Key),
    ) -> CounterKeyParts<'a> {
        let (separator, tag) = if tag == subject { ("", "") } else { ("@", tag.as_str()) };
        let shard_prefix = &self.shard_prefixes[usize::from(shard)];
        [shard_prefix, kind.0, policy, ":", subject.as_str(), separator, tag]
    }

    /// Keys of a task queue, in this order:
    ///
    /// - ZSETs of waiting and of running tasks
    /// - HASHes of records, of failures, and of unique keys
    /// - ZSETs of dead letters and of idle workers
    /// - HASH of counters
    pub(crate) fn queue_keys(&self, queue: &Key) -> [String; 8] {
        ["z", "zl", "zt", "zm", "zu", "zd", "zw", "zf"].map(|kind| self.queue_key(queue, kind, ""))
    }

    /// STRING: numbers of the last pushes of a process to any queue of the shard. Push numbers are
    /// counted by process, so one key has a slot for each; with a key for each queue, most slots
    /// would never be used.
    #[expect(
        clippy::indexing_slicing,
        reason = "a shard is below SHARD_COUNT, the length of the array"
    )]
    pub(crate) fn pushes_parts<'a>(&'a self, shard: u16, process: &'a str) -> KeyParts<'a> {
        [&self.shard_prefixes[usize::from(shard)], "zp:", process]
    }

    /// Key of a task queue. With a worker as `name`, `zr` is the STRING of that worker's last poll.
    pub(crate) fn queue_key(&self, queue: &Key, kind: &str, name: &str) -> String {
        self.queue_key_parts(queue, kind, name).concat()
    }

    #[expect(
        clippy::indexing_slicing,
        reason = "a shard is below SHARD_COUNT, the length of the array"
    )]
    pub(crate) fn queue_key_parts<'a>(
        &'a self,
        queue: &'a Key,
        kind: &'a str,
        name: &'a str,
    ) -> [&'a str; 6] {
        let separator = if name.is_empty() { "" } else { "@" };
        let shard_prefix = &self.shard_prefixes[usize::from(queue.shard())];
        [shard_prefix, kind, ":", queue.as_str(), separator, name]
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

    /// Returns true if the name holds no second hash tag and no character that needs escaping.
    fn is_plain(name: &str, tag: &str) -> bool {
        let rest = name.strip_prefix(tag).unwrap_or("{");
        rest.bytes().all(|b| b.is_ascii_alphanumeric() || b":-_.%~+@".contains(&b))
    }

    /// Text that clients write into paths, headers and ids can neither name keys of another shard
    /// nor make a name too long.
    #[test]
    fn client_text_is_escaped_in_key_names() {
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
                    let mut names = keys.lock_keys(key);
                    names.extend([keys.job(&id), keys.request(&id), keys.response(&id)]);
                    names.extend(keys.queue_keys(key));
                    let odd = names.iter().find(|name| !is_plain(name, &tag) || name.len() > 500);
                    assert_eq!(odd, None, "{key}");
                }
            },
        );
    }

    /// Covers texts that differ from a real id in one letter.
    #[test]
    fn parsed_job_id_names_keys_of_its_shard() {
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
    fn event_channels_are_recognized() {
        let (keys, node) = (KeyNames::new("e"), NodeId::new());
        for jobs in [false, true] {
            for channels in
                [keys.subscriptions(&node, jobs), keys.shard_subscriptions(63, &node, jobs)]
            {
                let events = channels.iter().map(|channel| KeyNames::is_event_channel(channel));
                assert_eq!(
                    Vec::from_iter(events),
                    [&[false, true][..], &[true][..jobs.into()]].concat()
                );
                assert!(channels.iter().all(|channel| channel.starts_with(keys.channel_prefix())));
            }
        }
        assert!(
            keys.shard_subscriptions(63, &node, true)[1..]
                .iter()
                .all(|e| e.starts_with("lg:1:e:{63}:"))
        );
    }

    #[test]
    fn keys_of_one_decision_share_hash_tag() {
        let (keys, key) = (KeyNames::new("shop"), Key::path_param("id", "7"));
        let id = JobId::new(&key);
        let tag = format!("lg:1:shop:{{{}}}:", key.shard());
        let mut all = keys.lock_keys(&key);
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
