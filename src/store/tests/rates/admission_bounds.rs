//! What is promised of every algorithm, whatever is asked and given back: on the embedded store, whose clock stands still.

use std::time::Duration;

use proptest::prelude::*;

use super::{charge_item, repeated_charge};
use crate::store::{
    ChargeItem, ChargedWindow, QuotaRule, QuotaSnapshot,
    tests::{
        client_operation::proptest_config,
        store_harness::{StoreHarness, test_key},
    },
};

fn quota_rules() -> impl Strategy<Value = QuotaRule> {
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
enum ServerDisruption {
    /// What was spent is forgotten, by a hand or with all its data.
    DataLoss,
    /// Its clock is put back, by more than all that passes in a case.
    ClockRewind,
}

const REWIND_TIME: Duration = Duration::from_secs(1_000_000);

/// A cost, how often, how many ms pass before, and what is given back then: of which charge, how much. Before all
/// that, what happens.
type ChargeStep = (u64, u32, u64, Option<(usize, u64)>, Option<ServerDisruption>);

fn charge_steps() -> impl Strategy<Value = Vec<ChargeStep>> {
    let pass = prop_oneof![Just(0_u64), 0..900_u64];
    let back = prop::option::of((0..6_usize, 1..5_u64));
    let upset = prop_oneof![
        10 => Just(None),
        1 => Just(Some(ServerDisruption::DataLoss)),
        1 => Just(Some(ServerDisruption::ClockRewind)),
    ];
    prop::collection::vec((1..4_u64, 0..4_u32, pass, back, upset), 1..40)
}

/// What was let in.
#[derive(Debug)]
struct AdmittedCharge {
    at_ms: u64,
    /// What of it was not given back.
    units: u64,
    /// None, once something was given back.
    window: Option<ChargedWindow>,
    /// How often the store had lost all before.
    data_epoch: usize,
}

type AdmissionLog = Vec<AdmittedCharge>;

/// The most that may be let in within any stretch of so many ms, by the definition of the rule.
fn max_admitted(rule: &QuotaRule, stretch: u64) -> u64 {
    let whole = |window: Duration| u64::try_from(window.as_millis()).unwrap();
    match *rule {
        // Windows do not overlap: a stretch touches so many of them.
        QuotaRule::Fixed { limit, window } => limit * (stretch / whole(window) + 2),
        QuotaRule::Sliding { limit, window } => limit * (stretch / whole(window) + 2),
        QuotaRule::Gcra { limit, window, burst } => burst + stretch * limit / whole(window),
    }
}

impl AdmittedCharge {
    fn new([now, units]: [u64; 2], state: &QuotaSnapshot, life: usize) -> Self {
        Self { at_ms: now, units, window: Some(state.charged_window), data_epoch: life }
    }
}

fn assert_admissions_in_bound(rule: &QuotaRule, log: &AdmissionLog) {
    for (at, first) in log.iter().enumerate() {
        let mut sum = 0;
        for entry in log[at..].iter().take_while(|entry| first.data_epoch == entry.data_epoch) {
            sum += entry.units;
            let stretch = entry.at_ms - first.at_ms;
            let most = max_admitted(rule, stretch);
            assert!(sum <= most, "{sum} in {stretch} ms, may be {most}: {log:?}");
        }
    }
}

async fn run_charge_steps(rule: QuotaRule, asked: &[ChargeStep]) {
    let (rig, key) = (StoreHarness::memory(), test_key());
    let (mut now, mut life, mut log) = (0, 0, AdmissionLog::new());
    for &(cost, times, pass, back, upset) in asked {
        rig.advance(Duration::from_millis(pass)).await;
        now += pass;
        let wanted = charge_item("p", &key, rule, cost);
        match upset {
            Some(ServerDisruption::DataLoss) => {
                rig.reset_counter(&wanted, &key).await;
                life += 1;
                // Windows are known by the time, to 2 ms.
                rig.advance(Duration::from_millis(3)).await;
                now += 3;
            }
            Some(ServerDisruption::ClockRewind) => rig.rewind_clock(REWIND_TIME).await,
            None => {}
        }
        if let Some((n, units)) = back {
            refund_charge(&rig, &wanted, &mut log, [n, life], units).await;
        }
        let before = rig.read_quota(&wanted).await;
        let charged = rig.charge(repeated_charge(vec![wanted.clone()], times)).await;
        let state = &charged.snapshots[0];
        let spent = u64::from(charged.admitted) * cost;
        assert_eq!(state.remaining + spent, before.remaining, "exactly what was admitted is gone");
        if charged.admitted > 0 {
            log.push(AdmittedCharge::new([now, spent], state, life));
        }
        assert_eq!(rig.read_quota(&wanted).await, *state, "what was told stands");
        assert_retry_time_exact(&rig, &wanted, &mut now, &mut log, life).await;
    }
    assert_admissions_in_bound(&rule, &log);
}

/// What is given back counts as if it had never been charged, also if less of it was really given back.
async fn refund_charge(
    rig: &StoreHarness,
    wanted: &ChargeItem,
    log: &mut AdmissionLog,
    [n, life]: [usize; 2],
    units: u64,
) {
    let Some(at) = log.len().checked_sub(1 + n) else { return };
    let entry = &mut log[at];
    let Some(window) = entry.window.take() else { return };
    let units = units.min(entry.units);
    let lost = entry.data_epoch < life;
    entry.units -= if lost { 0 } else { units };
    let before = rig.read_quota(wanted).await.remaining;
    let after = rig.refund(wanted, units, window).await.remaining;
    let most = if lost { 0 } else { units };
    assert!((before..=before + most).contains(&after), "{before} {after} {entry:?}");
}

/// Who is refused and waits as long as he is told is let in; a millisecond before that he is not. Sooner than
/// told there is no more quota.
async fn assert_retry_time_exact(
    rig: &StoreHarness,
    wanted: &ChargeItem,
    now: &mut u64,
    log: &mut AdmissionLog,
    life: usize,
) {
    let (admitted, state) = rig.charge_once(wanted).await;
    if admitted {
        log.push(AdmittedCharge::new([*now, wanted.cost], &state, life));
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
    assert!(!rig.charge_once(wanted).await.0, "it could have been told to come sooner than {told}");
    rig.advance(Duration::from_millis(1)).await;
    let (admitted, state) = rig.charge_once(wanted).await;
    assert!(admitted, "not after {told} ms: {state:?}");
    *now += told;
    log.push(AdmittedCharge::new([*now, wanted.cost], &state, life));
    let full = state.full_after;
    let part = full.saturating_sub(Duration::from_millis(1));
    rig.advance(part).await;
    assert_ne!(rig.read_quota(wanted).await.full_after, Duration::ZERO, "full sooner than told");
    rig.advance(full - part).await;
    assert_eq!(rig.read_quota(wanted).await.full_after, Duration::ZERO, "not full in time");
    *now += u64::try_from(full.as_millis()).unwrap();
}

proptest! {
    #![proptest_config(proptest_config(600))]

    #[test]
    fn admissions_stay_in_bound_and_retry_times_are_exact(rule in quota_rules(), asked in charge_steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(run_charge_steps(rule, &asked));
    }
}
