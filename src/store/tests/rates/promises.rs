//! What is promised of every algorithm, whatever is asked and given back: on the embedded store, whose clock stands still.

use std::time::Duration;

use proptest::prelude::*;

use super::{item, of};
use crate::store::{
    ChargeItem, ChargedWindow, QuotaRule, QuotaSnapshot,
    tests::{
        moves::cases,
        rig::{Rig, key},
    },
};

fn rules() -> impl Strategy<Value = QuotaRule> {
    let window = || (1..5000_u64).prop_map(Duration::from_millis);
    prop_oneof![
        (1..9_u64, window()).prop_map(|(limit, window)| QuotaRule::Fixed { limit, window }),
        (1..9_u64, window()).prop_map(|(limit, window)| QuotaRule::Sliding { limit, window }),
        (1..9_u64, window(), 1..9_u64).prop_map(|(limit, window, burst)| QuotaRule::Gcra {
            limit,
            window,
            burst
        }),
    ]
}

/// What may happen to a server.
#[derive(Debug, Clone, Copy)]
enum Upset {
    /// What was spent is forgotten, by a hand or with all its data.
    Loss,
    /// Its clock is put back, by more than all that passes in a case.
    PutBack,
}

const FAR: Duration = Duration::from_secs(1_000_000);

/// A cost, how often, how many ms pass before, and what is given back then: of which charge, how much. Before all
/// that, what happens.
type Asked = (u64, u32, u64, Option<(usize, u64)>, Option<Upset>);

fn asked() -> impl Strategy<Value = Vec<Asked>> {
    let pass = prop_oneof![Just(0_u64), 0..900_u64];
    let back = prop::option::of((0..6_usize, 1..5_u64));
    let upset = prop_oneof![
        10 => Just(None),
        1 => Just(Some(Upset::Loss)),
        1 => Just(Some(Upset::PutBack)),
    ];
    prop::collection::vec((1..4_u64, 0..4_u32, pass, back, upset), 1..40)
}

/// What was let in.
#[derive(Debug)]
struct Entry {
    now: u64,
    /// What of it was not given back.
    units: u64,
    /// None, once something was given back.
    window: Option<ChargedWindow>,
    /// How often the store had lost all before.
    life: usize,
}

type Log = Vec<Entry>;

/// The most that may be let in within any stretch of so many ms, by the definition of the rule.
fn most(rule: &QuotaRule, stretch: u64) -> u64 {
    let whole = |window: Duration| u64::try_from(window.as_millis()).unwrap();
    match *rule {
        // Windows do not overlap: a stretch touches so many of them.
        QuotaRule::Fixed { limit, window } => limit * (stretch / whole(window) + 2),
        QuotaRule::Sliding { limit, window } => limit * (stretch / whole(window) + 2),
        QuotaRule::Gcra { limit, window, burst } => burst + stretch * limit / whole(window),
    }
}

impl Entry {
    fn new([now, units]: [u64; 2], state: &QuotaSnapshot, life: usize) -> Self {
        Self { now, units, window: Some(state.charged_window), life }
    }
}

fn never_too_much(rule: &QuotaRule, log: &Log) {
    for (at, first) in log.iter().enumerate() {
        let mut sum = 0;
        for entry in log[at..].iter().take_while(|entry| first.life == entry.life) {
            sum += entry.units;
            let stretch = entry.now - first.now;
            let most = most(rule, stretch);
            assert!(sum <= most, "{sum} in {stretch} ms, may be {most}: {log:?}");
        }
    }
}

async fn play(rule: QuotaRule, asked: &[Asked]) {
    let (rig, key) = (Rig::memory(), key());
    let (mut now, mut life, mut log) = (0, 0, Log::new());
    for &(cost, times, pass, back, upset) in asked {
        rig.advance(Duration::from_millis(pass)).await;
        now += pass;
        let wanted = item("p", &key, rule, cost);
        match upset {
            Some(Upset::Loss) => {
                rig.reset(&wanted, &key).await;
                life += 1;
                // Windows are known by the time, to 2 ms.
                rig.advance(Duration::from_millis(3)).await;
                now += 3;
            }
            Some(Upset::PutBack) => rig.put_back(FAR).await,
            None => {}
        }
        if let Some((n, units)) = back {
            give_back(&rig, &wanted, &mut log, [n, life], units).await;
        }
        let before = rig.peek(&wanted).await;
        let charged = rig.charge(of(vec![wanted.clone()], times)).await;
        let state = &charged.snapshots[0];
        let spent = u64::from(charged.admitted) * cost;
        assert_eq!(state.remaining + spent, before.remaining, "exactly what was admitted is gone");
        if charged.admitted > 0 {
            log.push(Entry::new([now, spent], state, life));
        }
        assert_eq!(rig.peek(&wanted).await, *state, "what was told stands");
        waiting(&rig, &wanted, &mut now, &mut log, life).await;
    }
    never_too_much(&rule, &log);
}

/// What is given back counts as if it had never been charged, also if less of it was really given back.
async fn give_back(
    rig: &Rig,
    wanted: &ChargeItem,
    log: &mut Log,
    [n, life]: [usize; 2],
    units: u64,
) {
    let Some(at) = log.len().checked_sub(1 + n) else { return };
    let entry = &mut log[at];
    let Some(window) = entry.window.take() else { return };
    let units = units.min(entry.units);
    let lost = entry.life < life;
    entry.units -= if lost { 0 } else { units };
    let before = rig.peek(wanted).await.remaining;
    let after = rig.refund(wanted, units, window).await.remaining;
    let most = if lost { 0 } else { units };
    assert!((before..=before + most).contains(&after), "{before} {after} {entry:?}");
}

/// Who is refused and waits as long as he is told is let in; a millisecond before that he is not. Sooner than
/// told there is no more quota.
async fn waiting(rig: &Rig, wanted: &ChargeItem, now: &mut u64, log: &mut Log, life: usize) {
    let (admitted, state) = rig.spend(wanted).await;
    if admitted {
        log.push(Entry::new([*now, wanted.cost], &state, life));
        return;
    }
    if state.retry_after == Duration::MAX {
        return;
    }
    let told = u64::try_from(state.retry_after.as_millis()).unwrap();
    assert!(told > 0, "{state:?}");
    assert!(state.reset_after <= state.retry_after, "{state:?}");
    let early = Duration::from_millis(told - 1);
    rig.advance(early).await;
    assert!(!rig.spend(wanted).await.0, "it could have been told to come sooner than {told}");
    rig.advance(Duration::from_millis(1)).await;
    let (admitted, state) = rig.spend(wanted).await;
    assert!(admitted, "not after {told} ms: {state:?}");
    *now += told;
    log.push(Entry::new([*now, wanted.cost], &state, life));
    let full = state.full_after;
    let part = full.saturating_sub(Duration::from_millis(1));
    rig.advance(part).await;
    assert_ne!(rig.peek(wanted).await.full_after, Duration::ZERO, "full sooner than told");
    rig.advance(full - part).await;
    assert_eq!(rig.peek(wanted).await.full_after, Duration::ZERO, "not full in time");
    *now += u64::try_from(full.as_millis()).unwrap();
}

proptest! {
    #![proptest_config(cases(600))]

    #[test]
    fn never_too_much_and_waiting_as_told_helps(rule in rules(), asked in asked()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(play(rule, &asked));
    }
}
