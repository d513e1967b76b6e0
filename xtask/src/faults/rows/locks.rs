//! The faults of locks, by the numbers of their table.

use super::{
    Row,
    Target::{Deferral, Faults, Quorum, Scenarios, Unit, Warnings},
    Topology,
};

const fn lock(
    number: u8,
    fault: &'static str,
    by: &'static [(super::Target, &'static str)],
) -> Row {
    Row::new('l', number, fault, by)
}

pub(super) const LOCKS: &[Row] = &[
    lock(
        1,
        "holder killed",
        &[(Faults, "a_killed_holder_costs_a_lease"), (Faults, "a_short_history_is_good")],
    ),
    lock(
        2,
        "holder stopped past its lease",
        &[
            (Faults, "a_holder_that_was_stopped_"),
            (Faults, "those_who_wait_in_a_stopped_process_"),
            (Faults, "a_short_history_is_good"),
        ],
    ),
    lock(
        3,
        "client gone while waiting or holding",
        &[
            (Scenarios, "end_of_lock::disconnected"),
            (Scenarios, "line::a_waiter_that_leaves_keeps_no_place"),
            (Scenarios, "line::a_second_waiter_passes"),
        ],
    ),
    lock(
        4,
        "future dropped at every await",
        &[
            (Unit, "lock::tests::cancel::dropped_at_any_await_nothing_is_left"),
            (Unit, "redis::tests::drops::dropped_at_any_await"),
            (Unit, "redis::tests::replies::dropped_while_a_reply_is_lost"),
            (Unit, "batcher::tests::drops::an_undo_is_behind_what_it_undoes_"),
        ],
    ),
    lock(
        5,
        "reply lost after it was applied",
        &[
            (Unit, "redis::tests::replies::a_"),
            (Unit, "mends::a_call_that_may_have_run_"),
            (Unit, "tests::several::a_lost_reply_"),
            (Unit, "together::lost_replies_to_many"),
        ],
    ),
    lock(
        6,
        "runtime shut down, guard on a plain thread, panic",
        &[
            (Unit, "redis::tests::ends::"),
            (Unit, "redis::tests::runtimes::"),
            (Scenarios, "end_of_lock::panicked"),
        ],
    ),
    lock(7, "wake-up lost, subscriber killed or too slow", &[(Unit, "redis::tests::wakes::")]),
    lock(8, "grantee dead at the hand-over", &[(Unit, "redis::tests::dead::eight_dead_waiters_")]),
    lock(
        9,
        "k dead waiters",
        &[
            (Unit, "redis::tests::dead::eight_dead_waiters_"),
            (Unit, "redis::tests::dead::dead_readers_"),
        ],
    )
    .part("a window for each of the dead, of 300 ms, and not one for all: who is offered it is not known to be dead before"),
    lock(10, "release races the end of the lease", &[(Unit, "late::a_release_that_races_")]),
    lock(
        11,
        "renewal races release; renewal after a loss",
        &[
            (Unit, "lock::tests::races::"),
            (Unit, "late::a_renewal_that_is_on_its_way_"),
            (Unit, "handover::a_renewal_that_fails_"),
            (Unit, "handover::a_renewal_under_way_"),
        ],
    ),
    lock(
        12,
        "server stalls",
        &[
            (Unit, "late::a_stall_past_the_lease_"),
            (Unit, "late::a_frozen_server_"),
            (Unit, "faults::a_frozen_server_"),
            (Unit, "mends::a_connection_that_falls_silent_"),
            (Faults, "proxy::"),
        ],
    ),
    lock(
        13,
        "server loses its data; FLUSHALL; DEL by hand",
        &[
            (Unit, "redis::tests::forgotten::"),
            (Unit, "faults::a_killed_server_"),
            (Scenarios, "recovery::a_lock_that_was_held_is_given_up"),
        ],
    ),
    lock(
        14,
        "failover with a grant that no replica has",
        &[(Unit, "redis::tests::replicas::"), (Unit, "redis::tests::mends::what_"), (Faults, "a_promoted_replica_without_the_grant")],
    ),
    lock(
        14,
        "the replica's clock is another",
        &[
            (Unit, "redis::tests::failovers::"),
            (Unit, "death::lag::fences_grow_where_the_clock_of_the_replica_is_behind"),
        ],
    ),
    lock(
        15,
        "half-open connection; a server that is silent at the start",
        &[
            (Unit, "late::a_holder_behind_a_pulled_cable_"),
            (Unit, "redis::tests::silent::a_"),
            (Unit, "faults::a_timeout_of_the_library_"),
        ],
    ),
    lock(
        16,
        "clocks jump",
        &[
            (Deferral, "nobody_asks_what_time_it_is"),
            (Unit, "forgotten::fences_do_not_run_ahead_of_the_clock"),
            (Unit, "store::tests::clock::"),
        ],
    )
    .part("the host's clock may not be set: instead all that is stored is moved into the future"),
    lock(
        17,
        "NOSCRIPT, READONLY, LOADING",
        &[
            (Unit, "versions::two_versions_take_turns_"),
            (Unit, "mends::a_replica_does_not_make_the_breaker_flap"),
            (Faults, "a_server_that_loads_is_away"),
            (Unit, "redis::tests::faults::a_server_"),
            (Unit, "redis::tests::faults::killed_connections_"),
            (Unit, "faults::what_was_wrong_once_"),
            (Unit, "mends::a_key_of_another_type_"),
        ],
    ),
    lock(17, "BUSY, MISCONF, NOREPLICAS, OOM, READONLY", &[(Unit, "redis::tests::refusals::")]),
    lock(
        17,
        "MOVED, ASK, slots on their way, a node killed or frozen",
        &[(Unit, "redis::tests::cluster::")],
    )
    .on(Topology::Cluster),
    lock(14, "failover under load", &[(Faults, "failover::sentinels::")])
        .on(Topology::Sentinel),
    lock(14, "a master killed or frozen under load", &[(Faults, "failover::cluster::")])
        .on(Topology::Cluster),
    lock(
        14,
        "a master that wakes while it is replaced; one that is well and is replaced",
        &[
            (Unit, "sentinel::thaw::nothing_is_lost_"),
            (Unit, "redis::tests::sentinel::"),
        ],
    )
    .on(Topology::Sentinel),
    lock(
        18,
        "eviction of lock keys",
        &[
            (Faults, "a_lock_that_is_evicted"),
            (Unit, "redis::tests::concerns::"),
            (Warnings, "what_a_server_is_unfit_for_is_told_once"),
        ],
    ),
    lock(
        19,
        "1000 tasks of 3 processes on one lock",
        &[
            (Faults, "crowd::a_thousand_tasks_of_three_processes_"),
            (Faults, "crowd::one_who_comes_when_as_many_wait_"),
        ],
    ),
    lock(
        20,
        "one chatty process, three quiet ones",
        &[
            (Unit, "crowd::quiet_processes_wait_"),
            // Those wait for as long as a cohort may take, which ends it before it has all its hand-overs.
            (Unit, "handover::a_word_of_the_store_is_good_for_seventeen_holders"),
        ],
    ),
    lock(
        21,
        "writers under a flood of readers, and inverse",
        &[
            (Unit, "crowd::a_writer_is_let_in_"),
            (Unit, "crowd::a_reader_is_let_in_"),
            (Unit, "lock::tests::modes::"),
        ],
    ),
    lock(
        22,
        "opposite orders; nested layers",
        &[
            (Unit, "several::those_who_name_them_the_other_way_round_"),
            (Scenarios, "keys::transfers_there_and_back_"),
            (Scenarios, "lock::nested_layers_of_one_key_"),
            (Scenarios, "within::"),
            (Unit, "lock::tests::several::all_waits_have_one_deadline"),
        ],
    ),
    lock(
        23,
        "quorum: nodes slow, down, or empty; split votes",
        &[
            (Quorum, "two_of_five_may_die_"),
            (Quorum, "frozen_nodes_cost_nothing_"),
            (Quorum, "fences_grow_over_majorities_and_after_a_loss_of_data"),
            (Quorum, "holders_never_meet_while_nodes_come_and_go"),
            (Quorum, "a_holder_outlives_two_nodes_"),
            (Quorum, "whatever_is_dropped_is_given_back"),
            (Unit, "quorum::tests::votes::"),
            (Unit, "quorum::tests::split::"),
        ],
    ),
    lock(
        24,
        "other versions; drain",
        &[
            (Unit, "versions::two_versions_take_turns_"),
            (Unit, "a_place_of_an_unknown_mode_keeps_its_turn"),
            (Unit, "redis::tests::layout::"),
            (Unit, "crowd::a_drain_gives_back_"),
        ],
    )
    .part("versions of one layout are the same scripts with another text, and so with other hashes"),
    lock(25, "body streams after the head", &[(Scenarios, "hold_until::")]),
];
