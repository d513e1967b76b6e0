//! Bound on admissions for every algorithm, with random charges and refunds, on the embedded store
//! with a manual clock.

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

/// Disruption of a server.
#[derive(Debug, Clone, Copy)]
enum ServerDisruption {
    /// Charges are lost, by a reset or with all data.
    DataLoss,
    /// The clock is put back, by more than the duration of a case.
    ClockRewind,
}

const REWIND_TIME: Duration = Duration::from_secs(1_000_000);

/// One step: cost, repetitions, ms that pass before it, a refund (index of the charge from the
/// latest, units), and a disruption. The disruption and the refund come before the charge.
type ChargeStep = (u64, u32, u64, Option<(usize, u64)>, Option<ServerDisruption>);

fn charge_steps() -> impl Strategy<Value = Vec<ChargeStep>> {
    let elapsed_ms = prop_oneof![Just(0_u64), 0..900_u64];
    let refund = prop::option::of((0..6_usize, 1..5_u64));
    let disruption = prop_oneof![
        10 => Just(None),
        1 => Just(Some(ServerDisruption::DataLoss)),
        1 => Just(Some(ServerDisruption::ClockRewind)),
    ];
    prop::collection::vec((1..4_u64, 0..4_u32, elapsed_ms, refund, disruption), 1..40)
}

/// An admitted charge.
#[derive(Debug)]
struct AdmittedCharge {
    at_ms: u64,
    /// Units that were not refunded.
    units: u64,
    /// Window of the charge; `None` after a refund.
    window: Option<ChargedWindow>,
    /// Number of data losses before the charge.
    data_epoch: usize,
}

type AdmissionLog = Vec<AdmittedCharge>;

/// Returns the most units that may be admitted within any period of `period_ms`, by the definition
/// of the rule.
fn max_admitted(rule: &QuotaRule, period_ms: u64) -> u64 {
    let millis = |window: Duration| u64::try_from(window.as_millis()).unwrap();
    match *rule {
        // Windows do not overlap; a period touches at most this number of them.
        QuotaRule::Fixed { limit, window } => limit * (period_ms / millis(window) + 2),
        QuotaRule::Sliding { limit, window } => limit * (period_ms / millis(window) + 2),
        QuotaRule::Gcra { limit, window, burst } => burst + period_ms * limit / millis(window),
    }
}

impl AdmittedCharge {
    fn new([now, units]: [u64; 2], snapshot: &QuotaSnapshot, data_epoch: usize) -> Self {
        Self { at_ms: now, units, window: Some(snapshot.charged_window), data_epoch }
    }
}

fn assert_admissions_in_bound(rule: &QuotaRule, log: &AdmissionLog) {
    for (index, first) in log.iter().enumerate() {
        let mut sum = 0;
        for entry in log[index..].iter().take_while(|entry| first.data_epoch == entry.data_epoch) {
            sum += entry.units;
            let period_ms = entry.at_ms - first.at_ms;
            let bound = max_admitted(rule, period_ms);
            assert!(sum <= bound, "{sum} in {period_ms} ms, may be {bound}: {log:?}");
        }
    }
}

