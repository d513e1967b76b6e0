//! A step on its way, as its caller waits for it.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::{Flights, Outcome, ticket::Waiting};

/// What a step comes to. Those who wait in the queue, under load nearly all, have nothing on the heap for that but their
/// place in it.
pub(in super::super) struct Calling<F: Flights>(pub(super) Course<F>);

pub(super) enum Course<F: Flights> {
    /// It goes alone, leads those who stood in the queue, or looks at the clock itself.
    Boxed(BoxFuture<'static, Outcome<F>>),
    /// Somebody rings for it when its time is over.
    Watched { waiting: Waiting<Outcome<F>>, until: Instant, name: &'static str },
    /// Not to be polled again.
    Over,
}

impl<F: Flights> Future for Calling<F> {
    type Output = Outcome<F>;

    #[expect(clippy::panic, reason = "a future that is polled after its end may panic")]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome<F>> {
        let course = &mut self.get_mut().0;
        if let Course::Watched { waiting, .. } = course {
            if let Some(outcome) = ready!(waiting.poll(cx)) {
                *course = Course::Over;
                return Poll::Ready(outcome);
            }
            if let Course::Watched { waiting, until, name } = mem::replace(course, Course::Over) {
                *course = Course::Boxed(Box::pin(waiting.until(until, name)));
            }
        }
        match course {
            Course::Boxed(call) => call.as_mut().poll(cx),
            Course::Watched { .. } | Course::Over => panic!("polled after completion"),
        }
    }
}
