//! What the steps are called with.

use std::time::Duration;

use bytes::Bytes;

use super::LONG;
use crate::{
    key::Key,
    store::{
        backend::{
            Acquire, Caps, Charge, Claim, Enqueue, JobId, JobPolicy, Mode, NextRun, Node, Settle,
            Token, Verdict,
        },
        rate::{Item, Rule},
    },
};

/// A caller of a process of its own.
pub(in crate::store::tests) fn stranger() -> Token {
    Token::new(&Node::new())
}

pub(in crate::store::tests) fn key() -> Key {
    Key::path_param("id", "7")
}

/// Keys of one shard.
pub(in crate::store::tests) fn neighbours<const N: usize>() -> [Key; N] {
    let first = key();
    let mut found = vec![first.clone()];
    let more = (0..).map(|n: u32| Key::custom(&n.to_string()));
    found.extend(more.filter(|key| key.shard() == first.shard()).take(N - 1));
    found.try_into().unwrap()
}

/// Tries to acquire, for long.
pub(in crate::store::tests) fn ask(key: &Key, me: &Token) -> Acquire {
    Acquire {
        key: key.clone(),
        me: me.clone(),
        mode: Mode::Exclusive,
        lease: LONG,
        wait: None,
        old_seq: 0,
        record: None,
    }
}

/// Acquires or waits, for long.
pub(in crate::store::tests) fn wait(key: &Key, me: &Token) -> Acquire {
    Acquire { wait: Some(LONG), ..ask(key, me) }
}

/// A job that may not run again after a crash.
pub(in crate::store::tests) fn deferred(key: &Key) -> Enqueue {
    Enqueue {
        key: key.clone(),
        id: JobId::new(key),
        envelope: Bytes::from_static(b"request"),
        policy: JobPolicy { max_attempts: 3, ..JobPolicy::default() },
        merge: None,
        record: None,
        caps: Caps {
            resource_jobs: 100,
            resource_bytes: 10_000,
            shard_jobs: 100,
            shard_bytes: 10_000,
            ..Caps::NONE
        },
        owner: String::new(),
        call: None,
    }
}

/// One that may run again after a crash.
pub(in crate::store::tests) fn again(key: &Key) -> Enqueue {
    let call = deferred(key);
    Enqueue { policy: JobPolicy { again: true, ..call.policy }, ..call }
}

/// One charge of these, in the shard of the first one's subject.
pub(in crate::store::tests) fn together(items: Vec<Item>) -> Charge {
    let tag = items.first().map_or_else(key, |item| item.subject.clone());
    Charge { tag, items: items.into(), times: 1 }
}

/// A fixed window.
pub(in crate::store::tests) fn fixed(
    policy: &str,
    subject: &Key,
    (limit, window): (u64, Duration),
    cost: u64,
) -> Item {
    let (policy, subject) = (policy.into(), subject.clone());
    Item { policy, subject, rule: Rule::Fixed { limit, window }, cost, penalty: None }
}

pub(in crate::store::tests) fn visit(key: &Key, id: &JobId, me: &Token) -> Claim {
    Claim { key: key.clone(), id: id.clone(), me: me.clone(), lease: LONG, retention: LONG }
}

pub(in crate::store::tests) fn settled(
    key: &Key,
    id: &JobId,
    me: &Token,
    verdict: Verdict,
) -> Settle {
    Settle { key: key.clone(), id: id.clone(), me: me.clone(), verdict, next: None }
}

pub(in crate::store::tests) fn next_run(me: &Token) -> NextRun {
    NextRun { me: me.clone(), lease: LONG, retention: LONG }
}

pub(in crate::store::tests) fn done() -> Verdict {
    Verdict::Done { response: Bytes::from_static(b"answer"), status: 200, retention: LONG }
}
