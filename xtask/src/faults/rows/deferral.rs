//! The faults of deferred requests, by the numbers of their table.

use super::{
    Row,
    Target::{Deferral, Faults, Scenarios, Unit, Warnings},
    Topology,
};

const fn defer(
    number: u8,
    fault: &'static str,
    by: &'static [(super::Target, &'static str)],
) -> Row {
    Row::new('d', number, fault, by)
}

pub(super) const DEFERRAL: &[Row] = &[
    defer(
        1,
        "worker killed around each script and in a run",
        &[
            (Deferral, "a_worker_is_killed_at_every_script"),
            (Deferral, "crash::a_holder_is_killed_"),
            (Deferral, "limits::a_worker_is_killed_"),
            (Deferral, "a_short_history_is_good"),
            (Deferral, "wake::what_a_dead_worker_"),
            (Faults, "tasks_end_once_whatever_is_done"),
        ],
    ),
    defer(
        1,
        "the node away that knows which workers live",
        &[
            (Deferral, "cluster::away::workers_keep_"),
            (Unit, "shards::a_worker_holds_on_"),
        ],
    )
    .on(Topology::Cluster),
    defer(
        2,
        "web node killed as it accepts, and in a remembered run",
        &[
            (Deferral, "a_web_node_is_killed_as_it_accepts"),
            (Deferral, "a_web_node_is_killed_in_a_remembered_run"),
        ],
    ),
    defer(3, "worker stopped past its lease", &[(Deferral, "stopped::")]),
    defer(
        4,
        "reply lost; all replies lost; connections half open",
        &[
            (Deferral, "lost::lost_replies_"),
            (Deferral, "lost::an_unknown_outcome_"),
            (Deferral, "lost::a_half_open_connection_"),
        ],
    ),
    defer(
        5,
        "server killed, and back with its log; a 202 only for what is on disk",
        &[
            (Deferral, "restart::"),
            (Faults, "disks::"),
            (Unit, "redis::tests::disks::"),
            (Unit, "defer::gate::tests::what_the_masters_own_disk_"),
        ],
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
    defer(6, "the master gone with what no replica has", &[(Faults, "accepted::")])
        .on(Topology::Sentinel),
    defer(
        6,
        "a master killed, with what no replica has",
        &[(Deferral, "cluster::dies::")],
    )
    .on(Topology::Cluster),
    defer(7, "scripts forgotten", &[(Deferral, "lost::forgotten_scripts_")]),
    defer(
        9,
        "clock of a worker wrong; the server's put back",
        &[
            (Deferral, "nobody_asks_what_time_it_is"),
            (Unit, "store::tests::clock::"),
            (Unit, "tasks::push::redis::a_clock_that_"),
        ],
    )
    .part("the host's clock may not be set: instead all that is stored is moved into the future"),
    defer(
        8,
        "resharding under load",
        &[(Deferral, "cluster::moves::"), (Unit, "redis::tests::cluster::moves::")],
    )
    .on(Topology::Cluster),
    defer(
        10,
        "no memory left; a server that evicts; an index that is gone",
        &[
            (Deferral, "memory::"),
            (Unit, "redis::tests::concerns::"),
            (Unit, "fsck::jobs::a_line_that_is_in_no_index_"),
            (Warnings, "what_a_server_is_unfit_for_is_told_once"),
        ],
    ),
    defer(
        11,
        "messages lost, subscribers cut off",
        &[
            (Deferral, "wake::a_message_that_is_lost_"),
            (Deferral, "wake::a_subscriber_"),
            (Deferral, "wake::messages_wake_"),
        ],
    )
    .part("found by a sign of life, every 5 s of one alone, 10 s among others, whatever the lease"),
    defer(
        12,
        "holder killed; holder that never ends",
        &[
            (Deferral, "wake::a_holder_that_dies_"),
            (Deferral, "options::a_holder_that_never_ends_"),
            (Deferral, "options::a_request_that_fails_past_"),
            (Deferral, "options::what_is_delayed_"),
            (Deferral, "options::a_retry_that_others_pass_"),
            (Scenarios, "accepting::what_is_too_late_expires"),
        ],
    )
    .part("who asks for the response of an expired one is told 410, not a 5xx, which would be taken for a fault that passes"),
    defer(13, "a request that ends every process", &[(Deferral, "poison::")]),
    defer(14, "100,000 on one resource; 100,000 due at once", &[(Deferral, "crowd::")]).part(
        "a million due, which takes ten minutes of two cores, by LOCKGATE_DUE=1000000; a script over 5 ms is \
         allowed as often as the machine makes a loop long that is always as short",
    ),
    defer(
        15,
        "newer version; change of keys; missing key",
        &[(Deferral, "newer::a_newer_version_"), (Deferral, "sealed::a_")],
    )
    .part("there is one version: a newer one is a stored request with a higher number"),
    defer(
        16,
        "SIGTERM with a run that is short, or too long; workers of both frameworks; none",
        &[
            (Deferral, "drain::"),
            (Deferral, "mixed::"),
            (Scenarios, "replay::without_a_worker_"),
        ],
    ),
    defer(
        17,
        "forged fields, guessed ids, swapped or broken bytes, callbacks, others' keys, full shards",
        &[
            (Scenarios, "replay::forged_markers_are_nothing"),
            (Scenarios, "status::ids_that_are_none_"),
            (Scenarios, "status::a_job_is_shown_to_its_owner_alone"),
            (Scenarios, "users::"),
            (Scenarios, "crowded::"),
            (Unit, "store::tests::reserve::"),
            (Deferral, "sealed::what_was_"),
            (Deferral, "newer::a_request_that_is_broken_"),
            (Unit, "defer::webhook::address_policy::"),
            (Unit, "defer::webhook::tests::what_must_not_be_called_is_not"),
        ],
    ),
    defer(
        18,
        "cancelled while it runs, twice, by a node that dies",
        &[
            (Deferral, "cancel::"),
            (Deferral, "a_web_node_is_killed_as_it_cancels"),
            (Scenarios, "status::a_cancelled_job_"),
            (Scenarios, "status::what_runs_or_has_run_"),
        ],
    ),
];
