//! Fault rows of deferred requests, numbered as in their table.

use super::{
    FaultRow, StoreTopology,
    TestTarget::{Deferral, Faults, Scenarios, Unit, Warnings},
};

const fn job_row(
    number: u8,
    fault: &'static str,
    by: &'static [(super::TestTarget, &'static str)],
) -> FaultRow {
    FaultRow::new('d', number, fault, by)
}

pub(super) const JOB_ROWS: &[FaultRow] = &[
    job_row(
        1,
        "worker killed before and after each script, and during a run",
        &[
            (Deferral, "worker_killed_at_every_script_loses_no_job"),
            (Deferral, "crash::holder_killed_around_release_frees_lock_after_lease"),
            (Deferral, "run_limits::"),
            (Deferral, "short_job_fault_history_has_no_violations"),
            (Deferral, "wakeups::shards_of_dead_worker_are_taken_over_in_time"),
            (Faults, "tasks_settle_once_under_faults"),
        ],
    ),
    job_row(
        1,
        "cluster node with the worker membership down",
        &[
            (Deferral, "cluster::common_shard_outage::"),
            (Unit, "shard_ownership::worker_keeps_shards_while_membership_is_unavailable"),
        ],
    )
    .with_topology(StoreTopology::Cluster),
    job_row(
        2,
        "web node killed before and after enqueue, and in a direct run with an idempotency record",
        &[
            (Deferral, "web_node_killed_during_enqueue_stores_one_job"),
            (Deferral, "web_node_killed_in_direct_run_is_not_repeated"),
        ],
    ),
    job_row(3, "worker paused past its lease", &[(Deferral, "paused_worker::")]),
    job_row(
        4,
        "reply lost; all replies lost; connections half open",
        &[
            (Deferral, "lost_replies::lost_reply_of_each_script_changes_nothing"),
            (Deferral, "lost_replies::uncertain_enqueue_returns_location_of_job"),
            (Deferral, "lost_replies::half_open_connections_are_replaced_when_used"),
        ],
    ),
    job_row(
        5,
        "server killed and restarted with its append-only file; 202 only for jobs on disk",
        &[
            (Deferral, "restart::"),
            (Faults, "disk_acknowledgement::"),
            (Unit, "redis::tests::disk_replication::"),
            (Unit, "defer::gate::tests::enqueue_not_on_the_masters_disk_is_uncertain"),
        ],
    ),
    job_row(
        6,
        "failover to a lagging replica; a replica; LOADING",
        &[
            (Faults, "promoting_lagging_replica_loses_grant_but_not_fence_order"),
            (Unit, "outage_costs::replica_keeps_breaker_open"),
            (Faults, "loading_server_is_unavailable_until_loaded"),
        ],
    ),
    job_row(6, "master lost with unreplicated jobs", &[(Faults, "job_failover::")])
        .with_topology(StoreTopology::Sentinel),
    job_row(6, "master killed with unreplicated jobs", &[(Deferral, "cluster::master_failover::")])
        .with_topology(StoreTopology::Cluster),
    job_row(7, "scripts flushed", &[(Deferral, "lost_replies::flushed_scripts_are_loaded_again")]),
    job_row(
        9,
        "wrong clock of a worker; server clock set back",
        &[
            (Deferral, "local_clock_audit::"),
            (Unit, "store::tests::clock_rewind::"),
            (Unit, "tasks::push_task::redis::clock_rewind_does_not_delay_new_task"),
        ],
    )
    .with_limitation(
        "a test may not set the host's clock: instead all stored times are moved into the future",
    ),
    job_row(
        8,
        "slots migrate under load",
        &[
            (Deferral, "cluster::shard_migration::"),
            (Unit, "redis::tests::cluster::slot_migration::"),
        ],
    )
    .with_topology(StoreTopology::Cluster),
    job_row(
        10,
        "out of memory; server with an eviction policy; deleted index",
        &[
            (Deferral, "memory::"),
            (Unit, "redis::tests::server_concerns::"),
            (Unit, "fsck::jobs::lock_missing_from_due_index_is_rescheduled"),
            (Warnings, "unsuitable_server_settings_are_warned_once_per_start"),
        ],
    ),
    job_row(
        11,
        "wake-ups lost; subscribers disconnected",
        &[
            (Deferral, "wakeups::lost_wakeup_"),
            (Deferral, "wakeups::closed_subscription_delays_run_until_next_poll"),
            (Deferral, "wakeups::wakeups_reach_worker_and_long_poll_of_other_processes"),
        ],
    )
    .with_limitation(
        "jobs are found at the next heartbeat, every 5 s with one worker, 10 s with several, \
         whatever the lease",
    ),
    job_row(
        12,
        "holder killed; holder that never releases",
        &[
            (Deferral, "wakeups::dead_holder_delays_run_until_lease_ends"),
            (Deferral, "route_options::job_behind_endless_holder_expires_at_deadline"),
            (Deferral, "route_options::job_that_fails_after_deadline_is_not_retried"),
            (Deferral, "route_options::delayed_jobs_run_in_order_and_not_early"),
            (Deferral, "route_options::overtaken_retry_survives_worker_crash"),
            (Scenarios, "defer_options::job_expires_after_its_deadline::"),
        ],
    )
    .with_limitation(
        "the response of an expired job is 410 and not a 5xx, which clients would treat as \
         transient",
    ),
    job_row(13, "poison job that kills every process that runs it", &[(Deferral, "poison_job::")]),
    job_row(
        14,
        "100,000 jobs on one resource; 100,000 due at once",
        &[(Deferral, "large_backlog::")],
    )
    .with_limitation(
        "LOCKGATE_DUE=1000000 makes a million jobs due, which takes ten minutes of two cores; a \
         script may take over 5 ms as often as the machine delays a reference loop of constant \
         length",
    ),
    job_row(
        15,
        "request of a newer version; key rotation; missing key",
        &[
            (Deferral, "unreadable_requests::request_of_newer_version_waits_for_newer_worker"),
            (Deferral, "sealed_jobs::sealing_key_"),
        ],
    )
    .with_limitation(
        "only one version exists: a newer one is simulated by a stored request with a higher \
         number",
    ),
    job_row(
        16,
        "SIGTERM during a short or too long run; workers of both frameworks; no worker",
        &[
            (Deferral, "drain::"),
            (Deferral, "mixed_frameworks::"),
            (Scenarios, "replay::jobs_without_worker_do_not_block_requests"),
        ],
    ),
    job_row(
        17,
        "forged headers, guessed ids, swapped or corrupt bytes, webhooks, other users' keys, full \
         shards",
        &[
            (Scenarios, "replay::forged_replay_markers_are_ignored::"),
            (Scenarios, "job_status::invalid_ids_are_answered_alike::"),
            (Scenarios, "job_status::job_is_visible_only_to_its_owner::"),
            (Scenarios, "user_scoping::"),
            (Scenarios, "shard_fairness::"),
            (Unit, "store::tests::reserve::"),
            (Deferral, "sealed_jobs::swapped_"),
            (Deferral, "unreadable_requests::corrupt_request_becomes_dead_letter"),
            (Unit, "defer::webhook::address_policy::"),
            (Unit, "defer::webhook::tests::forbidden_targets_are_not_called"),
        ],
    ),
    job_row(
        18,
        "cancelled while it runs, twice, or by a node that dies",
        &[
            (Deferral, "cancel_race::"),
            (Deferral, "web_node_killed_during_cancel_leaves_one_outcome"),
            (Scenarios, "job_status::cancelled_job_never_runs::"),
            (Scenarios, "job_status::running_and_done_jobs_cannot_be_cancelled::"),
        ],
    ),
];
