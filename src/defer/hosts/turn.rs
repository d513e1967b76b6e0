//! One call, from its turn to its end.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    CallRoom, FIRST, Hosts, SLOW, State,
    place::{Last, Place, Standing, places},
};
use crate::key::Key;

/// The turn of one call. It ends when this is dropped.
pub(in crate::defer) struct Turn {
    hosts: Arc<Hosts>,
    key: Key,
    host: Arc<str>,
    proven: bool,
    room: CallRoom,
    since: Instant,
    course: Mutex<Course>,
}

#[derive(Default)]
struct Course {
    /// The call counts there.
    addresses: Vec<Place>,
    /// It was called off before it was sent.
    refused: bool,
    answered: Option<bool>,
}

impl Turn {
    pub(super) fn new(
        hosts: Arc<Hosts>,
        key: Key,
        host: Arc<str>,
        proven: bool,
        room: CallRoom,
    ) -> Self {
        let (since, course) = (Instant::now(), Mutex::default());
        Self { hosts, key, host, proven, room, since, course }
    }

    /// Bound of the call, below that of whoever makes it: a host that has not answered yet is given little time at first, and
    /// more with each attempt, since a slow one has to be able to answer at last.
    #[cfg_attr(not(any(test, feature = "callback")), allow(dead_code, reason = "no sender"))]
    pub(in crate::defer) fn timeout(&self, attempt: u32) -> Option<Duration> {
        (!self.proven).then(|| FIRST.saturating_mul(attempt.max(1)))
    }

    /// The host has these addresses. False if one of them has no turn: then nothing must be sent.
    #[cfg_attr(not(any(test, feature = "callback")), allow(dead_code, reason = "no sender"))]
    pub(in crate::defer) fn reaches(&self, addresses: &[SocketAddr]) -> bool {
        let (places, mut course) = (places(addresses), self.course.lock());
        let mut state = self.hosts.0.lock();
        if let Some(host) = state.places.get_mut(&Place::Host(Arc::clone(&self.host))) {
            host.addresses.clone_from(&places);
        }
        let most = self.room.of_slow(self.proven);
        let admits = |place| {
            let standing: Option<&Standing> = state.places.get(place);
            standing.is_none_or(|standing| standing.admits(most, self.room.crowded))
        };
        if !places.iter().all(admits) {
            course.refused = true;
            state.remember(&self.key, &self.host);
            return false;
        }
        for place in &places {
            state.places.entry(place.clone()).or_default().calls += 1;
        }
        course.addresses = places;
        true
    }

    /// The call has ended.
    pub(in crate::defer) fn ended(&self, answered: bool) {
        self.course.lock().answered = Some(answered);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let course = std::mem::take(self.course.get_mut());
        let slow = self.since.elapsed() > SLOW;
        let last = match course.answered {
            _ if course.refused => None,
            Some(true) if slow => Some(Last::Slow),
            Some(true) => Some(Last::Prompt),
            // Also of a call that was given up.
            _ if slow => Some(Last::Silent),
            Some(false) => Some(Last::Unknown),
            None => None,
        };
        let mut state = self.hosts.0.lock();
        state.unproven = state.unproven.saturating_sub(usize::from(!self.proven));
        state.leave(&Place::Host(Arc::clone(&self.host)), last);
        // What failed at once says nothing of the address: the port may be closed, and others open.
        let of_address = last.filter(|last| *last != Last::Unknown);
        for place in &course.addresses {
            state.leave(place, of_address);
        }
    }
}

impl State {
    /// A call to this place has ended.
    fn leave(&mut self, place: &Place, last: Option<Last>) {
        let Some(standing) = self.places.get_mut(place) else { return };
        standing.calls = standing.calls.saturating_sub(1);
        standing.last = last.unwrap_or(standing.last);
        standing.called = Instant::now();
        if standing.is_idle() {
            self.places.remove(place);
        }
        self.forget_one();
    }
}
