//! How much of a parked request's body may be read.

use std::sync::atomic::{AtomicUsize, Ordering};

/// What all bodies take that are being read in this process.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Room for one body: its own limit, and its part of what all bodies of this process may take together.
/// Nobody waits for room: if there is none, the request is refused. Dropping it gives back what it has.
#[derive(Debug)]
pub struct Room {
    limit: usize,
    budget: usize,
    taken: usize,
}

impl Room {
    pub(crate) fn new(limit: usize, budget: usize) -> Self {
        Self { limit, budget, taken: 0 }
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
        let fits = |used: usize| used.checked_add(more).filter(|used| *used <= self.budget);
        let taken = USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok();
        if taken {
            self.taken = bytes;
        }
        taken
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
        USED.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Other tests of this process take room too, far less than these.
    const MUCH: usize = usize::MAX / 2;

    #[test]
    fn a_body_has_its_limit() {
        let mut room = Room::new(10, MUCH);
        assert!(room.expect(None) && room.expect(Some(10)) && !room.expect(Some(11)));
        assert!(room.grow_to(10) && !room.grow_to(11) && !room.expect(Some(u64::MAX)));
    }

    #[test]
    fn all_bodies_share_the_budget() {
        let (mut one, mut two) = (Room::new(MUCH, MUCH), Room::new(MUCH, MUCH));
        assert!(one.grow_to(MUCH - (1 << 30)));
        assert!(!two.grow_to(1 << 30 | 1), "there is less than this left");
        assert!(two.grow_to(1 << 20));
        drop(one);
        assert!(two.grow_to(1 << 30 | 1), "what is dropped is given back");
    }
}
