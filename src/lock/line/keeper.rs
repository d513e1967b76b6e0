//! The keeper: one task per line that has nobody else to ask for it. It keeps the process's place in
//! the store's line, looks again when it is told to or when a timer says so, and gives what it is
//! granted to the first who still waits.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use super::{
    lines::{Front, Lines},
    map::Name,
    place::{Looked, Place},
    rules::Word,
};
use crate::{
    error::{Error, ErrorKind},
    lock::{asking::Asking, grant::outcome, guard::Released},
    store::{OFFER_TIMEOUT, ReleaseOutcome, LockHold, HoldState, LockMode, Store},
};

/// Longest time between two looks at the store, whatever the lease says: bounds a lost message, and
/// what a dead process before this one costs beyond its accept window.
const LOOK: Duration = OFFER_TIMEOUT;

/// So long before its end a place is kept for longer, if somebody wants it: a call and what may delay it.
const IN_TIME: Duration = Duration::from_millis(10);

/// How long the line keeps trying while the store is away. Requests get an answer soon, not late.
const OUTAGE: Duration = Duration::from_millis(500);

/// Readers let in at once behind the first of them: bounded as what is sent together is.
const READERS: usize = 32;

/// How a keeper begins.
pub(in crate::lock) enum Start {
    /// Where the first of this process came.
    Fresh,
    /// At a place that has been taken, to be looked at after this pause.
    At(Place, Duration),
    /// With a lease that is given back in the same call; who gave it back may want to know.
    Pass(LockHold, Option<oneshot::Sender<Released>>),
}

pub(in crate::lock) struct Keeper {
    lines: Arc<Lines>,
    store: Store,
    name: Name,
    bell: Arc<Notify>,
    away_since: Option<Instant>,
    /// The line has been told that nobody keeps it.
    done: bool,
}

/// What comes next.
enum Next {
    Look(Place),
    Pause(Place, Duration),
    Ended,
}

impl Keeper {
    pub(in crate::lock) fn spawn(
        lines: &Arc<Lines>,
        store: &Store,
        name: &Name,
        bell: Arc<Notify>,
        start: Start,
    ) {
        tracing::debug!(node = %store.node(), lock = %name.0.hashed(), "waiting in line");
        let keeper = Self {
            lines: Arc::clone(lines),
            store: store.clone(),
            name: name.clone(),
            bell,
            away_since: None,
            done: false,
        };
        store.spawn_background(keeper.run(start));
    }

    async fn run(mut self, start: Start) {
        let mut next = match start {
            Start::Fresh => Next::Look(self.new_place()),
            Start::At(place, pause) => Next::Pause(place, pause.min(LOOK)),
            Start::Pass(hold, tell) => self.pass(hold, tell).await,
        };
        loop {
            next = match next {
                Next::Look(place) => self.look(place).await,
                Next::Pause(place, pause) => {
                    self.pause(&place, pause).await;
                    Next::Look(place)
                }
                Next::Ended => return,
            };
        }
    }

    /// Until it is told something, or it is time to look again.
    async fn pause(&self, place: &Place, pause: Duration) {
        let (bell, offered) = (Arc::clone(&self.bell), Arc::clone(&place.offered));
        let look = async {
            let at = Instant::now() + pause + self.jitter();
            // The place was taken for those who waited then. Who has come since may wait for longer: for them
            // it is kept before it ends, or those who came later to other processes would be served first.
            let before = place.until.checked_sub(IN_TIME).unwrap_or(place.until);
            if before < at && Instant::now() < before {
                tokio::time::sleep_until(before).await;
                if self.lines.waits_beyond(&self.name, place.until) {
                    return;
                }
            }
            tokio::time::sleep_until(at.min(place.until.max(Instant::now() + IN_TIME))).await;
        };
        tokio::select! {
            () = offered.notified() => {}
            () = bell.notified() => {}
            () = look => {}
        }
    }

    /// Gives back what this process has, and asks for the next of it, in one call.
    async fn pass(&mut self, hold: LockHold, tell: Option<oneshot::Sender<Released>>) -> Next {
        let facts = Arc::clone(hold.state());
        let Some(front) = self.lines.front_for_now(&self.name) else {
            // All have left. The agent gives it back, for which a shutdown waits; and until it has that in hand, the
            // line has a keeper, for which a shutdown waits too.
            let given_back = hold.send_release();
            if tell.is_some()
                && let Ok(gave_back) = given_back.await
            {
                self.tell(tell, &facts, &gave_back);
            }
            return Next::Look(self.new_place());
        };
        let Front { asking, .. } = &front;
        let mut place = self.new_place();
        let (lease, call) = (asking.terms.initial_lease(), place.call(&front));
        let answer = place.attempt.send(lease, || hold.release_and_reacquire(call)).await;
        let (gave_back, answer) = match answer {
            Ok((gave_back, acquired)) => (Ok(gave_back), Ok(acquired)),
            Err(error) => (Err(Error::new(error.kind(), "release")), Err(error)),
        };
        self.tell(tell, &facts, &gave_back);
        let looked = place.looked(asking, answer);
        self.decide(looked, asking).await
    }

