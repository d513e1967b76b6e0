//! Memory budget for the bodies of parked requests while they are read.
//!
//! A client takes at most as much as it leaves free (Choudhury and Hahne, "Dynamic Queue Length
//! Thresholds for Shared-Memory Packet Switches", 1998): half of the budget if it is the only
//! client, a third if two clients take their maximum. No client can exclude the others, and none
//! needs a fixed share.

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;

use super::HttpRequestHead;
use crate::key::Key;

/// Bytes reserved ahead of the bytes that have arrived: the first read buffer of hyper and of
/// actix-web. A `Content-Length` reserves nothing, since a client may send it without a body.
const CHUNK_RESERVE: usize = 8 * 1024;

/// Bytes of all requests that this process is reading.
static BUFFER_USAGE: Mutex<ProcessBufferUsage> =
    Mutex::new(ProcessBufferUsage { total: 0, by_client: BTreeMap::new() });

struct ProcessBufferUsage {
    total: usize,
    /// Bytes of each client with a reservation.
    by_client: BTreeMap<Key, usize>,
}

impl ProcessBufferUsage {
    /// Reserves bytes for a client, if they fit into the budget and into the client's share of it.
    fn try_reserve(&mut self, client: &Key, bytes: usize, total_budget: usize) -> bool {
        let client_bytes = self.by_client.get(client).copied().unwrap_or_default();
        let add_to = |used: usize| used.checked_add(bytes);
        let (Some(client_bytes), Some(total_bytes)) = (add_to(client_bytes), add_to(self.total))
        else {
            return false;
        };
        if total_budget.checked_sub(total_bytes).is_none_or(|free| client_bytes > free) {
            return false;
        }
        self.total = total_bytes;
        self.by_client.insert(client.clone(), client_bytes);
        true
    }

    fn release(&mut self, client: &Key, bytes: usize) {
        self.total = self.total.saturating_sub(bytes);
        if let Some(client_bytes) = self.by_client.get_mut(client) {
            *client_bytes = client_bytes.saturating_sub(bytes);
            if *client_bytes == 0 {
                self.by_client.remove(client);
            }
        }
    }
}

/// Memory reservation for one body, bounded by the body's own limit and by the client's share of
/// the process-wide budget. A request without a reservation is refused rather than queued. Dropping
/// it releases its bytes.
#[derive(Debug)]
pub struct BodyBudget {
    body_limit: usize,
    total_budget: usize,
    read_timeout: Duration,
    client: Key,
    /// Length of the body, if the client declares one.
    declared_length: Option<usize>,
    reserved_body: usize,
    reserved_head: usize,
}

impl BodyBudget {
    pub(crate) fn new(body_limit: usize, total_budget: usize, read_timeout: Duration) -> Self {
        let client = Key::unknown_address();
        Self {
            body_limit,
            total_budget,
            read_timeout,
            client,
            declared_length: None,
            reserved_body: 0,
            reserved_head: 0,
        }
    }

    /// Returns the timeout for the whole body, counted from the start of its reading.
    #[must_use]
    pub fn read_timeout(&self) -> Duration {
        self.read_timeout
    }

    /// Reserves memory for `bytes`, the total that has arrived, and for the next chunk. Returns
    /// false if it does not fit.
    #[must_use]
    pub fn try_grow_to(&mut self, bytes: usize) -> bool {
        if bytes > self.body_limit {
            return false;
        }
        let max_body =
            self.declared_length.unwrap_or(self.body_limit).clamp(bytes, self.body_limit);
        let target = bytes.saturating_add(CHUNK_RESERVE).min(max_body);
        let additional = target.saturating_sub(self.reserved_body);
        let is_reserved = additional == 0
            || BUFFER_USAGE.lock().try_reserve(&self.client, additional, self.total_budget);
        self.reserved_body += if is_reserved { additional } else { 0 };
        is_reserved
    }

    /// Reserves memory for the request's head in the share of this client; the head does not count
    /// against the body's own limit. Returns false if it does not fit.
    #[must_use]
    pub(crate) fn try_reserve_head(&mut self, head: &HttpRequestHead, client: Key) -> bool {
        let header_lens = head.headers.iter().map(|(name, value)| name.len() + value.len());
        let bytes = head.target.len() + header_lens.sum::<usize>();
        self.release();
        self.client = client;
        let is_reserved = BUFFER_USAGE.lock().try_reserve(&self.client, bytes, self.total_budget);
        self.reserved_head = if is_reserved { bytes } else { 0 };
        is_reserved
    }

