//! The numbered faults, and the tests that make them happen.
//!
//! `l` is the table of locks, `d` that of deferred requests, `q` what is promised of quotas. A test is named by a part of its
//! path, as libtest takes it; a row without any says why it can't be done on one machine, and what stands in for it.

/// Which program has the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    /// The crate itself.
    Unit,
    Scenarios,
    Faults,
    Deferral,
}

impl Target {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Unit => "lockgate",
            Self::Scenarios => "scenarios",
            Self::Faults => "faults",
            Self::Deferral => "deferral",
        }
    }
}

/// What the store is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Topology {
    Single,
    Sentinel,
    Cluster,
}

impl Topology {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
        }
    }

    pub(super) fn parse(name: &str) -> Option<Self> {
        [Self::Single, Self::Sentinel, Self::Cluster].into_iter().find(|it| it.name() == name)
    }
}

/// A numbered fault.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) table: char,
    pub(super) number: u8,
    pub(super) topology: Topology,
    pub(super) fault: &'static str,
    pub(super) by: &'static [(Target, &'static str)],
    /// What of it can't be done here, and what stands in for it.
    pub(super) not_here: &'static str,
}

impl Row {
    pub(super) fn name(&self) -> String {
        format!("{}{}", self.table, self.number)
    }

    const fn part(self, not_here: &'static str) -> Self {
        Self { not_here, ..self }
    }

    const fn on(self, topology: Topology) -> Self {
        Self { topology, ..self }
    }
}