    fn new_place(&self) -> Place {
        Place::new(&self.store, &self.name)
    }

    fn tell(
        &self,
        tell: Option<oneshot::Sender<Released>>,
        facts: &HoldState,
        gave_back: &Result<ReleaseOutcome, Error>,
    ) {
        if let Some(tell) = tell {
            let _ = tell.send(outcome(facts, gave_back));
        }
    }

    async fn look(&mut self, place: Place) -> Next {
        let Some(front) = self.lines.front(&self.name) else {
            self.done = true;
            return Next::Ended;
        };
        let looked = place.look(&front).await;
        self.decide(looked, &front.asking).await
    }

    async fn decide(&mut self, looked: Looked, asking: &Asking) -> Next {
        match looked {
            Looked::Held(hold, word, seq) => {
                self.away_since = None;
                self.serve(hold, word, seq, asking).await
            }
            Looked::Busy(place, busy) => {
                self.away_since = None;
                let pause = busy.left.min(LOOK);
                self.lines.note_busy(&self.name, busy);
                Next::Pause(place, pause)
            }
            Looked::Overdue(place, error) | Looked::Failed(place, error) => {
                let since = *self.away_since.get_or_insert_with(Instant::now);
                if error.kind() == ErrorKind::Config || since.elapsed() > OUTAGE {
                    self.done = true;
                    // The place is given back as it is dropped.
                    self.lines.fail(&self.name, error.kind());
                    return Next::Ended;
                }
                Next::Pause(place, Duration::from_millis(50))
            }
        }
    }

    /// The first of the line gets it. An exclusive lock comes to the others from guard to guard; of the
    /// other modes there may be more to be had.
    async fn serve(&mut self, hold: LockHold, word: Word, seq: u64, asking: &Asking) -> Next {
        self.lines.note_time(&self.name, word);
        let guard = self.lines.granted(hold, asking, word);
        let exclusive = asking.terms.mode == LockMode::Exclusive;
        if exclusive {
            self.done = true;
            // Before the guard is given away: when it ends, it looks whether somebody asks already.
            self.lines.keeper_ends(&self.name);
        }
        self.lines.give(&self.name, asking, guard);
        if exclusive {
            return Next::Ended;
        }
        if asking.terms.mode == LockMode::Shared && !self.let_in_readers(seq).await {
            self.done = true;
            return Next::Ended;
        }
        Next::Look(self.new_place())
    }

    /// Those who stood behind the first reader come in with it: they have its sequence. Where there are more of them than
    /// can be sent together, the others come in by the next look, which asks for the place where the first of them came:
    /// a writer who came after it is not let in between.
    ///
    /// False if nobody waits any more: then the line has no keeper.
    async fn let_in_readers(&self, seq: u64) -> bool {
        let Some(front) = self.lines.front(&self.name) else {
            return false;
        };
        let reader = || async {
            let mut place = self.new_place();
            place.old_seq = seq;
            match place.try_once(&front).await {
                Looked::Held(hold, word, _) => Some(self.lines.granted(hold, &front.asking, word)),
                Looked::Busy(place, _) => {
                    place.attempt.mark_refused();
                    None
                }
                Looked::Overdue(..) | Looked::Failed(..) => None,
            }
        };
        let readers = join_all((0..front.number.min(READERS)).map(|_| reader())).await;
        for guard in readers.into_iter().flatten() {
            self.lines.give(&self.name, &front.asking, guard);
        }
        true
    }

    /// Processes whose timers were set by the same lease should not all look at once.
    fn jitter(&self) -> Duration {
        let byte = self.store.node().as_str().bytes().fold(0u8, u8::wrapping_add);
        Duration::from_millis(u64::from(byte % 32))
    }
}

/// If the runtime drops the task, its waiters' channels must not stay in the map for ever.
impl Drop for Keeper {
    fn drop(&mut self) {
        if !self.done {
            self.lines.fail(&self.name, ErrorKind::Unavailable);
        }
    }
}
