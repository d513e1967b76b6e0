//! Who stands before a lane, and who is under way on it.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Flights, Outcome, doubtful, ticket::Ticket, watch::Watch};
use crate::error::{Error, ErrorKind};

/// Flights under way at most, and lively ones where the way to the server is very long.
const MOST: usize = 64;

/// Lively flights at most where the server is near: one that it is at, and those that it reads next. More would only lie in
/// the buffers of the connection, from where nothing comes back: when their deadline passes, nobody knows whether they
/// have run. What stands in the queue then was not sent.
const NEAR: usize = 4;

/// Lively flights more for each ms of the way.
const PER_MS: usize = 4;

/// Flights under way up to which nobody waits for company, where the way to the server is very long.
const ON_A_LONG_WAY: usize = 8;

/// A step and who waits for it.
pub(super) struct Entry<F: Flights> {
    pub(super) step: F::Step,
    pub(super) ticket: Arc<Ticket<Outcome<F>>>,
    pub(super) until: Instant,
    /// It was put, and is sent whoever listens.
    pub(super) put: bool,
    /// How often it was sent, and may have run.
    pub(super) sent: u32,
}

impl<F: Flights> Entry<F> {
    pub(super) fn fail(&self, name: &'static str, error: Error) {
        self.ticket.deliver(Err(doubtful(name, self.sent, error)));
    }

    /// The last time it was sent came to this.
    pub(super) fn end(mut self, name: &'static str, error: &Error) {
        if matches!(error.kind(), ErrorKind::Timeout | ErrorKind::Protocol) {
            // It may have run. Whoever leaves before this is delivered is to leave what was sent.
            self.sent -= 1;
        } else {
            self.unsend();
        }
        self.fail(name, error.clone());
    }

    /// It was not sent after all, or has not run.
    pub(super) fn unsend(&mut self) {
        self.sent -= 1;
        if self.sent == 0 {
            self.ticket.not_run();
        }
    }

    /// Whether it may be put on the wire now. From here on it counts as sent.
    pub(super) fn goes(&mut self, name: &'static str, now: Instant) -> bool {
        if now >= self.until {
            // Its caller's timer is late, or nobody looks at it.
            self.fail(name, Error::new(ErrorKind::Unavailable, name));
            return false;
        }
        let goes = self.ticket.send();
        self.sent += u32::from(goes);
        goes
    }
}

pub(super) struct Lane<F: Flights> {
    pub(super) queue: VecDeque<Entry<F>>,
    pub(super) watch: Watch<F>,
    under_way: Vec<UnderWay>,
    /// Somebody has steps in hand that are not on the wire yet.
    taking: bool,
    last: u64,
    way: Way,
    /// How long nobody waits for one that is under way.
    stall: Duration,
}

struct UnderWay {
    id: u64,
    begun: Instant,
    /// When it took off; `None`: it has taken nothing from the queue yet, but will.
    since: Option<Instant>,
    /// It has been under way before: those who had its answers may be about to come.
    back: bool,
    /// Nobody waits for any of its steps: they were put.
    unawaited: bool,
    /// It is over by then, or stands still.
    over: Instant,
}

/// How long flights take: the least of the last ones, which is the way there and back, and not the work of
/// a server or a process that has much to do.
#[derive(Default)]
struct Way {
    least: Option<Duration>,
    before: Option<Duration>,
    flights: u32,
    /// Of all: a server that has much to do is no longer way.
    shortest: Option<Duration>,
}

impl Way {
    fn note(&mut self, flight: Duration) {
        self.least = Some(self.least.map_or(flight, |least| least.min(flight)));
        self.shortest = self.least.into_iter().chain(self.shortest).min();
        self.flights += 1;
        if self.flights.is_multiple_of(64) {
            self.before = self.least.take();
        }
    }

    fn least(&self) -> Duration {
        self.least.into_iter().chain(self.before).min().unwrap_or_default()
    }

    /// Lively flights at most.
    fn most(&self) -> usize {
        let millis = self.shortest.unwrap_or_default().as_millis();
        let more = usize::try_from(millis).unwrap_or(MOST).saturating_mul(PER_MS);
        NEAR.saturating_add(more).min(MOST)
    }

    /// Flights up to which nobody waits for company. To wait for one that is back within a millisecond
    /// spares the server more than it costs the caller; on a longer way it is the other way round.
    fn at_once(&self) -> usize {
        let millis = usize::try_from(self.least().as_millis()).unwrap_or(usize::MAX);
        millis.saturating_add(1).min(ON_A_LONG_WAY)
    }
}

impl<F: Flights> Lane<F> {
    pub(super) fn new(stall: Duration) -> Self {
        let (queue, under_way, way) = (VecDeque::new(), Vec::new(), Way::default());
        Self { queue, watch: Watch::default(), under_way, taking: false, last: 0, way, stall }
    }

