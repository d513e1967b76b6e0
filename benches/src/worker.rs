//! A worker process: so many tasks that take a lock and give it back, in a closed loop, through one
//! contestant, on the same two-threaded runtime for all of them.

use std::{
    io::{self, Write as _},
    mem, process,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::runtime::{Builder, Runtime};

use crate::{
    clock,
    contestant::{Contestant, Visitor, visit},
    lifeline::Orders,
    outcome::Outcome,
    plan::{Keys, Plan},
    record::{Event, Head},
    work,
};

/// Far more than any window, so that only a process that hangs is ended by it.
const AT_MOST: Duration = Duration::from_secs(120);

/// Beyond any time-out of anybody's.
const TO_CONNECT: Duration = Duration::from_secs(30);

pub(crate) fn main(plan: &str) -> Outcome<()> {
    let plan: Plan = serde_json::from_str(plan)?;
    visit(plan.contender.who, Worker { plan })
}

/// The runtime of every process that is measured: what tokio's default is on two cores.
pub(crate) fn runtime() -> Outcome<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

struct Worker {
    plan: Plan,
}

/// What one task leaves behind as it goes. Only its own task and, once, the end of the window touch it.
struct Seat {
    events: Mutex<Vec<Event>>,
    /// The moment at which it began to wait; zero while it does not.
    waiting_since: AtomicU64,
    errors: AtomicU64,
    first_error: Mutex<Option<String>>,
}

/// Events for which there is room from the start: to move them while a lock is held would be measured.
const ROOM: usize = 1 << 15;

impl Seat {
    fn new() -> Self {
        Self {
            events: Mutex::new(Vec::with_capacity(ROOM)),
            waiting_since: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            first_error: Mutex::new(None),
        }
    }

    fn had(&self, event: Event) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }

    fn failed(&self, sentence: &str) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let mut first = self.first_error.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert_with(|| sentence.to_owned());
    }
}

impl Visitor for Worker {
    fn meet<C: Contestant>(self) -> Outcome<()> {
        let plan = self.plan;
        let orders = Orders::listen(plan.contender, AT_MOST);
        let runtime = runtime()?;
        let contestant = runtime.block_on(connect::<C>(&plan))?;
        let contestant = Arc::new(contestant);
        let locks: Vec<_> = (0..plan.trial.tasks)
            .map(|task| names(&plan, task).map(|name| contestant.lock(&name)).collect())
            .collect();
        let start = orders.start()?;
        let mut seats = Vec::new();
        for (task, locks) in (0..).zip(locks) {
            let seat = Arc::new(Seat::new());
            let contestant = Arc::clone(&contestant);
            runtime.spawn(cycle(contestant, locks, plan.trial.work, task, Arc::clone(&seat)));
            seats.push(seat);
        }
        let end = start + clock::nanos(plan.window);
        clock::sleep_until(end);
        send(&seats, start, end)?;
        // The tasks still go round, and some peers never let go of a runtime: nothing is left to be seen.
        process::exit(0)
    }
}

/// A peer that hangs before it is ready is named, instead of holding up the run until all is given up.
async fn connect<C: Contestant>(plan: &Plan) -> Outcome<C> {
    let Plan { contender, port, .. } = plan;
    let connected = tokio::time::timeout(TO_CONNECT, C::connect(*port, contender.pause)).await;
    connected.map_err(|_| format!("{contender} has not connected within {TO_CONNECT:?}"))?
}

fn names(plan: &Plan, task: u32) -> impl Iterator<Item = String> {
    let process = plan.process;
    let count = match plan.trial.keys {
        Keys::Hot => 0,
        Keys::Own(count) => count,
    };
    let hot = (count == 0).then(|| "hot".to_owned());
    hot.into_iter().chain((0..count).map(move |key| format!("own-{process}-{task}-{key}")))
}

/// Takes its locks in turn, for ever.
async fn cycle<C: Contestant>(
    contestant: Arc<C>,
    locks: Vec<C::Lock>,
    turns: u64,
    task: u32,
    seat: Arc<Seat>,
) {
    for lock in locks.iter().cycle() {
        let asked = clock::now();
        seat.waiting_since.store(asked, Ordering::Relaxed);
        let guard = contestant.acquire(lock).await;
        let at = clock::now();
        seat.waiting_since.store(0, Ordering::Relaxed);
        let done = match guard {
            Ok(guard) => {
                if turns > 0 {
                    work::turns(turns);
                }
                let held = clock::now() - at;
                seat.had(Event { at, wait: at - asked, held, task });
                contestant.release(guard).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = done {
            seat.failed(&error.to_string());
            // Whoever fails at once must not look busy.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// Everything between the two moments, as one line and then bytes.
fn send(seats: &[Arc<Seat>], start: u64, end: u64) -> Outcome<()> {
    let mut head = Head::default();
    let mut bytes = Vec::new();
    // The waits first: reading out the events takes long enough to end some of them.
    for seat in seats {
        let since = seat.waiting_since.load(Ordering::Relaxed);
        if since != 0 && since < end {
            head.still_waiting = head.still_waiting.max(end - since);
        }
    }
    for seat in seats {
        let events = mem::take(&mut *seat.events.lock().unwrap_or_else(PoisonError::into_inner));
        for event in events.iter().filter(|event| (start..end).contains(&event.at)) {
            event.write(&mut bytes);
        }
        head.errors += seat.errors.load(Ordering::Relaxed);
        let first = seat.first_error.lock().unwrap_or_else(PoisonError::into_inner).take();
        head.first_error = head.first_error.or(first);
    }
    head.events = bytes.len() / Event::SIZE;
    let mut out = io::stdout().lock();
    writeln!(out, "{}", serde_json::to_string(&head)?)?;
    out.write_all(&bytes)?;
    Ok(out.flush()?)
}
