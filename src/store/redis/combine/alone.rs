//! A flight of one, by its caller.

use std::iter;

use tokio::time::{Instant, sleep, timeout_at};

use super::{
    Fault, Flights, Outcome, PAUSE, Shared, doubtful,
    flight::{Slot, answer},
};
use crate::error::{Error, ErrorKind};

/// How far a lone call has come.
struct Lone<P> {
    sent: u32,
    path: Option<P>,
}

impl<F: Flights> Slot<F> {
    /// Sends the step in its caller's own future.
    pub(super) async fn alone(self, step: F::Step, until: Instant) -> Outcome<F> {
        let (flights, name) = (&self.shared.flights, self.shared.name);
        let mut lone = Lone { sent: 0, path: None };
        match timeout_at(until, self.shared.fly_alone(&step, &mut lone)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                if let Some(path) = &lone.path {
                    flights.late(path);
                }
                let kind = if lone.sent == 0 { ErrorKind::Unavailable } else { ErrorKind::Timeout };
                Err(Error::new(kind, name))
            }
        }
    }
}

impl<F: Flights> Shared<F> {
    async fn fly_alone(&self, step: &F::Step, lone: &mut Lone<F::Path>) -> Outcome<F> {
        let (flights, mut by_text) = (&self.flights, false);
        loop {
            let failed = |sent, error| Err(doubtful(self.name, sent, error));
            let path = match flights.path().await {
                Ok(path) => lone.path.insert(path),
                Err(error) => return failed(lone.sent, error),
            };
            let load = flights.load(iter::once(step), by_text);
            lone.sent += 1;
            let fault = match flights.send(path, &load).await {
                Ok(replies) => {
                    let (mut replies, sent) = (replies.into_iter(), lone.sent);
                    let (first, second) = (replies.next(), replies.next());
                    return answer::<F>(step, first, second, sent, self.name);
                }
                Err(fault) => fault,
            };
            lone.path = None;
            by_text = matches!(fault, Fault::NoScript);
            if !matches!(fault, Fault::Broken) {
                lone.sent -= 1;
            }
            match fault {
                Fault::Failed(error) => return failed(lone.sent, error),
                Fault::Broken if !F::REPEATABLE => {
                    return Err(Error::new(ErrorKind::Timeout, self.name));
                }
                Fault::NotRun => sleep(PAUSE).await,
                Fault::Broken if lone.sent > 1 => sleep(PAUSE).await,
                Fault::NoScript | Fault::Broken => {}
            }
        }
    }
}
