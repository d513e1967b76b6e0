//! What is promised of quotas, and the faults that could break it.

use super::{
    Row,
    Target::{Faults, Scenarios, Unit},
    Topology,
};

const fn quota(
    number: u8,
    fault: &'static str,
    by: &'static [(super::Target, &'static str)],
) -> Row {
    Row::new('q', number, fault, by)
}

pub(super) const QUOTAS: &[Row] = &[
    quota(
        1,
        "many processes on one key: never beyond the quota",
        &[
            (Unit, "leases::eight_processes_let_in_"),
            (Faults, "eight::"),
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
    quota(
        3,
        "a counter that has lost its TTL",
        &[(Unit, "a_ttl_that_was_lost_refuses_nobody_for_ever")],
    ),
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
        &[
            (Unit, "cases::redis::a_cost_beyond_the_quota_"),
            (Unit, "bounds::a_cost_beyond_any_quota_is_an_error"),
        ],
    ),
    quota(
        7,
        "reply lost: charged once, and told",
        &[
            (Unit, "charges::lost_replies_are_charged_once_and_told"),
            (Unit, "charges::a_refund_whose_reply_was_lost_"),
            (Faults, "quotas_hold_whatever_is_done"),
        ],
    ),
    quota(8, "scripts forgotten", &[(Unit, "charges::a_flushed_script_is_charged_once")]),
    quota(
        9,
        "failover: what a replica has is kept, and nothing else is let in again",
        &[(Unit, "sentinel::quota::"), (Unit, "sentinel::thaw::nothing_is_lost_")],
    )
    .on(Topology::Sentinel),
    quota(
        9,
        "a master killed with charges that no replica has",
        &[(Unit, "redis::tests::cluster::death::lag::of_a_quota_")],
    )
    .on(Topology::Cluster),
    quota(
        9,
        "server restarted, empty or with its log",
        &[(Unit, "charges::a_server_that_lost_all_"), (Faults, "quotas_hold_whatever_is_done")],
    ),
    quota(
        10,
        "server away: a share for each process",
        &[
            (Unit, "away::the_shares_stand_until_the_store_is_asked_again"),
            (Unit, "what_is_known_to_be_refused_stays_so_while_the_store_is_away"),
            (Scenarios, "outage::a_quota_is_kept_by_the_process_alone"),
        ],
    ),
    quota(
        11,
        "check dropped at any await",
        &[
            (Unit, "charges::a_dropped_charge_takes_nobody_along"),
            (Unit, "rate_limit::tests::cancel::"),
        ],
    ),
    quota(12, "server's clock jumps", &[(Unit, "changes::redis::a_clock_that_")])
        .part("in the model: the script's time is set, not the host's"),
];
