//! Timer with a precision below that of tokio's timers.

use std::{
    thread,
    time::{Duration, Instant as Real},
};

use tokio::{
    task::{JoinHandle, spawn_blocking},
    time::{Instant, sleep_until, timeout_at},
};

/// Maximum lateness of tokio's timers. They count in milliseconds and round up twice: the deadline,
/// and then the wait. The timer asks tokio for a wait that is shorter by this time.
const TIMER_SLACK: Duration = Duration::from_millis(2);

/// Timer for a series of deadlines.
///
/// The last part of a wait, shorter than [`TIMER_SLACK`], is slept by a blocking thread of the
/// runtime. There is at most one such thread for a timer, however many deadlines are due.
#[derive(Debug, Default)]
pub(crate) struct PreciseTimer {
    last_sleep: Option<(Instant, JoinHandle<()>)>,
}

impl PreciseTimer {
    /// Waits until `at`, never less; forever if it is `None`. Cancel safe: a dropped call can be
    /// repeated.
    pub(crate) async fn wait_until(&mut self, at: Option<Instant>) {
        let Some(at) = at else { return std::future::pending().await };
        if let Some(before) = at.checked_sub(TIMER_SLACK) {
            sleep_unless_past(before).await;
        }
        while at > Instant::now() && is_real_time() {
            // A thread that sleeps for longer than this is abandoned.
            let (_, last) = match self.last_sleep.take() {
                Some(last) if last.0 <= at => self.last_sleep.insert(last),
                _ => self.last_sleep.insert((at, spawn_blocking(move || block_until(at)))),
            };
            // Without a free thread the sleep starts late, and tokio's timer ends first.
            let Ok(Ok(())) = timeout_at(at, last).await else { break };
            self.last_sleep = None;
        }
        sleep_unless_past(at).await;
    }
}

/// Sleeps unless `at` has passed. tokio would wait for the end of its millisecond even then.
async fn sleep_unless_past(at: Instant) {
    if at > Instant::now() {
        sleep_until(at).await;
    }
}

fn block_until(until: Instant) {
    thread::sleep(until.saturating_duration_since(Instant::now()));
}

/// Returns false if a test has paused tokio's clock, which then advances by its timers alone.
fn is_real_time() -> bool {
    let before = Real::now();
    let tokio_now = Instant::now().into_std();
    before <= tokio_now && tokio_now <= Real::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The benchmarks measure the lateness.
    #[tokio::test]
    async fn timer_never_fires_early() {
        let mut alarm = PreciseTimer::default();
        for n in 0..21 {
            let at = Instant::now() + 3 * MS + Duration::from_micros(130) * n;
            alarm.wait_until(Some(at)).await;
            assert!(Instant::now() >= at);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn paused_clock_uses_tokio_timers() {
        assert!(!is_real_time());
        let mut alarm = PreciseTimer::default();
        for ms in [1, 2, 3, 50, 60_000] {
            let at = Instant::now() + ms * MS;
            alarm.wait_until(Some(at)).await;
            assert_eq!(Instant::now(), at);
            assert!(alarm.last_sleep.is_none(), "no thread was asked");
        }
    }

    /// A worker drops and repeats a wait with each step.
    #[tokio::test]
    async fn repeated_wait_uses_one_sleeping_thread() {
        let mut sleepers = 0;
        // On a busy machine the time may have passed before the wait starts.
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
    async fn earlier_deadline_replaces_a_later_one() {
        let mut alarm = PreciseTimer::default();
        let far = Instant::now() + Duration::from_secs(60);
        // As if a thread slept for it already.
        alarm.last_sleep = Some((far, spawn_blocking(|| {})));
        let near = Instant::now() + MS;
        alarm.wait_until(Some(near)).await;
        assert!((near..far).contains(&Instant::now()));
    }
}