    /// Records the body's length as declared by the client, before any of it is read (`None` if it
    /// is not declared), and reserves memory for the first chunk. Returns false if the length
    /// exceeds the limit, or if the chunk does not fit.
    #[must_use]
    pub fn try_declare_length(&mut self, length: Option<u64>) -> bool {
        // A length beyond `usize` exceeds every limit.
        self.declared_length = length.map(|length| usize::try_from(length).unwrap_or(usize::MAX));
        self.declared_length.is_none_or(|length| length <= self.body_limit) && self.try_grow_to(0)
    }

    fn release(&mut self) {
        let bytes = self.reserved_body + self.reserved_head;
        if bytes > 0 {
            BUFFER_USAGE.lock().release(&self.client, bytes);
        }
        (self.reserved_body, self.reserved_head) = (0, 0);
    }
}

impl Drop for BodyBudget {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far more than other tests of this process reserve.
    const BUDGET: usize = 1 << 40;

    fn new_budget(limit: usize, budget: usize) -> BodyBudget {
        BodyBudget::new(limit, budget, Duration::MAX)
    }

    fn head_of_len(bytes: usize) -> HttpRequestHead {
        HttpRequestHead::new("PUT", "/", vec![("x".into(), vec![b'x'; bytes])], None)
    }

    fn budget_of_client(name: &str, limit: usize) -> BodyBudget {
        let mut budget = new_budget(limit, BUDGET);
        assert!(budget.try_reserve_head(&head_of_len(0), Key::custom(name)));
        budget
    }

    #[test]
    fn client_leaves_as_much_as_it_takes() {
        const MUCH: usize = BUDGET / 2 - (1 << 30);
        let mut first = budget_of_client("one", BUDGET);
        assert!(first.try_grow_to(MUCH));
        assert!(!first.try_grow_to(BUDGET / 2 + 1), "more than half");
        let mut same = budget_of_client("one", BUDGET);
        assert!(!same.try_grow_to(1 << 32), "the share is the client's, not the request's");
        // Another client may use half of the rest.
        let mut second = budget_of_client("two", BUDGET);
        assert!(second.try_grow_to(MUCH / 2));
        assert!(!second.try_grow_to(MUCH / 2 + (1 << 31)));
        drop(first);
        assert!(second.try_grow_to(MUCH / 2 + (1 << 31)), "a dropped share returns its bytes");
    }

    /// 1,300 idle requests of one client, and the largest body of another client.
    #[test]
    fn idle_requests_of_one_client_do_not_block_another() {
        let budget = 64 << 20;
        let idle: Vec<_> = (0..1_300)
            .map(|_| {
                let mut idle = new_budget(64 * 1024, budget);
                let _ = idle.try_reserve_head(&head_of_len(100), Key::custom("idle"))
                    && idle.try_declare_length(Some(64 * 1024));
                idle
            })
            .collect();
        let mut other = new_budget(64 * 1024, budget);
        assert!(
            other.try_reserve_head(&head_of_len(100), Key::custom("other"))
                && other.try_declare_length(Some(64 * 1024))
        );
        assert!(other.try_grow_to(64 * 1024));
        drop(idle);
    }

    #[test]
    fn head_is_reserved_beside_the_body() {
        let mut first = new_budget(10, BUDGET);
        assert!(
            first.try_reserve_head(&head_of_len(100), Key::custom("a")) && first.try_grow_to(10),
            "its limit is the body's"
        );
        assert_eq!((first.reserved_head, first.reserved_body), (102, 10));
        assert!(
            !new_budget(10, 0).try_reserve_head(&head_of_len(0), Key::custom("a")),
            "both layers share the budget"
        );
    }

    #[test]
    fn usage_of_a_client_ends_with_its_last_reservation() {
        let first = budget_of_client("of a moment", 10);
        assert!(BUFFER_USAGE.lock().by_client.contains_key(&Key::custom("of a moment")));
        drop(first);
        assert!(!BUFFER_USAGE.lock().by_client.contains_key(&Key::custom("of a moment")));
    }
}
