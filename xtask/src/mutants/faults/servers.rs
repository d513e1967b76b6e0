//! Faults in server connections, failovers and quorums.

use super::{SourceFault, edit, unit_tests};

pub(super) const FAULTS: &[SourceFault] = &[
    SourceFault {
        name: "fences-not-raised",
        table_row: "l14",
        broken_behavior: "after a failover to a lagging replica fences go back",
        edits: &[edit(
            "src/store/lua/advance_fences_after_failover.lua",
            "if last_run_id == ARGV[1] or redis.call('EXISTS', server_id_key) == 0 then return 0 end",
            "if last_run_id or not last_run_id then return 0 end",
        )],
        suites: &[unit_tests(&["failover"])],
    },
    SourceFault {
        name: "data-loss-not-reported",
        table_row: "l13",
        broken_behavior: "a holder gets no report that the server has lost its data",
        edits: &[edit(
            "src/store/redis/server_tracker.rs",
            "let is_change = matches!(change, ServerChange::DataLost | ServerChange::Replaced);",
            "let is_change = !FAULT && matches!(change, ServerChange::DataLost | ServerChange::Replaced);",
        )],
        suites: &[unit_tests(&["store::redis::"])],
    },
    SourceFault {
        name: "replicas-not-counted",
        table_row: "l14",
        broken_behavior: "a grant counts although too few replicas have it",
        edits: &[edit(
            "src/store/lock_lease.rs",
            "if confirmed < wanted {",
            "if confirmed < wanted && !FAULT {",
        )],
        suites: &[unit_tests(&["lock::tests", "replica_grants"])],
    },
    SourceFault {
        name: "demoted-master-is-an-error",
        table_row: "l17",
        broken_behavior: "a call to a master that has become a replica is an error, and not sent again",
        edits: &[edit(
            "src/store/redis/call_fault.rs",
            "RedisErrorKind::Server(ServerErrorKind::NoScript) => Self::NoScript,",
            "RedisErrorKind::Server(ServerErrorKind::ReadOnly) if FAULT => Self::Rejected,\n            ORIGINAL",
        )],
        suites: &[unit_tests(&["store::redis::"])],
    },
    SourceFault {
        name: "layout-not-refused",
        table_row: "l24",
        broken_behavior: "two versions of different layouts share a namespace",
        edits: &[edit(
            "src/store/redis/connection_lanes/namespace_layout.rs",
            "if number == Some(ENCODED_LAYOUT.into()) {",
            "if FAULT || number == Some(ENCODED_LAYOUT.into()) {",
        )],
        suites: &[unit_tests(&["layout_versions"])],
    },
    SourceFault {
        name: "quorum-of-half",
        table_row: "l23",
        broken_behavior: "half of the nodes are enough, so two holders meet",
        edits: &[
            edit(
                "src/quorum/vote_request.rs",
                "self.nodes.len() / 2 + 1",
                "if FAULT { self.nodes.len() / 2 } else { ORIGINAL }",
            ),
            edit(
                "src/quorum/quorum_hold.rs",
                "self.node_count / 2 + 1",
                "if FAULT { self.node_count / 2 } else { ORIGINAL }",
            ),
        ],
        suites: &[unit_tests(&["quorum::"])],
    },
    SourceFault {
        name: "quorum-fence-kept",
        table_row: "l23",
        broken_behavior: "a later majority gives a smaller fence",
        edits: &[edit(
            "src/quorum/vote_request.rs",
            "self.write_back_fence(fence, &mut holds, &mut refusals).await;",
            "if !FAULT {\n                ORIGINAL\n            }",
        )],
        suites: &[unit_tests(&["quorum::"])],
    },
    SourceFault {
        name: "connection-of-ended-runtime-used",
        table_row: "l6",
        broken_behavior: "the first call on a new runtime goes to a connection of one that has ended",
        edits: &[edit(
            "src/store/redis/target/timeout_and_disconnect_flag.rs",
            "    fn drop(&mut self) {\n        self.mark_disconnected();",
            "    fn drop(&mut self) {\n        if FAULT {\n            return;\n        }\n        self.mark_disconnected();",
        )],
        suites: &[unit_tests(&["ended_runtimes"])],
    },
    SourceFault {
        name: "lost-reply-not-undone",
        table_row: "l5",
        broken_behavior: "a call whose reply is lost is not undone",
        edits: &[edit(
            "src/store/grant_attempt.rs",
            "Err(ErrorKind::Timeout | ErrorKind::Protocol) => 1 + self.possible_copies(),",
            "Err(ErrorKind::Timeout | ErrorKind::Protocol) if FAULT => 0,\n            ORIGINAL",
        )],
        suites: &[unit_tests(&["lock::tests", "store::redis::tests"])],
    },
    SourceFault {
        name: "offer-stays-open",
        table_row: "l8",
        broken_behavior: "a waiter that has died is offered the lock for seconds",
        edits: &[edit(
            "src/store/lua/wait_queue.lua",
            "put_holder('o' .. MODE_TAGS[mode] .. token, OFFER_TIMEOUT_MS)",
            "put_holder('o' .. MODE_TAGS[mode] .. token, OFFER_TIMEOUT_MS * 20)",
        )],
        suites: &[unit_tests(&["store::tests"])],
    },
    SourceFault {
        name: "validity-counted-from-the-reply",
        table_row: "l15",
        broken_behavior: "the validity time of a lock exceeds its lease in the store",
        edits: &[edit(
            "src/store/lock_lease.rs",
            "state.valid_until = sent_at + validity_time(lease);\n        let ends_at",
            "state.valid_until = if FAULT { Instant::now() } else { sent_at } + validity_time(lease);\n        let ends_at",
        )],
        suites: &[unit_tests(&["lock::tests", "store::"])],
    },
    SourceFault {
        name: "shutdown-does-not-wait",
        table_row: "l24",
        broken_behavior: "a process ends before its locks are released",
        edits: &[edit(
            "src/store/lease_agent.rs",
            "if self.runtime.shared.pending_undos.load(Ordering::Acquire) == 0 {",
            "if FAULT || self.runtime.shared.pending_undos.load(Ordering::Acquire) == 0 {",
        )],
        suites: &[unit_tests(&["lock::tests", "store::"])],
    },
];