    /// Those that somebody may wait for. One that takes long may have been answered long ago: nobody looks at its
    /// future, or its thread is at something else. The others do not wait for that.
    fn lively(&self, now: Instant) -> impl Iterator<Item = &UnderWay> + Clone {
        let stall = self.stall.max(4 * self.way.least());
        self.under_way.iter().filter(move |flight| flight.begun + stall > now)
    }

    /// Whether a call may go by itself. (If somebody is about to take the queue, it has company.)
    pub(super) fn is_idle(&mut self, now: Instant) -> bool {
        self.queue.is_empty() && !self.taking && self.coming(now) == 0 && self.has_room(now, true)
    }

    /// Whether as few are under way as may be without company. A caller does not wait for one flight that nobody waits
    /// for: behind a lock that was given back in the background the next call would take two ways instead of one.
    fn has_room(&self, now: Instant, for_a_caller: bool) -> bool {
        let unawaited = for_a_caller && self.lively(now).any(|flight| flight.unawaited);
        self.under_way.len() < MOST
            && self.lively(now).count() < self.way.at_once() + usize::from(unawaited)
    }

    /// How many are about to take something out of the queue. Those that stand still are left out.
    fn coming(&mut self, now: Instant) -> usize {
        self.under_way.retain(|flight| flight.over > now);
        self.lively(now).filter(|flight| flight.since.is_none()).count()
    }

    /// Whether another flight should be made for those in the queue. While somebody is taking steps out of
    /// it the answer is no: he asks again.
    pub(super) fn wants_a_flight(&mut self, now: Instant) -> bool {
        if self.queue.is_empty() || self.taking {
            return false;
        }
        let coming = self.coming(now);
        let enough = if self.lively(now).count() - coming == 1 { F::ENOUGH } else { F::BATCH };
        let room = self.under_way.len() < MOST && self.lively(now).count() < self.way.most();
        let full = room && self.queue.len() >= enough + F::BATCH * coming;
        full || (coming == 0 && self.has_room(now, self.queue.iter().any(|entry| !entry.put)))
    }

    /// Whether a caller whose step stands last may go now with the others, before whoever was called for them
    /// comes. Not before one that is back: that one waits for company. And not with callers: they would hear
    /// of their answers only when this one is polled again, which nobody has promised. What was merely put
    /// is done when it is on the wire.
    pub(super) fn may_be_led(&self, now: Instant) -> bool {
        if !F::REPEATABLE || self.taking {
            return false;
        }
        let in_the_air = self.lively(now).filter(|flight| flight.since.is_some());
        let unawaited = in_the_air.clone().any(|flight| flight.unawaited);
        let back = self.lively(now).any(|flight| flight.back && flight.since.is_none());
        if back || in_the_air.count() >= self.way.at_once() + usize::from(unawaited) {
            return false;
        }
        // Under load there are many, and most of them are callers.
        let callers = self.queue.iter().rev().filter(|entry| !entry.put).take(2).count();
        let weight = || self.queue.iter().map(|entry| F::weight(&entry.step)).sum::<usize>();
        callers == 1 && weight() <= F::BATCH
    }

    /// Whether somebody will look at the queue again.
    pub(super) fn is_busy(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// A flight that takes off now, or one that will come and take what stands in the queue.
    pub(super) fn begin(&mut self, now: bool, over: Instant) -> u64 {
        self.last += 1;
        let begun = Instant::now();
        let (id, since) = (self.last, now.then_some(begun));
        self.under_way.push(UnderWay { id, begun, since, back: false, unawaited: false, over });
        self.last
    }

    pub(super) fn end(&mut self, id: u64) {
        let Some(at) = self.under_way.iter().position(|flight| flight.id == id) else {
            return;
        };
        if let Some(since) = self.under_way.swap_remove(at).since {
            self.way.note(since.elapsed());
        }
    }

    /// It takes off with what it has.
    pub(super) fn takes_off(&mut self, id: u64, unawaited: bool, over: Instant) {
        self.under_way.retain(|flight| flight.id != id);
        let begun = Instant::now();
        let since = Some(begun);
        self.under_way.push(UnderWay { id, begun, since, back: false, unawaited, over });
    }

    /// It is back, and will look at the queue again.
    pub(super) fn is_back(&mut self, id: u64, over: Instant) {
        self.end(id);
        let begun = Instant::now();
        self.under_way.push(UnderWay {
            id,
            begun,
            since: None,
            back: true,
            unawaited: false,
            over,
        });
    }

    /// Begins to take; false if somebody else does.
    pub(super) fn take(&mut self) -> bool {
        !std::mem::replace(&mut self.taking, true)
    }

    /// What was taken is on the wire.
    pub(super) fn taken(&mut self) {
        self.taking = false;
    }

    /// Takes out the front of the queue, as much as one flight takes.
    pub(super) fn front(&mut self) -> Vec<Entry<F>> {
        let (mut count, mut weight) = (0, 0);
        for entry in &self.queue {
            weight += F::weight(&entry.step);
            if weight > F::BATCH {
                break;
            }
            count += 1;
        }
        self.queue.drain(..count).collect()
    }
}
