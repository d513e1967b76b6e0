//! Fault rows of locks, numbered as in their table.

use super::{
    FaultRow, StoreTopology,
    TestTarget::{Deferral, Faults, Quorum, Scenarios, Unit, Warnings},
};

const fn lock_row(
    number: u8,
    fault: &'static str,
    by: &'static [(super::TestTarget, &'static str)],
) -> FaultRow {
    FaultRow::new('l', number, fault, by)
}

pub(super) const LOCK_ROWS: &[FaultRow] = &[
    lock_row(
        1,
        "holder killed",
        &[
            (Faults, "lock_of_killed_holder_is_free_after_lease"),
            (Faults, "short_lock_fault_history_has_no_violations"),
        ],
    ),
    lock_row(
        2,
        "holder paused past its lease",
        &[
            (Faults, "holder_paused_past_its_lease_does_not_write_again"),
            (Faults, "waiters_of_paused_process_are_served_after_resume"),
            (Faults, "short_lock_fault_history_has_no_violations"),
        ],
    ),
    lock_row(
        3,
        "client disconnects while waiting or holding",
        &[
            (Scenarios, "lock_release::client_disconnect_"),
            (Scenarios, "wait_queue::cancelled_waiter_leaves_the_queue"),
            (Scenarios, "wait_queue::second_waiter_is_served_after_first_leaves"),
        ],
    ),
    lock_row(
        4,
        "future dropped at any await",
        &[
            (Unit, "lock::tests::cancellation::drop_at_any_await_leaves_nothing"),
            (Unit, "store::redis::tests::dropped_futures::"),
            (Unit, "redis::tests::lost_replies::dropped_while_a_reply_is_lost_leaves_nothing"),
            (Unit, "batcher::tests::drops::undo_of_call_dropped_at_any_poll_is_sent_after_it"),
        ],
    ),
    lock_row(
        5,
        "reply lost after the operation was applied",
        &[
            (
                Unit,
                "redis::tests::lost_replies::contenders_with_constant_reply_loss_are_all_served",
            ),
            (Unit, "redis::tests::lost_replies::offer_confirmation_with_lost_reply_is_repeated"),
            (Unit, "redis::tests::lost_replies::reacquire_with_lost_reply_hands_over_once"),
            (Unit, "outage_costs::lost_reply_without_reconnect_reports_timeout"),
            (Unit, "tests::acquire_all::acquire_all_with_lost_reply_does_not_block_itself"),
            (Unit, "batched_lock_calls::lost_replies_of_batches_do_not_block_or_release_twice"),
        ],
    ),
    lock_row(
        6,
        "runtime shut down; guard dropped on a plain thread; panic; abort",
        &[
            (Unit, "redis::tests::holder_ends::"),
            (Unit, "redis::tests::ended_runtimes::"),
            (Scenarios, "lock_release::handler_panic_releases_lock"),
        ],
    ),
    lock_row(
        7,
        "wake-up lost; subscriber killed or too slow",
        &[(Unit, "redis::tests::lost_wakeups::")],
    ),
    lock_row(
        8,
        "waiter dead when the lock is offered to it",
        &[(Unit, "redis::tests::dead_waiters::eight_dead_waiters_cost_one_offer_timeout_each")],
    ),
    lock_row(
        9,
        "k dead waiters",
        &[
            (Unit, "redis::tests::dead_waiters::eight_dead_waiters_cost_one_offer_timeout_each"),
            (Unit, "redis::tests::dead_waiters::dead_readers_cost_one_offer_timeout_together"),
        ],
    )
    .with_limitation(
        "one offer timeout (300 ms) per dead waiter, not one for all: a waiter is found dead only \
         when its offer ends",
    ),
    lock_row(
        10,
        "release races lease expiry",
        &[(Unit, "late_calls::release_racing_lease_end_does_not_release_next_holder")],
    ),
    lock_row(
        11,
        "renewal races release; renewal after a loss",
        &[
            (Unit, "lock::tests::renewal_release_races::"),
            (Unit, "late_calls::renewal_in_flight_at_release_does_not_revive_lock"),
            (Unit, "handover::failed_renewal_is_reported_to_the_current_holder"),
            (Unit, "handover::renewal_in_flight_extends_the_next_holder"),
        ],
    ),
    lock_row(
        12,
        "server stalls",
        &[
            (Unit, "late_calls::server_stall_past_lease_reports_loss_during_stall"),
            (Unit, "late_calls::short_freeze_loses_no_locks_and_causes_no_call_storm"),
            (Unit, "server_faults::frozen_server_costs_calls_one_deadline_at_most"),
            (Unit, "outage_costs::connection_silent_during_handshake_is_replaced"),
            (Faults, "proxy::"),
        ],
    ),
    lock_row(
        13,
        "server loses its data; FLUSHALL; DEL by hand",
        &[
            (Unit, "redis::tests::lost_data::"),
            (Unit, "server_faults::killed_server_opens_breaker_and_empty_restart_is_used"),
            (Scenarios, "recovery::held_lock_is_lost_when_server_restarts_empty::"),
        ],
    ),
    lock_row(
        14,
        "failover to a replica without the grant",
        &[
            (Unit, "redis::tests::replica_grants::"),
            (Unit, "redis::tests::outage_costs::calls_"),
            (Faults, "promoting_lagging_replica_loses_grant_but_not_fence_order"),
        ],
    ),
    lock_row(
        14,
        "failover to a replica with another clock",
        &[
            (Unit, "redis::tests::fence_failovers::"),
            (
                Unit,
                "master_failover::replication_lag::fences_grow_after_failover_to_replica_with_slow_clock",
            ),
        ],
    ),
    lock_row(
        15,
        "half-open connection; server that is silent at connect",
        &[
            (Unit, "late_calls::partitioned_holder_reports_loss_before_next_grant"),
            (Unit, "store::redis::tests::silent_servers::"),
            (Unit, "server_faults::client_library_timeout_does_not_count_as_answer"),
        ],
    ),
    lock_row(
        16,
        "clocks jump",
        &[
            (Deferral, "local_clock_audit::"),
            (Unit, "lost_data::fences_stay_within_lead_of_server_clock"),
            (Unit, "store::tests::clock_rewind::"),
        ],
    )
    .with_limitation(
        "a test may not set the host's clock: instead all stored times are moved into the future",
    ),
    lock_row(
        17,
        "NOSCRIPT, READONLY, LOADING",
        &[
            (Unit, "tests::script_versions::"),
            (Unit, "outage_costs::replica_keeps_breaker_open"),
            (Faults, "loading_server_is_unavailable_until_loaded"),
            (Unit, "redis::tests::server_faults::full_server_accepts_release_over_new_connection"),
            (Unit, "redis::tests::server_faults::killed_connections_are_replaced_without_errors"),
            (Unit, "server_faults::past_config_error_is_not_reported_for_later_outage"),
            (Unit, "outage_costs::key_of_wrong_type_fails_only_its_own_lock"),
        ],
    ),
    lock_row(
        17,
        "BUSY, MISCONF, NOREPLICAS, OOM, READONLY",
        &[(Unit, "redis::tests::server_refusals::")],
    ),
    lock_row(
        17,
        "MOVED, ASK, migrating slots; a node killed or frozen",
        &[(Unit, "redis::tests::cluster::")],
    )
    .with_topology(StoreTopology::Cluster),
    lock_row(14, "failover under load", &[(Faults, "failover::sentinels::")])
        .with_topology(StoreTopology::Sentinel),
    lock_row(14, "master killed or frozen under load", &[(Faults, "failover::cluster::")])
        .with_topology(StoreTopology::Cluster),
    lock_row(
        14,
        "paused master that resumes during its failover; failover from a healthy master",
        &[(Unit, "tests::sentinel::resumed_master::"), (Unit, "redis::tests::sentinel::")],
    )
    .with_topology(StoreTopology::Sentinel),
    lock_row(
        18,
        "lock keys evicted",
        &[
            (Faults, "holder_learns_of_evicted_lock_at_next_renewal"),
            (Unit, "redis::tests::server_concerns::"),
            (Warnings, "unsuitable_server_settings_are_warned_once_per_start"),
        ],
    ),
    lock_row(
        19,
        "1000 tasks of 3 processes contend for one lock",
        &[
            (Faults, "lock_contention::thousand_waiters_are_served_in_order_without_leaks"),
            (Faults, "lock_contention::acquire_beyond_max_waiters_is_refused_at_once"),
        ],
    ),
    lock_row(
        20,
        "one busy process, three that rarely acquire",
        &[
            (Unit, "queue_fairness::rare_requests_wait_for_one_handover_batch_of_busy_process"),
            // The test above ends each batch by `handover_window` before `max_handovers`.
            (Unit, "handover::one_snapshot_serves_seventeen_holders"),
        ],
    ),
    lock_row(
        21,
        "writers under a flood of readers, and the reverse",
        &[
            (Unit, "queue_fairness::writer_is_granted_under_flood_of_readers"),
            (Unit, "queue_fairness::reader_is_granted_under_flood_of_writers"),
            (Unit, "lock::tests::lock_modes::"),
        ],
    ),
    lock_row(
        22,
        "opposite lock orders; nested layers",
        &[
            (Unit, "lock_set::lock_sets_in_opposite_orders_never_deadlock"),
            (Scenarios, "lock_keys::opposite_lock_sets_never_deadlock::"),
            (Scenarios, "lock::nested_layers_of_one_key_"),
            (Scenarios, "reentrant_locks::"),
            (Unit, "lock::tests::lock_set::waits_of_a_lock_set_share_one_deadline"),
        ],
    ),
    lock_row(
        23,
        "quorum: nodes slow, down, or empty; split votes",
        &[
            (Quorum, "quorum_survives_two_dead_nodes_and_fails_with_three"),
            (Quorum, "two_frozen_nodes_are_tolerated_and_three_refuse_acquire"),
            (Quorum, "fences_grow_across_majorities_and_data_loss"),
            (Quorum, "holds_never_overlap_while_nodes_restart"),
            (Quorum, "holder_survives_two_nodes_and_is_lost_with_the_third"),
            (Quorum, "dropped_acquires_are_released_on_all_nodes"),
            (Unit, "quorum::tests::votes::"),
            (Unit, "quorum::tests::split_votes::"),
        ],
    ),
    lock_row(
        24,
        "two versions; drain",
        &[
            (Unit, "tests::script_versions::"),
            (Unit, "queue_entry_of_unknown_mode_keeps_its_position"),
            (Unit, "redis::tests::layout_versions::"),
            (Unit, "queue_fairness::shutdown_releases_dropped_locks_and_queue_entries"),
        ],
    )
    .with_limitation(
        "versions of one layout are simulated by the same scripts with different text and hashes",
    ),
    lock_row(25, "body streams after the head", &[(Scenarios, "hold_until::")]),
];
