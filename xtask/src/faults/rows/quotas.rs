//! Guarantees of quotas, and the faults that could break them.

use super::{
    FaultRow, StoreTopology,
    TestTarget::{Faults, Scenarios, Unit},
};

const fn quota_row(
    number: u8,
    fault: &'static str,
    by: &'static [(super::TestTarget, &'static str)],
) -> FaultRow {
    FaultRow::new('q', number, fault, by)
}

pub(super) const QUOTA_ROWS: &[FaultRow] = &[
    quota_row(
        1,
        "many processes on one key: never beyond the quota",
        &[
            (Unit, "quota_lease::eight_processes_admit_at_most_and_almost_the_quota"),
            (Faults, "quota_spenders::"),
            (Unit, "tests::rates::quota_model::"),
        ],
    ),
    quota_row(
        2,
        "refusal: nothing is charged",
        &[
            (Unit, "counting_algorithms::redis::mixed_counters_are_charged_all_or_none"),
            (Unit, "multiple_policies::policies_of_one_key_are_charged_atomically_in_one_call"),
        ],
    ),
    quota_row(
        3,
        "counter without TTL: the TTL is restored",
        &[(Unit, "counter_without_ttl_expires_again")],
    ),
    quota_row(
        4,
        "refund: moves no window",
        &[
            (Unit, "charge_adjustments::redis::refund_keeps_window_boundary"),
            (Unit, "charge_adjustments::redis::refund_after_window_end_has_no_effect"),
        ],
    ),
    quota_row(
        5,
        "client that waits for the announced time: is admitted",
        &[
            (Unit, "rates::admission_bounds::"),
            (Unit, "counting_algorithms::redis::charge_after_retry_time_is_admitted"),
        ],
    ),
    quota_row(
        6,
        "cost beyond the quota: an error of its own",
        &[
            (Unit, "counting_algorithms::redis::cost_above_capacity_is_refused_permanently"),
            (Unit, "quota_bounds::cost_above_the_quota_is_an_error"),
        ],
    ),
    quota_row(
        7,
        "reply lost: charged once and reported",
        &[
            (Unit, "charges::charge_with_lost_reply_is_made_at_most_once"),
            (Unit, "charges::refund_with_lost_reply_is_made_at_most_once"),
            (Faults, "quotas_hold_under_faults"),
        ],
    ),
    quota_row(8, "scripts flushed: charged once", &[(Unit, "charges::charge_after_script_flush_is_made_once")]),
    quota_row(
        9,
        "failover: replicated charges are kept, only the others are admitted again",
        &[(Unit, "sentinel::failover_quota::"), (Unit, "tests::sentinel::resumed_master::")],
    )
    .with_topology(StoreTopology::Sentinel),
    quota_row(
        9,
        "master killed with unreplicated charges",
        &[(Unit, "redis::tests::cluster::master_failover::replication_lag::failover_readmits_only_charges_the_replica_lacked")],
    )
    .with_topology(StoreTopology::Cluster),
    quota_row(
        9,
        "server restarted, empty or with its append-only file",
        &[(Unit, "charges::server_without_data_counts_quota_from_zero"), (Faults, "quotas_hold_under_faults")],
    ),
    quota_row(
        10,
        "server unavailable: each process enforces its share",
        &[
            (Unit, "store_outage::process_shares_last_until_the_outage_ends"),
            (Unit, "cached_refusal_holds_during_an_outage"),
            (Scenarios, "outage::outage_limiter_enforces_quota_in_process::"),
        ],
    ),
    quota_row(
        11,
        "check dropped at any await: its charges are refunded",
        &[
            (Unit, "charges::dropped_charge_does_not_affect_its_batch"),
            (Unit, "rate_limit::tests::cancellation::"),
        ],
    ),
    quota_row(12, "server clock jumps", &[(Unit, "charge_adjustments::redis::clock_")])
        .with_limitation("in the model: the test sets the script's time, not the host's"),
];