async fn run_charge_steps(rule: QuotaRule, steps: &[ChargeStep]) {
    let (rig, key) = (StoreHarness::memory(), test_key());
    let (mut now, mut data_epoch, mut log) = (0, 0, AdmissionLog::new());
    for &(cost, repetitions, elapsed_ms, refund, disruption) in steps {
        rig.advance(Duration::from_millis(elapsed_ms)).await;
        now += elapsed_ms;
        let item = charge_item("p", &key, rule, cost);
        match disruption {
            Some(ServerDisruption::DataLoss) => {
                rig.reset_counter(&item, &key).await;
                data_epoch += 1;
                // Windows are identified by their time, to 2 ms.
                rig.advance(Duration::from_millis(3)).await;
                now += 3;
            }
            Some(ServerDisruption::ClockRewind) => rig.rewind_clock(REWIND_TIME).await,
            None => {}
        }
        if let Some((n, units)) = refund {
            refund_charge(&rig, &item, &mut log, [n, data_epoch], units).await;
        }
        let before = rig.read_quota(&item).await;
        let charged = rig.charge(repeated_charge(vec![item.clone()], repetitions)).await;
        let snapshot = &charged.snapshots[0];
        let spent = u64::from(charged.admitted) * cost;
        assert_eq!(snapshot.remaining + spent, before.remaining, "only admitted costs are charged");
        if charged.admitted > 0 {
            log.push(AdmittedCharge::new([now, spent], snapshot, data_epoch));
        }
        assert_eq!(rig.read_quota(&item).await, *snapshot, "a read returns the same snapshot");
        assert_retry_time_exact(&rig, &item, &mut now, &mut log, data_epoch).await;
    }
    assert_admissions_in_bound(&rule, &log);
}

/// A refund counts as if its units had not been charged, even if the store refunds less.
async fn refund_charge(
    rig: &StoreHarness,
    item: &ChargeItem,
    log: &mut AdmissionLog,
    [n, data_epoch]: [usize; 2],
    units: u64,
) {
    let Some(index) = log.len().checked_sub(1 + n) else { return };
    let entry = &mut log[index];
    let Some(window) = entry.window.take() else { return };
    let units = units.min(entry.units);
    let is_lost = entry.data_epoch < data_epoch;
    entry.units -= if is_lost { 0 } else { units };
    let before = rig.read_quota(item).await.remaining;
    let after = rig.refund(item, units, window).await.remaining;
    let max_refund = if is_lost { 0 } else { units };
    assert!((before..=before + max_refund).contains(&after), "{before} {after} {entry:?}");
}

/// After a refusal, a charge is admitted exactly at the reported retry time, and not a millisecond
/// earlier. The quota is full exactly at the reported time.
async fn assert_retry_time_exact(
    rig: &StoreHarness,
    item: &ChargeItem,
    now: &mut u64,
    log: &mut AdmissionLog,
    data_epoch: usize,
) {
    let (admitted, snapshot) = rig.charge_once(item).await;
    if admitted {
        log.push(AdmittedCharge::new([*now, item.cost], &snapshot, data_epoch));
        return;
    }
    if snapshot.retry_after == Duration::MAX {
        return;
    }
    let retry_ms = u64::try_from(snapshot.retry_after.as_millis()).unwrap();
    assert!(retry_ms > 0, "{snapshot:?}");
    assert!(snapshot.reset_after <= snapshot.retry_after, "{snapshot:?}");
    let early = Duration::from_millis(retry_ms - 1);
    rig.advance(early).await;
    assert!(!rig.charge_once(item).await.0, "a retry before {retry_ms} ms is admitted");
    rig.advance(Duration::from_millis(1)).await;
    let (admitted, snapshot) = rig.charge_once(item).await;
    assert!(admitted, "not after {retry_ms} ms: {snapshot:?}");
    *now += retry_ms;
    log.push(AdmittedCharge::new([*now, item.cost], &snapshot, data_epoch));
    let full_after = snapshot.full_after;
    let almost_full = full_after.saturating_sub(Duration::from_millis(1));
    rig.advance(almost_full).await;
    assert_ne!(
        rig.read_quota(item).await.full_after,
        Duration::ZERO,
        "the quota is full before `full_after`"
    );
    rig.advance(full_after - almost_full).await;
    assert_eq!(rig.read_quota(item).await.full_after, Duration::ZERO, "not full in time");
    *now += u64::try_from(full_after.as_millis()).unwrap();
}

proptest! {
    #![proptest_config(proptest_config(600))]

    #[test]
    fn admissions_stay_in_bound_and_retry_times_are_exact(rule in quota_rules(), steps in charge_steps()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(run_charge_steps(rule, &steps));
    }
}