const fn lock(number: u8, fault: &'static str, by: &'static [(Target, &'static str)]) -> Row {
    Row { table: 'l', number, topology: Single, fault, by, not_here: "" }
}

const fn defer(number: u8, fault: &'static str, by: &'static [(Target, &'static str)]) -> Row {
    Row { table: 'd', number, topology: Single, fault, by, not_here: "" }
}

const fn quota(number: u8, fault: &'static str, by: &'static [(Target, &'static str)]) -> Row {
    Row { table: 'q', number, topology: Single, fault, by, not_here: "" }
}

use Target::{Deferral, Faults, Scenarios, Unit};
use Topology::Single;

pub(super) const ROWS: &[Row] = &[
    lock(1, "holder killed", &[(Faults, "a_killed_holder_costs_a_lease")]),
    lock(
        2,
        "holder stopped past its lease",
        &[(Faults, "a_holder_that_was_stopped_"), (Faults, "those_who_wait_in_a_stopped_process_")],
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
        ],
    ),
    lock(
        5,
        "reply lost after it was applied",
        &[
            (Unit, "redis::tests::replies::a_"),
            (Unit, "redis::tests::faults::lost_replies_neither_block"),
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
    lock(8, "grantee dead at the hand-over", &[(Unit, "redis::tests::dead::a_dead_grantee_")]),
    lock(
        9,
        "k dead waiters",
        &[
            (Unit, "redis::tests::dead::eight_dead_waiters_"),
            (Unit, "redis::tests::dead::dead_readers_"),
        ],
    ),
    lock(10, "release races the end of the lease", &[(Unit, "late::a_release_that_races_")]),
    lock(
        11,
        "renewal races release; renewal after a loss",
        &[
            (Unit, "late::a_renewal_that_races_"),
            (Unit, "handover::a_renewal_that_fails_"),
            (Unit, "handover::a_renewal_under_way_"),
        ],
    ),
    lock(
        12,
        "server stalls",
        &[
            (Unit, "late::a_stall_past_the_lease_"),
            (Unit, "late::a_paused_server_"),
            (Unit, "late::a_frozen_server_"),
            (Unit, "faults::a_frozen_server_"),
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
        &[(Unit, "redis::tests::replicas::"), (Faults, "a_promoted_replica_without_the_grant")],
    ),
    lock(15, "half-open connection", &[(Unit, "late::a_holder_behind_a_pulled_cable_")]),
    lock(
        16,
        "clocks jump",
        &[
            (Deferral, "nobody_asks_what_time_it_is"),
            (Unit, "forgotten::fences_do_not_run_ahead_of_the_clock"),
        ],
    )
    .part("the host's clock may not be set: the server's jumps in the models of scripts (rates::changes)"),
    lock(
        17,
        "NOSCRIPT, READONLY, LOADING",
        &[
            (Unit, "faults::flushed_scripts_are_sent_again"),
            (Unit, "faults::a_demoted_master_"),
            (Faults, "a_server_that_loads_is_away"),
        ],
    ),
    lock(
        17,
        "MOVED, ASK, slots on their way, a node killed or frozen",
        &[(Unit, "redis::tests::cluster::")],
    )
    .on(Topology::Cluster),
    lock(14, "failover under load", &[(Faults, "failover::")]).on(Topology::Sentinel),
    lock(18, "eviction of lock keys", &[(Faults, "a_lock_that_is_evicted")]),
    lock(
        19,
        "1000 tasks of 3 processes on one lock",
        &[(Unit, "crowd::a_thousand_tasks_of_three_processes_")],
    ),
    lock(20, "one chatty process, three quiet ones", &[(Unit, "crowd::quiet_processes_wait_")]),
    lock(
        21,
        "writers under a flood of readers, and inverse",
        &[(Unit, "crowd::a_writer_is_let_in_"), (Unit, "crowd::a_reader_is_let_in_")],
    ),
    lock(
        22,
        "opposite orders; nested layers",
        &[
            (Unit, "several::those_who_name_them_the_other_way_round_"),
            (Scenarios, "keys::transfers_there_and_back_"),
            (Scenarios, "lock::nested_layers_of_one_key_"),
        ],
    ),
    lock(23, "quorum: a node slow, down, or empty", &[])
        .part("comes with Store::quorum, which has tests of its own"),
    lock(
        24,
        "other versions; drain",
        &[
            (Unit, "faults::another_number_of_shards_is_refused"),
            (Unit, "crowd::a_drain_gives_back_"),
            (Unit, "crowd::a_crowd_does_not_notice_"),
        ],
    ),
    lock(25, "body streams after the head", &[(Scenarios, "hold_until::")]),
    defer(
        1,
        "worker killed around each script and in a run",
        &[(Deferral, "a_worker_is_killed_at_every_script"), (Deferral, "crash::a_holder_is_killed_")],
    ),
    defer(2, "web node killed as it accepts", &[(Deferral, "a_web_node_is_killed_as_it_accepts")]),
    defer(3, "worker stopped past its lease", &[(Deferral, "stopped::")]),
    defer(
        4,
        "reply lost; all replies lost",
        &[(Deferral, "lost::lost_replies_"), (Deferral, "lost::an_unknown_outcome_")],
    ),
    defer(
        5,
        "server killed, and back with its log",
        &[(Deferral, "restart::")],
    ),
    defer(
        6,
        "failover to a replica that lags; a replica; a server that loads",
        &[
            (Faults, "a_promoted_replica_without_the_grant"),
            (Unit, "mends::a_replica_does_not_make_the_breaker_flap"),
            (Faults, "a_server_that_loads_is_away"),
        ],
    ),
    defer(6, "a master killed or frozen", &[(Unit, "redis::tests::cluster::death::")])
        .on(Topology::Cluster),
    defer(7, "scripts forgotten", &[(Deferral, "lost::forgotten_scripts_")]),
    defer(9, "clock of a worker wrong", &[(Deferral, "nobody_asks_what_time_it_is")])
        .part("the host's clock may not be set: the server's jumps in the models of scripts (tasks::push)"),
    defer(8, "resharding under load", &[(Unit, "redis::tests::cluster::moves::")])
        .on(Topology::Cluster),
    defer(10, "no memory left", &[(Deferral, "memory::")]),
    defer(
        11,
        "messages lost, subscribers cut off",
        &[(Deferral, "wake::a_message_that_is_lost_"), (Deferral, "wake::a_subscriber_")],
    ),
    defer(
        12,
        "holder killed; holder that never ends",
        &[
            (Deferral, "wake::a_holder_that_dies_"),
            (Deferral, "options::a_holder_that_never_ends_"),
            (Deferral, "options::a_request_that_fails_past_"),
        ],
    ),
    defer(13, "a request that ends every process", &[(Deferral, "poison::")]),
    defer(14, "100,000 on one resource; 1,500 due at once", &[(Deferral, "crowd::")]),
    defer(
        15,
        "newer version; change of keys; missing key",
        &[(Deferral, "newer::"), (Deferral, "sealed::a_")],
    ),
    defer(16, "SIGTERM with a run that is short, or too long", &[(Deferral, "drain::")]),
    defer(
        17,
        "forged fields, guessed ids, swapped bytes, callbacks",
        &[
            (Scenarios, "replay::forged_markers_are_nothing"),
            (Scenarios, "status::ids_that_are_none_"),
            (Scenarios, "status::a_job_is_shown_to_its_owner_alone"),
            (Deferral, "sealed::what_was_swapped_"),
            (Unit, "defer::callback::address::"),
            (Unit, "defer::callback::tests::what_must_not_be_called_is_not"),
        ],
    ),
    defer(
        18,
        "cancelled while it runs, twice, by a node that dies",
        &[(Deferral, "cancel::"), (Deferral, "a_web_node_is_killed_as_it_cancels")],
    ),
    quota(
        1,
        "many processes on one key: never beyond the quota",
        &[
            (Unit, "charges::eight_processes_on_one_key_"),
            (Unit, "leases::eight_processes_let_in_"),
            (Unit, "rates::model::each_algorithm_counts_as_its_definition_says"),
        ],
    ),
    quota(
        2,
        "refused: nothing is charged",
        &[
            (Unit, "cases::redis::a_group_of_all_kinds_is_charged_all_or_none"),
            (Unit, "several::policies_of_one_key_are_one_call_and_charged_all_or_none"),
        ],
    ),
    quota(3, "a counter that has lost its TTL", &[(Unit, "a_ttl_that_was_lost_refuses_nobody_for_ever")]),
    quota(
        4,
        "a refund moves no window",
        &[
            (Unit, "changes::redis::a_refund_never_moves_a_window"),
            (Unit, "changes::redis::a_refund_lapses_with_its_window"),
        ],
    ),
    quota(
        5,
        "who waits as long as told gets in",
        &[
            (Unit, "promises::never_too_much_and_waiting_as_told_helps"),
            (Unit, "cases::redis::who_waits_as_long_as_told_gets_in"),
        ],
    ),
    quota(
        6,
        "a cost beyond the quota",
        &[(Unit, "cases::redis::a_cost_beyond_the_quota_"), (Unit, "what_costs_too_much_is_an_error_of_its_own")],
    ),
    quota(
        7,
        "reply lost: charged once, and told",
        &[
            (Unit, "charges::lost_replies_are_charged_once_and_told"),
            (Unit, "charges::a_cut_off_process_"),
            (Unit, "faults::a_charge_whose_reply_is_lost_"),
        ],
    ),
    quota(8, "scripts forgotten", &[(Unit, "charges::a_flushed_script_is_charged_once")]),
    quota(9, "server restarted, empty or with its log", &[(Unit, "charges::a_server_that_lost_all_"), (Faults, "quotas_hold_whatever_is_done")]),
    quota(
        10,
        "server away: a share for each process",
        &[
            (Unit, "away::the_quota_is_shared_by_the_processes_that_were_there"),
            (Unit, "away::a_refusal_is_no_outage"),
            (Scenarios, "outage::a_quota_is_kept_by_the_process_alone"),
        ],
    ),
    quota(
        11,
        "check dropped at any await",
        &[(Unit, "charges::a_dropped_charge_takes_nobody_along"), (Unit, "rate_limit::tests::cancel::")],
    ),
    quota(12, "server's clock jumps", &[(Unit, "changes::redis::a_clock_that_")])
        .part("in the model: the script's time is set, not the host's"),
];
