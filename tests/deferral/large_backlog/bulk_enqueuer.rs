//! Stores many jobs by repeating a recorded enqueue call with other ids and other locks of the same
//! shard.

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
    /// Recorded call, and the offsets of the id, the lock name and the path in it.
    enqueue_call: Vec<u8>,
    placeholder_offsets: [Vec<usize>; 3],
    /// Range of the envelope.
    envelope_range: Range<usize>,
    pub(super) id: String,
    pub(super) shard: u64,
    stored_count: AtomicU64,
}

/// Returns the shard of a resource: FNV-1a of its key, as in the library.
pub(super) fn resource_shard(resource: &str) -> u64 {
    let mut hash = fnv::FnvHasher::default();
    hash.write(format!("p:id::{resource}").as_bytes());
    hash.finish() % 64
}

impl BulkEnqueuer {
    /// Records the call that enqueues a job of this node for this resource.
    pub(super) async fn capture_call(fleet: &JobFleet, web: usize, resource: &str) -> Self {
        let lock = fleet.hold_lock(resource).await;
        // The first call loads the script; the second one sends only its hash.
        fleet.deferrable_request(web, resource).send_accepted().await;
        let mut recorded_call =
            fleet.proxy(web).add_rule(FaultRule::new("enqueue_jobs", FaultPoint::AfterCall));
        let id = fleet.deferrable_request(web, resource).send_accepted().await;
        let enqueue_call = recorded_call.wait_for_match().await;
        lock.release().await;
        let shard = resource_shard(resource);
        let placeholder_offsets =
            [id.clone(), format!(":p:id::{resource}"), format!("/orders/{resource}/")];
        let placeholder_offsets = placeholder_offsets.map(|text| find_all(&enqueue_call, &text));
        let tag = format!("{{{shard}}}:h:p:id::{resource}");
        assert!(
            !find_all(&enqueue_call, &tag).is_empty(),
            "how keys are named, and shards counted"
        );
        assert!(
            placeholder_offsets.iter().all(|offsets| !offsets.is_empty()),
            "{}",
            enqueue_call.escape_ascii()
        );
        let envelope = argument_range(&enqueue_call, placeholder_offsets[2][0]);
        Self {
            enqueue_call,
            placeholder_offsets,
            envelope_range: envelope,
            id,
            shard,
            stored_count: AtomicU64::new(0),
        }
    }

    /// Returns the call for another resource, with a new id of the same shard.
    fn call_for(&self, resource: &str) -> Vec<u8> {
        let number = self.stored_count.fetch_add(1, Ordering::Relaxed);
        let id = format!("{}{number:032x}", &self.id[..2]);
        let texts = [id.clone(), format!(":p:id::{resource}"), format!("/orders/{resource}/")];
        let mut call = self.enqueue_call.clone();
        for (offsets, text) in self.placeholder_offsets.iter().zip(texts) {
            for offset in offsets {
                call[*offset..offset + text.len()].copy_from_slice(text.as_bytes());
            }
        }
        // The checksum follows the version byte. It covers the kind, the id, the lock and the rest
        // of the envelope.
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
        for chunk in resources.chunks(500) {
            let mut calls: Vec<u8> =
                chunk.iter().flat_map(|resource| self.call_for(resource)).collect();
            // The reply of a script is not parsed: the reply to `ECHO` follows all of them.
            calls.extend_from_slice(b"ECHO behind-all\r\n");
            server.write_all(&calls).await.expect("the server reads");
            let mut answer = Vec::new();
            while !answer.ends_with(b"behind-all\r\n") {
                let read = timeout(20 * SECOND, server.read_buf(&mut answer)).await;
                let refused = answer.starts_with(b"-")
                    || ["\r\n-", "full"].iter().any(|text| !find_all(&answer, text).is_empty());
                let read = read.expect("in time").expect("the server answers");
                assert!(read > 0 && !refused, "{}", answer.escape_ascii());
            }
        }
    }
}

/// Returns the range of the argument that contains this byte of a call.
fn argument_range(call: &[u8], offset: usize) -> Range<usize> {
    let length_marks = find_all(&call[..offset], "\r\n$");
    let length_start = length_marks.last().expect("arguments have their lengths before them") + 3;
    let end = length_start + find_all(&call[length_start..], "\r\n")[0];
    let length: usize = std::str::from_utf8(&call[length_start..end]).unwrap().parse().unwrap();
    end + 2..end + 2 + length
}

/// Returns all offsets of a text.
fn find_all(bytes: &[u8], text: &str) -> Vec<usize> {
    let windows = bytes.windows(text.len()).enumerate();
    windows.filter(|(_, part)| *part == text.as_bytes()).map(|(offset, _)| offset).collect()
}

/// Returns resource names of a shard, all of one length.
pub(super) fn shard_resources(shard: u64) -> impl Iterator<Item = String> {
    (10_000_000..).map(|n: u32| n.to_string()).filter(move |name| resource_shard(name) == shard)
}
