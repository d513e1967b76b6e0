//! Waking at a moment, and not a millisecond or two behind it.

use std::{
    thread,
    time::{Duration, Instant as Real},
};

use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::{Instant, sleep_until, timeout_at},
};

/// tokio counts in milliseconds, rounds the moment up to one, and then the wait for it: it is late by up to two. So it
/// is asked for so much less.
const TIMER_SLACK: Duration = Duration::from_millis(2);

/// Wakes whoever waits for the next of some moments. The last of such a wait, shorter than [`TIMER_SLACK`], is slept by a thread
/// of the runtime's that may block: by one, however much is due at a moment.
#[derive(Debug, Default)]
pub(crate) struct PreciseTimer {
    last_sleep: Option<(Instant, JoinHandle<()>)>,
}

impl PreciseTimer {
    /// Until that moment, never less; for ever, if there is none. Cancel safe, and made to be dropped and called again.
    pub(crate) async fn wait_until(&mut self, at: Option<Instant>) {
        let Some(at) = at else { return std::future::pending().await };
        if let Some(before) = at.checked_sub(TIMER_SLACK) {
            sleep_unless_past(before).await;
        }
        while at > Instant::now() && is_real_time() {
            // Whoever sleeps for longer than this is left to itself.
            let (_, last) = match self.last_sleep.take() {
                Some(last) if last.0 <= at => self.last_sleep.insert(last),
                _ => self.last_sleep.insert((at, spawn_blocking(move || block_until(at)))),
            };
            // If no thread is free it waits for one, and tokio's timer is sooner.
            let Ok(Ok(())) = timeout_at(at, last).await else { break };
            self.last_sleep = None;
        }
        sleep_unless_past(at).await;
    }
}

/// tokio waits for the end of its millisecond, even if the moment has passed.
async fn sleep_unless_past(at: Instant) {
    if at > Instant::now() {
        sleep_until(at).await;
    }
}

fn block_until(until: Instant) {
    thread::sleep(until.saturating_duration_since(Instant::now()));
}

/// Tests stop tokio's clock, which then goes on by its timers alone.
fn is_real_time() -> bool {
    let before = Real::now();
    let told = Instant::now().into_std();
    before <= told && told <= Real::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// How late it is, is for the benchmarks.
    #[tokio::test]
    async fn it_is_never_early() {
        let mut alarm = PreciseTimer::default();
        for n in 0..21 {
            let at = Instant::now() + 3 * MS + Duration::from_micros(130) * n;
            alarm.wait_until(Some(at)).await;
            assert!(Instant::now() >= at);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopped_clock_is_told_by_its_timers() {
        assert!(!is_real_time());
        let mut alarm = PreciseTimer::default();
        for ms in [1, 2, 3, 50, 60_000] {
            let at = Instant::now() + ms * MS;
            alarm.wait_until(Some(at)).await;
            assert_eq!(Instant::now(), at);
            assert!(alarm.last_sleep.is_none(), "no thread was asked");
        }
    }

    /// A worker does so with each step.
    #[tokio::test]
    async fn a_wait_that_is_dropped_and_begun_again_has_one_thread() {
        let mut sleepers = 0;
        // A machine that has other things to do may leave nothing of a wait.
        for _ in 0..1000 {
            let (mut alarm, at) = (PreciseTimer::default(), Instant::now() + MS);
            let mut sleeper = None;
            while at > Instant::now() {
                tokio::select! {
                    biased;
                    () = alarm.wait_until(Some(at)) => break,
                    () = tokio::task::yield_now() => {}
                }
                let Some((_, last)) = &alarm.last_sleep else { continue };
                assert_eq!(*sleeper.get_or_insert(last.id()), last.id());
            }
            sleepers += u32::from(sleeper.is_some());
            if sleepers == 3 {
                return;
            }
        }
        panic!("no thread was ever asked");
    }

    #[tokio::test]
    async fn another_moment_may_come_first() {
        let mut alarm = PreciseTimer::default();
        let far = Instant::now() + Duration::from_secs(60);
        // As if it were slept for already.
        alarm.last_sleep = Some((far, spawn_blocking(|| {})));
        let near = Instant::now() + MS;
        alarm.wait_until(Some(near)).await;
        assert!((near..far).contains(&Instant::now()));
    }
}
