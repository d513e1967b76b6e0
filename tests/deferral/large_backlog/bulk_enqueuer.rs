//! Many requests, stored by repeating the enqueue call of a node with other ids and other locks of
//! the same shard.

use std::{
    hash::Hasher as _,
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use lockgate_tests::{
    ledger::JobFleet,
    proxy::{FaultPoint, FaultRule},
};
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use crate::SECOND;

pub(super) struct BulkEnqueuer {
    /// The call, as it was on the wire, and where in it stand the id, the name of the lock, and the path.
    enqueue_call: Vec<u8>,
    placeholder_offsets: [Vec<usize>; 3],
    /// Where the envelope begins and ends.
    envelope_range: Range<usize>,
    pub(super) id: String,
    pub(super) shard: u64,
    stored_count: AtomicU64,
}

/// By FNV-1a, as the library counts them.
pub(super) fn resource_shard(resource: &str) -> u64 {
    let mut hash = fnv::FnvHasher::default();
    hash.write(format!("p:id::{resource}").as_bytes());
    hash.finish() % 64
}

impl BulkEnqueuer {
    /// The call with which this node defers a request for this resource.
    pub(super) async fn capture_call(fleet: &JobFleet, web: usize, resource: &str) -> Self {
        let lock = fleet.hold_lock(resource).await;
        // The first one sends the script whole.
        fleet.deferrable_request(web, resource).send_accepted().await;
        let mut struck =
            fleet.proxy(web).add_rule(FaultRule::new("enqueue_jobs", FaultPoint::AfterCall));
        let id = fleet.deferrable_request(web, resource).send_accepted().await;
        let enqueue_call = struck.wait_for_match().await;
        lock.release().await;
        let shard = resource_shard(resource);
        let at = [id.clone(), format!(":p:id::{resource}"), format!("/orders/{resource}/")];
        let at = at.map(|text| find_all(&enqueue_call, &text));
        let tag = format!("{{{shard}}}:h:p:id::{resource}");
        assert!(
            !find_all(&enqueue_call, &tag).is_empty(),
            "how keys are named, and shards counted"
        );
        assert!(at.iter().all(|places| !places.is_empty()), "{}", enqueue_call.escape_ascii());
        let envelope = argument_range(&enqueue_call, at[2][0]);
        Self {
            enqueue_call,
            placeholder_offsets: at,
            envelope_range: envelope,
            id,
            shard,
            stored_count: AtomicU64::new(0),
        }
    }

    /// The same call for another resource, with another id, which begins with its shard.
    fn call_for(&self, resource: &str) -> Vec<u8> {
        let number = self.stored_count.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}{number:032x}", &self.id[..2]);
        let texts = [id.clone(), format!(":p:id::{resource}"), format!("/orders/{resource}/")];
        let mut call = self.enqueue_call.clone();
        for (places, text) in self.placeholder_offsets.iter().zip(texts) {
            for at in places {
                call[*at..at + text.len()].copy_from_slice(text.as_bytes());
            }
        }
        // Behind the version; of the kind, the id, the lock and what stands behind the check.
        let envelope = &mut call[self.envelope_range.clone()];
        let mut hash = Sha256::new();
        let lock = format!("p:id::{resource}");
        for part in [&b"request"[..], id.as_bytes(), lock.as_bytes(), &envelope[9..]] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        envelope[1..9].copy_from_slice(&hash.finalize()[..8]);
        call
    }

    pub(super) async fn enqueue_all<'a>(
        &self,
        fleet: &JobFleet,
        resources: impl Iterator<Item = &'a str>,
    ) {
        let mut server =
            TcpStream::connect(("127.0.0.1", fleet.server.port())).await.expect("there");
        let resources: Vec<_> = resources.collect();
        for some in resources.chunks(500) {
            let mut calls: Vec<u8> =
                some.iter().flat_map(|resource| self.call_for(resource)).collect();
            // How a script says that it is done is its own affair: this is answered behind all of them.
            calls.extend_from_slice(b"ECHO behind-all\r\n");
            server.write_all(&calls).await.expect("the server reads");
            let mut answer = Vec::new();
            while !answer.ends_with(b"behind-all\r\n") {
                let read = timeout(20 * SECOND, server.read_buf(&mut answer)).await;
                let refused = answer.starts_with(b"-")
                    || ["\r\n-", "full"].iter().any(|word| !find_all(&answer, word).is_empty());
                let read = read.expect("in time").expect("the server answers");
                assert!(read > 0 && !refused, "{}", answer.escape_ascii());
            }
        }
    }
}

/// The argument of a call on the wire that this byte is part of.
fn argument_range(call: &[u8], at: usize) -> Range<usize> {
    let before = find_all(&call[..at], "\r\n$");
    let digits = before.last().expect("arguments have their lengths before them") + 3;
    let end = digits + find_all(&call[digits..], "\r\n")[0];
    let length: usize = std::str::from_utf8(&call[digits..end]).unwrap().parse().unwrap();
    end + 2..end + 2 + length
}

/// Where this text stands.
fn find_all(bytes: &[u8], text: &str) -> Vec<usize> {
    let all = bytes.windows(text.len()).enumerate();
    all.filter(|(_, part)| *part == text.as_bytes()).map(|(at, _)| at).collect()
}

/// Names of a shard, all of one length.
pub(super) fn shard_resources(shard: u64) -> impl Iterator<Item = String> {
    (10_000_000..).map(|n: u32| n.to_string()).filter(move |name| resource_shard(name) == shard)
}
