//! How much of a parked request's body may be read.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use super::Head;

/// What all requests take that are being read in this process.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Room for one body: its own limit, and its part of what all bodies of this process may take together.
/// Nobody waits for room: if there is none, the request is refused. Dropping it gives back what it has.
#[derive(Debug)]
pub struct Room {
    limit: usize,
    budget: usize,
    time: Duration,
    taken: usize,
    /// What the head takes.
    head: usize,
}

impl Room {
    pub(crate) fn new(limit: usize, budget: usize, time: Duration) -> Self {
        Self { limit, budget, time, taken: 0, head: 0 }
    }

    /// How long the whole body may take to arrive, from when its reading starts.
    #[must_use]
    pub fn time(&self) -> Duration {
        self.time
    }

    /// Takes room for this many bytes in all. False if there is none.
    #[must_use]
    pub fn grow_to(&mut self, bytes: usize) -> bool {
        if bytes > self.limit {
            return false;
        }
        let Some(more) = bytes.checked_sub(self.taken).filter(|more| *more > 0) else {
            return true;
        };
        let taken = self.take(more);
        if taken {
            self.taken = bytes;
        }
        taken
    }

    /// Takes room for the request's head, which counts beside the body's own limit. False if there is none.
    #[must_use]
    pub fn hold(&mut self, head: &Head) -> bool {
        let fields = head.headers.iter().map(|(name, value)| name.len() + value.len());
        let bytes = head.target.len() + fields.sum::<usize>();
        let held = self.take(bytes);
        self.head += if held { bytes } else { 0 };
        held
    }

    fn take(&self, more: usize) -> bool {
        let fits = |used: usize| used.checked_add(more).filter(|used| *used <= self.budget);
        USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// As `grow_to`, for what the client says of the body's length, before any of it is read. `None`: it
    /// says nothing.
    #[must_use]
    pub fn expect(&mut self, length: Option<u64>) -> bool {
        // A number too large for the machine is too large for any limit.
        length.is_none_or(|length| self.grow_to(usize::try_from(length).unwrap_or(usize::MAX)))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        USED.fetch_sub(self.taken + self.head, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other tests of this process take room too, far less than these.
    const MUCH: usize = usize::MAX / 2;

    fn room(limit: usize, budget: usize) -> Room {
        Room::new(limit, budget, Duration::MAX)
    }

    #[test]
    fn a_body_has_its_limit() {
        let mut one = room(10, MUCH);
        assert!(one.expect(None) && one.expect(Some(10)) && !one.expect(Some(11)));
        assert!(one.grow_to(10) && !one.grow_to(11) && !one.expect(Some(u64::MAX)));
    }

    #[test]
    fn all_bodies_share_the_budget() {
        let (mut one, mut two) = (room(MUCH, MUCH), room(MUCH, MUCH));
        assert!(one.grow_to(MUCH - (1 << 30)));
        assert!(!two.grow_to(1 << 30 | 1), "there is less than this left");
        assert!(two.grow_to(1 << 20));
        drop(one);
        assert!(two.grow_to(1 << 30 | 1), "what is dropped is given back");
    }

    #[test]
    fn a_head_takes_room_beside_the_body() {
        let head = |bytes| Head::new("PUT", "/", vec![("x".into(), vec![b'x'; bytes])], None);
        let mut one = room(10, 1 << 40);
        assert!(one.hold(&head(100)) && one.grow_to(10), "its limit is the body's");
        assert_eq!((one.head, one.taken), (102, 10));
        assert!(!room(10, 0).hold(&head(0)), "the budget is both of theirs");
    }
}
